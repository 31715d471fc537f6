#include "model/messages.h"

#include <algorithm>

namespace ebb {

void Messages::emit(const Message& m, Exchange::Part part) {
  const Exchange op{part, element_count(b_.shape(m.x)), b_.type(m.x), m.peer, m.channel};
  std::vector<Buf> reads, writes, updates;
  (op.sends() ? reads : op.begins() ? writes : updates).push_back(m.x);
  static constexpr const char* kParts[] = {"send", "sent", "receive", "received"};
  b_.emit(std::string(kParts[static_cast<int>(part)]) + "." + m.name, op, std::move(reads),
          std::move(writes), std::move(updates));
}

void Messages::send(const Message& message) {
  wait_for_send_of(message.x);
  while (sending_.size() >= most_) end_oldest_send();
  emit(message, Exchange::Part::send_begin);
  sending_.push_back(message);
}

void Messages::end_oldest_send() {
  emit(sending_.front(), Exchange::Part::send_end);
  sending_.pop_front();
}

void Messages::wait_for_send_of(Buf x) {
  const auto on_its_way = [&] {
    return std::any_of(sending_.begin(), sending_.end(),
                       [&](const Message& other) { return other.x == x; });
  };
  while (on_its_way()) end_oldest_send();
}

void Messages::wait_for_sends() {
  while (!sending_.empty()) end_oldest_send();
}

void Messages::receive(const Message& message) {
  receive_begin(message);
  receive_end(message);
}

void Messages::hand_on(const std::string& name, Buf x, Channel channel, const Ring& ring) {
  if (!ring.has) receive({name, x, ring.before, channel});
  if (!ring.next_has) send({name, x, ring.next, channel});
}

}  // namespace ebb
