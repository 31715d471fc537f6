#include "cli/this_machine.h"

#include <fmt/format.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <vector>

#include "api/resolve.h"
#include "base/text.h"
#include "base/threads.h"
#include "cli/resolve.h"
#include "machine/process.h"

namespace ebb {

namespace {

constexpr int64_t kCalibrationBytes = 100 << 20;

// Each shape's seconds, then whether others disturbed, from a child's end of a pipe to ours.
std::vector<double> read_numbers(int from) {
  std::vector<double> numbers;
  for (double number = 0;;) {
    const ssize_t got = read(from, &number, sizeof number);
    if (got < 0 && errno == EINTR) continue;
    if (got != sizeof number) return numbers;
    numbers.push_back(number);
  }
}

void write_numbers(int to, const MeasuredMachine::Times& times) {
  std::vector<double> numbers = times.seconds;
  numbers.push_back(times.busy ? 1 : 0);
  const auto bytes = static_cast<ssize_t>(numbers.size() * sizeof(double));
  _exit(write(to, numbers.data(), bytes) == bytes ? 0 : 1);
}

// In a process of its own: what measuring takes is never part of this one, whose budget may be
// smaller. Nothing comes back from a process that was killed.
MeasuredMachine::Times time_apart(int threads) {
  if (available_memory_bytes() < kCalibrationBytes) return {};
  int ends[2];
  if (pipe(ends) != 0) return {};
  end_team();
  const pid_t child = fork();
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);  // it has the sockets by which other ranks know this one
    close(ends[0]);
    try {
      write_numbers(ends[1], MeasuredMachine::time_operations(threads));
    } catch (const std::exception&) {
      _exit(1);
    }
  }
  close(ends[1]);
  std::vector<double> numbers;
  if (child > 0) numbers = read_numbers(ends[0]);
  close(ends[0]);
  int status = 1;
  while (child > 0 && waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (status != 0 || numbers.empty()) return {};
  const bool busy = numbers.back() != 0;
  numbers.pop_back();
  return {std::move(numbers), busy};
}

void warn(const std::string& line) { fmt::print(stderr, "warning: {}\n", line); }

}  // namespace

void resolve_threads(const Settings& s) {
  if (s.threads > 0) set_team_threads(static_cast<int>(s.threads));
  if (team_threads() > allowed_cpus()) {
    warn(fmt::format("{} threads on {} CPUs", team_threads(), allowed_cpus()));
  }
}

MeasuredMachine::Options measure_options(const Settings& s) {
  MeasuredMachine::Options options;
  options.threads = team_threads();
  options.offload = resolve_offload(s);
  options.cache = MeasuredMachine::usual_cache();
  options.time = time_apart;
  options.say = [](const std::string& line) { fmt::print(stderr, "{}\n", line); };
  return options;
}

MeasuredMachine changed(const MeasuredMachine& machine,
                        const std::function<void(Machine&)>& change) {
  MeasuredMachine::Impl made = machine.impl();
  change(made.machine);
  return MeasuredMachine(std::make_shared<const MeasuredMachine::Impl>(std::move(made)));
}

MeasuredMachine with_link(const MeasuredMachine& machine, const Link& link) {
  return changed(machine, [&](Machine& made) { made.link = link; });
}

MeasuredMachine with_link(const MeasuredMachine& machine, const Settings& s) {
  if (s.link.empty()) return machine;
  return with_link(machine, parse_link(s.link, s.given.at("link")));
}

MeasuredMachine resolve_machine(const Settings& s) {
  resolve_threads(s);
  return with_link(s.machine.empty() ? MeasuredMachine::measure(measure_options(s))
                                     : MeasuredMachine::read(s.machine, s.offload),
                   s);
}

int64_t resolve_budget(const Settings& s, const MeasuredMachine& machine) {
  if (s.memory > machine.available_bytes()) {
    warn(fmt::format("--memory {} is more than the {} that are available", format_size(s.memory),
                     format_size(machine.available_bytes())));
  }
  return budget_of(s.memory, inside(machine));
}

}  // namespace ebb
