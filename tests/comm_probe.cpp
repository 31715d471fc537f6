// A program for ranks to run, for mpi_ranks_test.cpp: mpiexec -n 4 ebb_comm_probe WHAT [NUMBER]. It
// ends as ebb does: with an `error:` line, on stderr or in EBB_PROBE_RECORDS/error.RANK, and its
// code. `ebb_comm_probe watch FOLDER PROGRAM ...` runs another and notes in FOLDER/peak.RANK how
// many bytes its process had at most.
#include <fmt/format.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iostream>
#include <string>
#include <thread>

#include "base/error.h"
#include "comm/launcher.h"
#include "comm/mpi_worker.h"
#include "peers_exchange.h"

namespace ebb {
namespace {

using Clock = std::chrono::steady_clock;
using Bytes = std::vector<std::byte>;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

double resident_mebibytes(const char* kind) {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    if (word != kind) continue;
    double kibibytes = 0;
    status >> kibibytes;
    return kibibytes / 1024;
  }
  return 0;
}

// What grows if somebody keeps messages.
double kept_mebibytes() { return resident_mebibytes("RssAnon:") + resident_mebibytes("RssShmem:"); }

std::string memory() {
  return fmt::format(": {:.1f} MiB of its own, {:.1f} shared, {:.1f} of files",
                     resident_mebibytes("RssAnon:"), resident_mebibytes("RssShmem:"),
                     resident_mebibytes("RssFile:"));
}

void say(const Peers& peers, const std::string& what) {
  std::cout << fmt::format("rank {}: {}\n", peers.rank(), what) << std::flush;
}

void wait_all(Peers& peers, const std::vector<Peers::Ticket>& tickets) {
  for (const auto ticket : tickets) peers.wait(ticket);
}

// 0 to 1 and back.
void measure(Peers& peers) {
  uint64_t word = 0;
  constexpr int kRounds = 2000;
  const auto start = Clock::now();
  for (int i = 0; i < kRounds && peers.rank() < 2; ++i) {
    if (peers.rank() == 0) {
      peers.wait(peers.send(1, 0, &word, 8));
      peers.wait(peers.receive(1, 0, &word, 8));
    } else {
      peers.wait(peers.receive(0, 0, &word, 8));
      peers.wait(peers.send(0, 0, &word, 8));
    }
  }
  if (peers.rank() == 0) {
    say(peers, fmt::format("round trip {:.1f} us", seconds_since(start) / kRounds * 1e6));
  }
  Bytes bytes(100'000'000);
  for (int round = 0; round < 3 && peers.rank() < 2; ++round) {
    const auto begun = Clock::now();
    peers.wait(peers.rank() == 0 ? peers.send(1, 1, bytes.data(), bytes.size())
                                 : peers.receive(0, 1, bytes.data(), bytes.size()));
    say(peers, fmt::format("100 MB in {:.1f} ms", seconds_since(begun) * 1e3));
  }
}

// 100 MB to the next rank, through 4 MB, received late: nobody may keep them in memory meanwhile.
void memory_of(Peers& peers, const std::string& before_mpi) {
  say(peers, "before MPI" + before_mpi);
  say(peers, "at the start" + memory());
  constexpr int64_t kBytes = 4'000'000;
  Bytes out(kBytes), in(kBytes);
  const double before_traffic = kept_mebibytes();
  const int next = (peers.rank() + 1) % peers.size();
  const int before = (peers.rank() + peers.size() - 1) % peers.size();
  for (int i = 0; i < 25; ++i) {
    const auto sent = peers.send(next, 0, out.data(), kBytes);
    if (i % 5 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    wait_all(peers, {sent, peers.receive(before, 0, in.data(), kBytes)});
  }
  say(peers, fmt::format("100 MB of traffic have taken {:.1f} MiB; 8 MB are the messages{}",
                         kept_mebibytes() - before_traffic, memory()));
}

// Rank 0 lets the others wait.
void idle(Peers& peers) {
  if (peers.rank() == 0) std::this_thread::sleep_for(std::chrono::seconds(2));
  const auto cpu = [] {
    rusage used{};
    getrusage(RUSAGE_SELF, &used);
    return used.ru_utime.tv_sec + used.ru_stime.tv_sec +
           1e-6 * static_cast<double>(used.ru_utime.tv_usec + used.ru_stime.tv_usec);
  };
  const double before = cpu();
  const auto start = Clock::now();
  uint64_t word = 0;
  if (peers.rank() == 0) {
    for (int r = 1; r < peers.size(); ++r) peers.wait(peers.send(r, 0, &word, 8));
  } else {
    peers.wait(peers.receive(0, 0, &word, 8));
    say(peers, fmt::format("waited {:.2f} s cpu {:.4f} s", seconds_since(start), cpu() - before));
  }
}

// The last rank wants another number of bytes than rank 0 sends; the ranks between wait for both.
void disagree(Peers& peers, int64_t more) {
  const int last = peers.size() - 1;
  const int64_t n = 3'000'000;
  Bytes bytes(n + 10'000'000);
  if (peers.rank() == 0) {
    peers.wait(peers.send(last, 5, bytes.data(), n));
    peers.wait(peers.receive(last, 6, bytes.data(), 1));
  } else if (peers.rank() == last) {
    peers.wait(peers.receive(0, 5, bytes.data(), n + more));
    peers.wait(peers.send(0, 6, bytes.data(), 1));
  } else {
    peers.wait(peers.receive(0, 1, bytes.data(), 1));
  }
}

// Steps without end: messages, work, flags. Notes when it is under way.
void endless(Peers& peers) {
  for (uint64_t step = 0;; ++step) {
    const char* folder = std::getenv("EBB_PROBE_RECORDS");
    if (step == 1 && folder != nullptr) {
      std::ofstream(fmt::format("{}/ready.{}", folder, peers.rank())) << "ready" << std::endl;
    }
    random_exchange(peers, step, 12, 300'000);
    std::this_thread::sleep_for(std::chrono::milliseconds(step % 7));
    peers.any(step);
  }
}

// A ring of receives: a program that is wrong.
void standstill(Peers& peers) {
  uint64_t word = 0;
  peers.wait(peers.receive((peers.rank() + 1) % peers.size(), 3, &word, 8));
}

void give_up(Peers& peers) {
  if (peers.rank() == peers.size() - 1) fail(Exit::data, "data: photo 17 cannot be read");
  standstill(peers);
}

void told(Peers& peers) {
  const std::string own(1000 * peers.rank(), static_cast<char>('a' + peers.rank() % 26));
  const auto all = peers.tell_all(own);
  for (int r = 0; r < peers.size(); ++r) {
    const std::string expected(1000 * r, static_cast<char>('a' + r % 26));
    if (all.at(r) != expected) fail(Exit::data, fmt::format("told: rank {}'s text", r));
  }
  if (peers.any(uint64_t{1} << peers.rank()) != (uint64_t{1} << peers.size()) - 1) {
    fail(Exit::data, "told: flags");
  }
}

// A send is not over before its receiver asks for it, however small it is.
void send_to_a_sleeper(Peers& peers) {
  const auto start = Clock::now();
  uint64_t word = 0;
  if (peers.rank() == 0) {
    peers.wait(peers.send(1, 2, &word, 8));
    if (seconds_since(start) < 0.25) fail(Exit::data, "a send was over before it was received");
  } else if (peers.rank() == 1) {
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    peers.wait(peers.receive(0, 2, &word, 8));
  }
}

void run(Peers& peers, const std::string& what, int64_t number, const std::string& before_mpi) {
  if (what == "exchange") {
    const int64_t sent =
        random_exchange(peers, number, 60, 3 * (2 << 20)) + edge_sizes_exchange(peers, 50'000'000);
    if (sent != peers.sent_bytes()) {
      fail(Exit::data, fmt::format("sent {} bytes, counted {}", sent, peers.sent_bytes()));
    }
    told(peers);
    send_to_a_sleeper(peers);
  }
  if (what == "measure") measure(peers);
  if (what == "memory") memory_of(peers, before_mpi);
  if (what == "idle") idle(peers);
  if (what == "disagree") disagree(peers, number);
  if (what == "endless") endless(peers);
  if (what == "standstill") standstill(peers);
  if (what == "give_up") give_up(peers);
}

int main_of(const std::vector<std::string>& words) {
  std::unique_ptr<Peers> peers;
  try {
    PeerOptions options;
    options.one_host = launcher().one_host;
    if (const char* text = std::getenv("EBB_PROBE_TIMEOUT")) {
      options.timeout = std::chrono::milliseconds(std::atoi(text));
    }
    const std::string before_mpi = memory();
    // As ebb does: MPI libraries end a process where another is gone.
    signal(SIGABRT, [](int) { MpiWorker::outlive_mpi(); });
    peers = open_peers(launcher(), options);
    run(*peers, words.at(0), words.size() > 1 ? std::atoll(words[1].c_str()) : 0, before_mpi);
    peers->leave();
    say(*peers, "done");
    return 0;
  } catch (const Error& error) {
    const char* folder = std::getenv("EBB_PROBE_RECORDS");
    std::ofstream file;
    if (folder != nullptr) file.open(fmt::format("{}/error.{}", folder, launcher().rank));
    (folder != nullptr ? file : std::cerr)
        << fmt::format("rank {}: error: {}\n  {}\n", launcher().rank, error.what(), error.hint())
        << std::flush;
    if (peers) peers->abandon(error.what());
    _exit(static_cast<int>(error.code()));
  }
}

// Launchers do not say how each rank ended, and kill those that are left. So a rank is a child of
// the process that the launcher knows, which outlives whatever signals can do and notes in a folder
// which process it was and how it ended: its code, or 0 - signal.
int main_recorded(const std::string& folder, const std::vector<std::string>& words) {
  const std::string end = "." + std::to_string(launcher().rank);
  const pid_t parent = getpid();
  sigset_t all, before;
  sigfillset(&all);
  sigprocmask(SIG_BLOCK, &all, &before);
  const pid_t rank = fork();
  if (rank == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    sigprocmask(SIG_SETMASK, &before, nullptr);
    if (getppid() != parent) _exit(1);
    return main_of(words);
  }
  std::ofstream(folder + "/pid" + end) << rank << std::endl;
  int status = 0;
  while (waitpid(rank, &status, 0) < 0) continue;
  const int code = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  std::ofstream(folder + "/code" + end) << code << std::endl;
  return code >= 0 ? code : 128 - code;
}

int main_watching(const std::string& folder, std::vector<std::string> words) {
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  const pid_t program = fork();
  if (program == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    execv(argv[0], argv.data());
    _exit(127);
  }
  int status = 0;
  rusage use{};
  while (wait4(program, &status, 0, &use) < 0) continue;
  std::ofstream(fmt::format("{}/peak.{}", folder, launcher().rank)) << use.ru_maxrss * 1024;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace
}  // namespace ebb

int main(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  if (words.size() > 2 && words[0] == "watch") {
    return ebb::main_watching(words[1], {words.begin() + 2, words.end()});
  }
  const char* folder = std::getenv("EBB_PROBE_RECORDS");
  return folder != nullptr ? ebb::main_recorded(folder, words) : ebb::main_of(words);
}
