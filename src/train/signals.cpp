#include "train/signals.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>

namespace ebb {

namespace {

std::atomic<int> asked{0};
static_assert(std::atomic<int>::is_always_lock_free);

void on_signal(int signal) {
  if (asked.exchange(signal) != 0) _exit(128 + signal);
}

}  // namespace

void catch_stop_signals() {
  struct sigaction action = {};
  action.sa_handler = on_signal;
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

int stop_signal() { return asked.load(); }

}  // namespace ebb
