// Exchange ops of one rank's program, and which of them are not over yet. Emits; runs nothing.
#pragma once

#include <deque>
#include <string>

#include "model/ranks.h"
#include "program/builder.h"

namespace ebb {

struct Message {
  std::string name;
  Buf x;
  int peer;
  Channel channel;
};

class Messages {
 public:
  // `most`: sends at a time. The builder must outlive it.
  Messages(Builder& b, size_t most) : b_(b), most_(most) {}

  // What is being sent keeps its bytes: so many at a time, and none twice. Another waits for the
  // oldest.
  void send(const Message& message);
  void wait_for_sends();         // to be called at the end
  void wait_for_send_of(Buf x);  // before it changes

  void receive_begin(const Message& message) { emit(message, Exchange::Part::receive_begin); }
  void receive_end(const Message& message) { emit(message, Exchange::Part::receive_end); }
  void receive(const Message& message);

  // Round a ring of ranks, from those who have it on: whoever lacks it has it from the one before.
  // All go through what they hand on in one order: whoever waits, waits for one that is at
  // something earlier.
  struct Ring {
    int before, next;
    bool has, next_has;
  };
  void hand_on(const std::string& name, Buf x, Channel channel, const Ring& ring);

 private:
  void emit(const Message& message, Exchange::Part part);
  void end_oldest_send();

  Builder& b_;
  const size_t most_;
  std::deque<Message> sending_;
};

}  // namespace ebb
