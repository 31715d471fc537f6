#include "cli/signals.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>

namespace ebb {

namespace {

std::atomic<int> asked{0};   // the first signal
std::atomic<int> again{0};   // one that came after it, while saving
std::atomic<int> saving{0};  // how many saves are under way
std::atomic<bool> on_terminal{false};
std::atomic<const char*> words{""};
std::atomic<void (*)()> asked_first{nullptr};
static_assert(std::atomic<int>::is_always_lock_free);
static_assert(std::atomic<const char*>::is_always_lock_free);

// write(2) alone is safe in a handler. A line that cannot be written is no reason for anything.
void say(const char* line) {
  const int error = errno;
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, line, std::strlen(line));
  errno = error;
}

void on_signal(int signal) {
  int none = 0;
  if (asked.compare_exchange_strong(none, signal)) {
    if (on_terminal.load()) say("\n");  // the progress line is open, or "^C" was printed
    say(words.load());
    return;
  }
  if (signal == SIGHUP) return;  // a terminal that closes says so twice: itself, and by its shell
  if (saving.load() == 0) _exit(128 + signal);
  if (again.exchange(signal) == 0) say("saving first, then it stops at once\n");
}

}  // namespace

void catch_stop_signals(const char* acknowledgement) {
  words = acknowledgement;
  on_terminal = isatty(STDERR_FILENO) == 1;
  struct sigaction action = {};
  action.sa_handler = on_signal;
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  struct sigaction before = {};
  sigaction(SIGHUP, nullptr, &before);
  if (before.sa_handler != SIG_IGN) sigaction(SIGHUP, &action, nullptr);
}

void ask_before_ending(void (*first)()) {
  asked_first = first;
  signal(SIGABRT, [](int) { asked_first.load()(); });  // who returns is ended by abort() itself
  std::atexit(first);
}

int stop_signal() { return asked.load(); }

void note_saving(bool under_way) {
  saving.fetch_add(under_way ? 1 : -1);
  const int signal = under_way ? 0 : again.load();
  if (signal != 0) _exit(128 + signal);
}

}  // namespace ebb
