#include "plan/rank_time.h"

#include <algorithm>
#include <queue>
#include <tuple>

#include "base/error.h"
#include "plan/fair_ports.h"

namespace ebb {

namespace {

// ---- who sends what to whom ---------------------------------------------------------------------

// Messages of one (from, to, channel): transfers [first, first + count) of a step.
struct Stream {
  int from = 0, to = 0;
  int32_t first = 0, count = 0;
};

// What both sides do in the order of their scripts is matched without playing them.
struct Matching {
  std::vector<Stream> streams;
  struct Transfer {
    int64_t bytes = 0;
    int32_t stream = 0;
    int32_t sent = -1, received = -1;  // messages of the two scripts; -1: nobody does
  };
  std::vector<Transfer> transfers;             // by stream
  std::vector<std::vector<int32_t>> transfer;  // by rank and message

  explicit Matching(const std::vector<RankScript>& scripts);

 private:
  struct Side {
    int from, to, channel;
    int32_t message;
    bool sends;
    auto stream() const { return std::tuple(from, to, channel); }
  };
  static std::vector<Side> sides(const std::vector<RankScript>& scripts);
  void add_stream(const std::vector<Side>& all, size_t begin, size_t end);
  void check_sizes(const std::vector<RankScript>& scripts);
};

std::vector<Matching::Side> Matching::sides(const std::vector<RankScript>& scripts) {
  std::vector<Side> all;
  const int ranks = static_cast<int>(scripts.size());
  for (int r = 0; r < ranks; ++r) {
    for (size_t i = 0; i < scripts[r].messages.size(); ++i) {
      const RankMessage& m = scripts[r].messages[i];
      require(m.peer >= 0 && m.peer < ranks && m.peer != r,
              "ranks: {} of rank {} is for rank {} of {}", m.name, r, m.peer, ranks);
      all.push_back({m.sends ? r : m.peer, m.sends ? m.peer : r, m.channel, static_cast<int32_t>(i),
                     m.sends});
    }
  }
  std::sort(all.begin(), all.end(), [](const Side& a, const Side& b) {
    return std::tuple(a.stream(), a.sends, a.message) < std::tuple(b.stream(), b.sends, b.message);
  });
  return all;
}

Matching::Matching(const std::vector<RankScript>& scripts) {
  for (const RankScript& script : scripts) transfer.emplace_back(script.messages.size());
  const std::vector<Side> all = sides(scripts);
  for (size_t begin = 0, end = 0; begin < all.size(); begin = end) {
    while (end < all.size() && all[end].stream() == all[begin].stream()) ++end;
    add_stream(all, begin, end);
  }
  check_sizes(scripts);
}

void Matching::add_stream(const std::vector<Side>& all, size_t begin, size_t end) {
  size_t sends = begin;
  while (sends < end && !all[sends].sends) ++sends;
  const auto count = static_cast<int32_t>(std::max(sends - begin, end - sends));
  const auto first = static_cast<int32_t>(transfers.size());
  const auto [from, to, channel] = all[begin].stream();
  transfers.resize(first + count, {0, static_cast<int32_t>(streams.size())});
  for (size_t i = begin; i < end; ++i) {
    const Side& side = all[i];
    const auto id = static_cast<int32_t>(first + (i - (side.sends ? sends : begin)));
    (side.sends ? transfers[id].sent : transfers[id].received) = side.message;
    transfer[side.sends ? from : to][side.message] = id;
  }
  streams.push_back({from, to, first, count});
}

void Matching::check_sizes(const std::vector<RankScript>& scripts) {
  for (Transfer& t : transfers) {
    const Stream& s = streams[t.stream];
    if (t.sent < 0 || t.received < 0) continue;  // somebody will wait for ever
    const RankMessage& sent = scripts[s.from].messages[t.sent];
    const RankMessage& received = scripts[s.to].messages[t.received];
    require(sent.bytes == received.bytes, "ranks: {} of rank {} has {} bytes, {} of rank {} has {}",
            sent.name, s.from, sent.bytes, received.name, s.to, received.bytes);
    t.bytes = sent.bytes;
  }
}

// ---- the play -----------------------------------------------------------------------------------

class Simulation {
 public:
  Simulation(const std::vector<RankScript>& scripts, const Link& link,
             const RankTimeOptions& options)
      : scripts_(scripts),
        link_(link),
        options_(options),
        matching_(scripts),
        ports_(static_cast<int>(scripts.size()), link.bytes_per_second),
        ranks_(scripts.size()),
        streams_(matching_.streams.size()),
        transfers_(matching_.transfers.size() * options.steps) {
    require(options.steps >= 1, "ranks: {} steps", options.steps);
    found_.ranks.resize(scripts.size());
    found_.step_ends.resize(options.steps);
  }

  RankTimes run() {
    for (int r = 0; r < static_cast<int>(ranks_.size()); ++r) go(r);
    share();
    while (!events_.empty()) {
      const Event event = events_.top();
      events_.pop();
      ++found_.events;
      now_ = event.time;
      handle(event);
      // What happens at one moment is shared out together.
      if (events_.empty() || events_.top().time > now_) share();
    }
    check_ended();
    return std::move(found_);
  }

 private:
  enum class State : uint8_t { not_begun, half_begun, begun, over };
  struct Rank {
    size_t next = 0;
    int step = 0;
    int64_t waits_for = -1;  // a transfer of a step
    double waits_since = 0, stage_begin = 0;
    int32_t last_computing = -1;  // in the timeline
  };
  struct Moving {
    int64_t ready = 0,
            left = 0;  // transfers that both sides have begun, and that left, of all steps
    int flow = -1;     // what moves now has a share of the ports,
    double bytes = 0, since = 0;  // and had so much to go at that time, at this rate
    double rate = 0, begin = 0;
    int32_t version = 0;  // of what is known about its end
  };
  struct Event {
    enum class Kind : uint8_t { computed, left, arrived };
    double time;
    int64_t order;  // of those of one time
    int64_t what;   // a rank, a stream, a transfer of a step
    int32_t version;
    Kind kind;
    bool operator<(const Event& other) const {  // the queue has its largest on top
      return std::tuple(other.time, other.order) < std::tuple(time, order);
    }
  };

  void push(double time, Event::Kind kind, int64_t what, int32_t version = 0) {
    events_.push({time, next_order_++, what, version, kind});
  }

  void handle(const Event& event) {
    if (event.kind == Event::Kind::computed) go(static_cast<int>(event.what));
    if (event.kind == Event::Kind::arrived) arrive(event.what);
    if (event.kind == Event::Kind::left && streams_[event.what].version == event.version) {
      leave(static_cast<int>(event.what));
    }
  }

  // ---- ranks

  // Until it computes, waits or ends.
  void go(int r) {
    Rank& rank = ranks_[r];
    while (rank.step < options_.steps) {
      if (rank.next == scripts_[r].steps.size()) {
        end_step(r);
        continue;
      }
      const RankStep& step = scripts_[r].steps[rank.next];
      if (step.kind == RankStep::Kind::wait && !over(r, step.message)) return;
      ++rank.next;
      if (step.kind == RankStep::Kind::begin) begin(r, step.message);
      if (step.kind == RankStep::Kind::compute) return compute(r, step.seconds, step.work);
      if (step.kind == RankStep::Kind::stage) {
        const double rest = rank.stage_begin + step.seconds - now_;
        rank.stage_begin = now_ + std::max(0.0, rest);
        if (rest > 0) return compute(r, rest, step.work);
      }
    }
  }

  void end_step(int r) {
    Rank& rank = ranks_[r];
    found_.ranks[r].seconds = now_;
    double& end = found_.step_ends[rank.step];
    end = std::max(end, now_);
    ++rank.step;
    rank.next = 0;
  }

  void compute(int r, double seconds, Work work) {
    found_.ranks[r].computing += seconds;
    push(now_ + seconds, Event::Kind::computed, r);
    if (!options_.timeline) return;
    int32_t& last = ranks_[r].last_computing;
    if (last >= 0 && found_.timeline[last].end == now_ && found_.timeline[last].work == work) {
      found_.timeline[last].end = now_ + seconds;
    } else {
      last = static_cast<int32_t>(found_.timeline.size());
      note(RankInterval::Kind::computing, r, now_, now_ + seconds, -1, work);
    }
  }

  bool over(int r, int32_t message) {
    const int64_t transfer = transfer_of(r, message);
    if (transfers_[transfer] == State::over) return true;
    ranks_[r].waits_for = transfer;
    ranks_[r].waits_since = now_;
    return false;
  }

  int64_t transfer_of(int r, int32_t message) const {
    const auto per_step = static_cast<int64_t>(matching_.transfers.size());
    return ranks_[r].step * per_step + matching_.transfer[r][message];
  }

  // ---- transfers

  void begin(int r, int32_t message) {
    const RankMessage& m = scripts_[r].messages[message];
    (m.sends ? found_.ranks[r].sent_bytes : found_.ranks[r].received_bytes) += m.bytes;
    const int64_t transfer = transfer_of(r, message);
    State& state = transfers_[transfer];
    const bool other = state == State::half_begun;
    state = other ? State::begun : State::half_begun;
    if (!other) return;
    const int stream = matching_.transfers[matching_.transfer[r][message]].stream;
    ++streams_[stream].ready;
    if (streams_[stream].flow < 0) start(stream);
  }

  void start(int stream) {
    const Stream& s = matching_.streams[stream];
    Moving& moving = streams_[stream];
    const int64_t bytes = matching_.transfers[s.first + moving.left % s.count].bytes;
    moving.bytes = static_cast<double>(bytes);
    moving.begin = moving.since = now_;
    moving.flow = ports_.add(s.from, s.to, link_.most_rate(bytes));
    if (moving.flow >= static_cast<int>(stream_of_.size())) stream_of_.resize(moving.flow + 1);
    stream_of_[moving.flow] = stream;
  }

  // Each flow's share, and so its end.
  void share() {
    for (const int flow : ports_.share()) {
      Moving& moving = streams_[stream_of_[flow]];
      moving.bytes = std::max(0.0, moving.bytes - moving.rate * (now_ - moving.since));
      moving.since = now_;
      moving.rate = ports_.rate(flow);
      push(now_ + moving.bytes / moving.rate, Event::Kind::left, stream_of_[flow],
           ++moving.version);
    }
  }

  void leave(int stream) {
    const Stream& s = matching_.streams[stream];
    Moving& moving = streams_[stream];
    ports_.remove(moving.flow);
    moving.flow = -1;
    moving.rate = 0;
    ++moving.version;
    const int64_t step = moving.left / s.count;
    const auto id = static_cast<int32_t>(s.first + moving.left % s.count);
    ++moving.left;
    const double arrives = now_ + link_.latency_seconds;
    push(arrives, Event::Kind::arrived,
         step * static_cast<int64_t>(matching_.transfers.size()) + id);
    const Matching::Transfer& t = matching_.transfers[id];
    note(RankInterval::Kind::sending, s.from, moving.begin, arrives, t.sent);
    note(RankInterval::Kind::receiving, s.to, moving.begin, arrives, t.received);
    if (moving.left < moving.ready) start(stream);
  }

  void arrive(int64_t transfer) {
    transfers_[transfer] = State::over;
    const auto id = transfer % static_cast<int64_t>(matching_.transfers.size());
    const Stream& s = matching_.streams[matching_.transfers[id].stream];
    for (const int r : {s.from, s.to}) {
      Rank& rank = ranks_[r];
      if (rank.waits_for != transfer) continue;
      rank.waits_for = -1;
      found_.ranks[r].waiting += now_ - rank.waits_since;
      note(RankInterval::Kind::waiting, r, rank.waits_since, now_,
           scripts_[r].steps[rank.next].message);
      go(r);
    }
  }

  void note(RankInterval::Kind kind, int r, double begin, double end, int32_t message,
            Work work = Work::forward) {
    if (options_.timeline && end > begin) {
      found_.timeline.push_back({begin, end, r, message, kind, work});
    }
  }

  void check_ended() const {
    std::string waiting;
    for (size_t r = 0; r < ranks_.size(); ++r) {
      if (ranks_[r].step == options_.steps) continue;
      const RankStep& step = scripts_[r].steps[ranks_[r].next];
      waiting += (waiting.empty() ? "rank " : ", rank ") + std::to_string(r) + " for " +
                 scripts_[r].messages[step.message].name;
    }
    require(waiting.empty(), "ranks: they wait for each other: {}", waiting);
  }

  const std::vector<RankScript>& scripts_;
  const Link& link_;
  const RankTimeOptions options_;
  const Matching matching_;
  FairPorts ports_;
  std::vector<Rank> ranks_;
  std::vector<Moving> streams_;
  std::vector<State> transfers_;  // of all steps
  std::vector<int> stream_of_;    // by flow
  std::priority_queue<Event> events_;
  int64_t next_order_ = 0;
  double now_ = 0;
  RankTimes found_;
};

}  // namespace

RankTimes simulate(const std::vector<RankScript>& scripts, const Link& link,
                   const RankTimeOptions& options) {
  return Simulation(scripts, link, options).run();
}

double step_seconds(const std::vector<RankScript>& scripts, const Link& link) {
  const RankTimes times = simulate(scripts, link, {.steps = 2});
  return times.step_ends[1] - times.step_ends[0];
}

}  // namespace ebb
