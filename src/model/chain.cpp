#include "model/chain.h"

#include "base/error.h"

namespace ebb {

Chain::Chain(Builder& b, const RankPlace& place, Shard shard, const std::vector<ParamSpec>& specs)
    : b_(b), place_(place), shard_(shard), owners_(owners(specs, place.ranks)) {
  size_t next = 0;
  for (const ParamSpec& spec : specs) {
    if (spec.trained()) owner_[spec.name] = owners_[next++];
  }
}

bool Chain::owns(const ParamSpec& spec) const {
  return shard_ == Shard::off || owner_.at(spec.name) == place_.rank;
}

Purpose Chain::purpose(const ParamSpec& spec) const {
  return place_.last() && owns(spec) ? Purpose::gradient : Purpose::exchange;
}

// ---- messages ----------------------------------------------------------------------------------

void Chain::exchange(const std::string& name, Exchange::Part part, Buf x, int peer,
                     Channel channel) {
  const Exchange op{part, element_count(b_.shape(x)), b_.type(x), peer, channel};
  std::vector<Buf> reads, writes, updates;
  (op.sends() ? reads : op.begins() ? writes : updates).push_back(x);
  static constexpr const char* kParts[] = {"send", "sent", "receive", "received"};
  b_.emit(std::string(kParts[static_cast<int>(part)]) + "." + name, op, std::move(reads),
          std::move(writes), std::move(updates));
}

// What is being sent keeps its bytes: few at a time.
void Chain::send(const std::string& name, Buf x, int peer, Channel channel) {
  constexpr size_t kMost = 3;
  if (sending_.size() == kMost) end_oldest_send();
  exchange(name, Exchange::Part::send_begin, x, peer, channel);
  sending_.push_back({name, x, peer, channel});
}

void Chain::end_oldest_send() {
  const Message& m = sending_.front();
  exchange(m.name, Exchange::Part::send_end, m.x, m.peer, m.channel);
  sending_.pop_front();
}

void Chain::wait_for_sends() {
  while (!sending_.empty()) end_oldest_send();
}

void Chain::receive_begin(const std::string& name, Buf x, int peer, Channel channel) {
  exchange(name, Exchange::Part::receive_begin, x, peer, channel);
}

void Chain::receive_end(const std::string& name, Buf x, int peer, Channel channel) {
  exchange(name, Exchange::Part::receive_end, x, peer, channel);
}

void Chain::receive(const std::string& name, Buf x, int peer, Channel channel) {
  receive_begin(name, x, peer, channel);
  receive_end(name, x, peer, channel);
}

// ---- sums ---------------------------------------------------------------------------------------

void Chain::begin(const ParamSpec& spec, Buf gradient) {
  if (begins_elsewhere()) receive(spec.name, gradient, place_.before(), kPartialSums);
}

void Chain::begin_loss(Buf loss) {
  if (begins_elsewhere()) receive("loss", loss, place_.before(), kLosses);
}

void Chain::complete(const ParamSpec& spec, Buf gradient) {
  const int owner = owner_.at(spec.name);
  const bool to_all = shard_ == Shard::off;
  if (place_.last()) {
    if (owns(spec)) whole_[spec.name] = gradient;
    // Whoever takes it has begun to: it passed its own part on before.
    if (to_all) send(spec.name, gradient, place_.before(), kFinishedSums);
    if (!to_all && owner != place_.rank) send(spec.name, gradient, owner, kFinishedSums);
    return;
  }
  send(spec.name, gradient, place_.next(), kPartialSums);
  if (!owns(spec)) return;
  const Buf whole = b_.declare_numbered(
      {"grad." + spec.name, spec.layer, Purpose::gradient, b_.type(gradient), b_.shape(gradient)});
  const int from = to_all ? place_.next() : place_.ranks - 1;
  receive_begin(spec.name, whole, from, kFinishedSums);
  expected_.push_back({spec.name, whole, from, kFinishedSums});
  whole_[spec.name] = whole;
}

void Chain::finish() {
  for (const Message& m : expected_) {
    receive_end(m.name, m.x, m.peer, m.channel);
    if (shard_ == Shard::off && !place_.first()) {
      send(m.name, m.x, place_.before(), kFinishedSums);
    }
  }
  expected_.clear();
}

void Chain::share_loss(Buf loss) {
  if (!place_.last()) send("loss", loss, place_.next(), kLosses);
  wait_for_sends();
  if (!place_.last()) receive("loss", loss, place_.next(), kLosses);
  if (!place_.first()) send("loss", loss, place_.before(), kLosses);
}

// ---- what owners tell ---------------------------------------------------------------------------

void Chain::share_norms(Buf norms) {
  // The tensors of a rank follow each other. Each message has a view of its own.
  const auto part = [&](int rank) {
    int64_t first = 0, count = 0;
    for (const int owner : owners_) {
      first += owner < rank ? 1 : 0;
      count += owner == rank ? 1 : 0;
    }
    return count > 0 ? b_.view(norms, {count}, first, 0) : Buf{};
  };
  std::vector<Message> coming;
  for (int away = 1; away < place_.ranks; ++away) {
    const int peer = (place_.rank + away) % place_.ranks;
    if (const Buf theirs = part(peer)) {
      receive_begin("norms", theirs, peer, kNormSums);
      coming.push_back({"norms", theirs, peer, kNormSums});
    }
  }
  for (int away = 1; away < place_.ranks; ++away) {
    const int peer = (place_.rank + away) % place_.ranks;
    if (const Buf own = part(place_.rank)) send("norms", own, peer, kNormSums);
  }
  for (const Message& m : coming) receive_end(m.name, m.x, m.peer, m.channel);
}

// Round the ring, from the owner on. All ranks go through the tensors in one order: whoever waits,
// waits for one that is at an earlier tensor.
void Chain::share_weight(const ParamSpec& spec, Buf weight) {
  const int owner = owner_.at(spec.name);
  if (owner != place_.rank) receive(spec.name, weight, place_.before(), kWeights);
  if (place_.next() != owner) send(spec.name, weight, place_.next(), kWeights);
}

}  // namespace ebb
