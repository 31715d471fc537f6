// How ranks fail together.
#pragma once

#include <exception>
#include <functional>

#include "comm/peers.h"

namespace ebb {

// Collective: every rank says how its part ended, null where it ended well. If it did not on some,
// every rank throws the failure of the lowest of them, which others than rank 0 are named with.
// What is no Error there, a bug of ours, is Exit::peer to all others.
void agree(Peers& peers, const std::exception_ptr& failure);

// The same after running a part in which ranks do not meet. Without peers it is simply run.
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

}  // namespace ebb
