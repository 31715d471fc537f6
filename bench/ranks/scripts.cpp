// What ranks do in a step, and how long Ebb says that it takes; for bench/ranks/simgrid.
//   ebb_rank_scripts MODEL BATCH RANKS off|state RATE,LATENCY [smpi FOLDER | replay N]
// smpi writes a trace of every rank for SimGrid's SMPI to replay. replay, started by mpiexec on so
// many ranks, has them do it N times: they sleep where they would compute, and send real bytes. Ops
// take what a middling machine takes, so that figures are the same everywhere.
#include <fmt/format.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <thread>
#include <tuple>

#include "base/error.h"
#include "base/text.h"
#include "comm/launcher.h"
#include "kernels/cpu/device.h"
#include "model/step.h"
#include "plan/rank_time.h"

namespace ebb {
namespace {

using Clock = std::chrono::steady_clock;

double since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

DitConfig named_config(const std::string& name) {
  DitConfig c;
  const NamedSize size = named_size(name);
  c.width = size.width;
  c.patch = size.patch;
  set_blocks(c, size.depth, size.heads);
  return c;
}

std::vector<RankScript> write_scripts(const std::string& model, int64_t batch, int ranks,
                                      Shard shard) {
  Machine machine;
  machine.device = &cpu_device();
  const DitConfig config = named_config(model);
  std::vector<RankScript> scripts;
  for (int r = 0; r < ranks; ++r) {
    StepSpec spec;
    spec.batch = batch;
    spec.clip = 1;
    spec.place = {ranks, 1, r};
    spec.choices.shard = shard;
    scripts.push_back(script_of(write_step(config, spec, *machine.device), machine));
  }
  return scripts;
}

// As SMPI moves messages: those of a stream do not wait for each other, but share the port. So each
// has a channel of its own, by which a replay tells them apart too.
std::vector<RankScript> side_by_side(std::vector<RankScript> scripts) {
  for (RankScript& script : scripts) {
    std::map<std::tuple<bool, int, int>, int> counts;
    for (RankMessage& m : script.messages) {
      m.channel += 16 * counts[{m.sends, m.peer, m.channel}]++;
    }
  }
  return scripts;
}

// SMPI's time-independent traces: one line an action. A second is 1e9 of its flops.
void write_trace(const RankScript& script, int rank, const std::filesystem::path& folder) {
  std::ofstream out(folder / fmt::format("rank{}.txt", rank));
  out << rank << " init\n";
  for (const RankStep& step : script.steps) {
    if (step.kind == RankStep::Kind::compute) {
      out << fmt::format("{} compute {:.3f}\n", rank, step.seconds * 1e9);
      continue;
    }
    const RankMessage& m = script.messages.at(step.message);
    if (step.kind == RankStep::Kind::begin) {
      out << fmt::format("{} {} {} {} {}\n", rank, m.sends ? "isend" : "irecv", m.peer, m.channel,
                         m.bytes);
    } else {
      out << fmt::format("{} wait {} {} {}\n", rank, m.sends ? rank : m.peer,
                         m.sends ? m.peer : rank, m.channel);
    }
  }
  out << rank << " finalize\n";
}

// As the executor would: the seconds from when all ranks begin until the last has ended.
double replay(Peers& peers, const RankScript& script, std::vector<std::byte>& out,
              std::vector<std::byte>& in) {
  std::vector<Peers::Ticket> tickets(script.messages.size());
  peers.any(0);
  const auto start = Clock::now();
  for (const RankStep& step : script.steps) {
    if (step.kind == RankStep::Kind::compute) {
      std::this_thread::sleep_for(std::chrono::duration<double>(step.seconds));
      continue;
    }
    const RankMessage& m = script.messages.at(step.message);
    if (step.kind == RankStep::Kind::wait) {
      peers.wait(tickets[step.message]);
    } else {
      tickets[step.message] = m.sends ? peers.send(m.peer, m.channel, out.data(), m.bytes)
                                      : peers.receive(m.peer, m.channel, in.data(), m.bytes);
    }
  }
  double last = 0;
  for (const std::string& text : peers.tell_all(fmt::format("{}", since(start)))) {
    last = std::max(last, parse_real(text, "a rank's seconds"));
  }
  return last;
}

void replay(const std::vector<RankScript>& scripts, double predicted, int64_t rounds) {
  const std::unique_ptr<Peers> peers = open_peers(launcher(), {});
  if (peers->size() != static_cast<int>(scripts.size())) fail(Exit::usage, "mpiexec: other ranks");
  // What arrives is not read, so all of it may lie in one place.
  int64_t most = 0;
  const RankScript& own = scripts[peers->rank()];
  for (const RankMessage& m : own.messages) most = std::max(most, m.bytes);
  std::vector<std::byte> out(most), in(most);
  for (int64_t i = 0; i < rounds; ++i) {
    const double seconds = replay(*peers, own, out, in);
    if (peers->rank() == 0) {
      fmt::print("predicted {:.3f} s, took {:.3f} s: {:.3f}\n", predicted, seconds,
                 predicted / seconds);
    }
  }
  peers->leave();
}

void write_smpi(const std::vector<RankScript>& scripts, const std::filesystem::path& folder) {
  std::filesystem::create_directories(folder);
  std::ofstream list(folder / "list");
  for (size_t r = 0; r < scripts.size(); ++r) {
    write_trace(scripts[r], static_cast<int>(r), folder);
    list << (folder / fmt::format("rank{}.txt", r)).string() << '\n';
  }
}

int run(const std::vector<std::string>& words) {
  if ((words.size() != 5 && words.size() != 7) || (words[3] != "off" && words[3] != "state")) {
    fail(Exit::usage, "wanted: MODEL BATCH RANKS off|state RATE,LATENCY [smpi FOLDER | replay N]");
  }
  const auto start = Clock::now();
  const int ranks = static_cast<int>(parse_int(words[2], "RANKS"));
  const std::vector<RankScript> scripts =
      write_scripts(words[0], parse_int(words[1], "BATCH"), ranks,
                    words[3] == "state" ? Shard::grads : Shard::off);
  const double written = since(start);
  const Link link = parse_link(words[4], "LINK");
  if (words.size() == 7 && words[5] == "replay") {
    replay(scripts, simulate(scripts, link).seconds(), parse_int(words[6], "N"));
    return 0;
  }
  const auto begun = Clock::now();
  const RankTimes times = simulate(scripts, link);
  const double played = since(begun);
  const std::vector<RankScript> apart = side_by_side(scripts);
  double computing = 0, waiting = 0;
  size_t bytes = 0;
  for (const RankTime& rank : times.ranks) {
    computing = std::max(computing, rank.computing);
    waiting += rank.waiting / ranks;
  }
  for (const RankScript& script : scripts) {
    bytes += script.steps.size() * sizeof(RankStep) + script.messages.size() * sizeof(RankMessage);
  }
  fmt::print(
      "seconds {:.9f} side_by_side {:.9f} computing {:.6f} waiting {:.6f} events {} script_bytes "
      "{} written_in {:.2f} "
      "played_in {:.3f}\n",
      times.seconds(), simulate(apart, link).seconds(), computing, waiting, times.events, bytes,
      written, played);
  if (words.size() == 7) write_smpi(apart, words[6]);
  return 0;
}

}  // namespace
}  // namespace ebb

int main(int argc, char** argv) {
  try {
    return ebb::run({argv + 1, argv + argc});
  } catch (const std::exception& error) {
    fmt::print(stderr, "error: {}\n", error.what());
    return 2;
  }
}
