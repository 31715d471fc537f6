// What ranks settle between them before they go on, and how they fail together.
#pragma once

#include <exception>
#include <functional>
#include <string>

#include "base/error.h"
#include "comm/peers.h"

namespace ebb {

// An error that every rank throws alike: one of them may speak for all.
class SharedError : public Error {
 public:
  using Error::Error;
  explicit SharedError(const Error& e) : Error(e) {}
};

// Collective: every rank says how its part ended, null where it ended well. If it did not on some,
// every rank throws the failure of the lowest of them, with its number unless that is 0, as a
// SharedError; as a Bug where it is a bug of ours.
void agree(Peers& peers, const std::exception_ptr& failure);

// The same after running a part in which ranks do not meet, or agree themselves. Without peers it
// is simply run.
void agree(Peers* peers, const std::function<void()>& part);

// Work of one rank between messages that others count on: what fails must not keep it from sending
// or receiving the rest. The first failure is kept for agree(), and later parts are left out. That
// another rank is lost ends everything at once.
class Attempt {
 public:
  explicit operator bool() const { return failure_ == nullptr; }
  const std::exception_ptr& failure() const { return failure_; }
  void run(const std::function<void()>& part);

 private:
  std::exception_ptr failure_;
};

// Collective: all ranks get the text of rank 0, however long it is.
std::string from_first(Peers& peers, const std::string& text);

// Collective: fails on every rank with Exit::usage where a rank's text is not that of rank 0,
// naming the first line that differs; `what` says what the texts are: "settings".
void expect_same(Peers& peers, const std::string& what, const std::string& text,
                 const std::string& hint);

}  // namespace ebb
