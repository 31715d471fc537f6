// A memory limit that the system enforces: a control group, version 1 or 2, made for one test.
#pragma once

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace ebb {

// Whoever is in it is killed rather than given more than `limit` bytes, page cache that cannot be
// dropped included; there is no swap to evade to. Needs root, as CI is, or a folder of the user's
// own in $EBB_TEST_CGROUP. Where neither is there, why() says so, and the test is to be skipped.
class ControlGroup {
 public:
  explicit ControlGroup(int64_t limit) {
    const std::filesystem::path parent = find_parent();
    if (parent.empty()) {
      if (why_.empty()) why_ = "this system has no memory controller below /sys/fs/cgroup";
      return;
    }
    static std::atomic<int> count = 0;  // several at a time have names of their own
    const std::filesystem::path group =
        parent / ("ebb_test_" + std::to_string(getpid()) + "_" + std::to_string(count++));
    std::error_code failed;
    if (!std::filesystem::create_directory(group, failed)) {
      why_ = "cannot make the control group " + group.string() + ": " + failed.message();
      return;
    }
    folder_ = group;
    first_ = std::filesystem::exists(group / "memory.limit_in_bytes");
    const std::filesystem::path file = group / (first_ ? "memory.limit_in_bytes" : "memory.max");
    put(file, limit);
    put(group / (first_ ? "memory.memsw.limit_in_bytes" : "memory.swap.max"), first_ ? limit : 0);
    const int64_t taken = number(file);
    if (taken <= 0 || taken > limit) why_ = file.string() + " takes no limit";
  }
  ~ControlGroup() {
    // What was killed a moment ago may still be on its way out.
    std::error_code failed;
    for (int i = 0; i < 100 && !folder_.empty(); ++i) {
      if (std::filesystem::remove(folder_, failed)) break;
      usleep(10'000);
    }
  }
  ControlGroup(const ControlGroup&) = delete;
  ControlGroup& operator=(const ControlGroup&) = delete;

  const std::string& why() const { return why_; }  // there is none; "" when there is
  // The file that a process enters itself into by writing "0" (Launch::processes of cli_fixture.h).
  std::string processes() const { return folder_ / "cgroup.procs"; }
  int64_t peak() const {
    return number(folder_ / (first_ ? "memory.max_usage_in_bytes" : "memory.peak"));
  }
  // Processes that the system killed because the limit was reached.
  int64_t kills() const {
    std::ifstream in(folder_ / (first_ ? "memory.oom_control" : "memory.events"));
    std::string name;
    for (int64_t value = 0; in >> name >> value;) {
      if (name == "oom_kill") return value;
    }
    return 0;
  }

  // Runs a command inside. Its exit code; 0 - signal when a signal ended it.
  int run(std::vector<std::string> command) const {
    std::vector<char*> argv;
    for (std::string& word : command) argv.push_back(word.data());
    argv.push_back(nullptr);
    const std::string file = processes();
    const pid_t pid = fork();
    if (pid == 0) {
      enter(file.c_str());
      execvp(argv[0], argv.data());
      _exit(127);
    }
    int status = 0;
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }

  // The calling process enters the group of processes(), or ends: for use between fork and exec.
  static void enter(const char* processes) {
    const int group = open(processes, O_WRONLY | O_CLOEXEC);
    if (write(group, "0", 1) != 1) _exit(126);
  }

 private:
  static int64_t number(const std::filesystem::path& file) {
    int64_t value = 0;
    std::ifstream(file) >> value;
    return value;
  }
  static void put(const std::filesystem::path& file, int64_t value) {
    if (std::filesystem::exists(file)) std::ofstream(file) << value;
  }

  // The root of the hierarchy. But a limit that somebody put on this process goes on holding for
  // what it starts: then the group is made below, where the tighter of both counts.
  std::filesystem::path find_parent() {
    if (const char* given = std::getenv("EBB_TEST_CGROUP")) return given;
    std::ifstream in("/proc/self/cgroup");
    std::string own;
    std::filesystem::path root;
    bool first = false;
    for (std::string line; std::getline(in, line);) {
      const std::string path = line.substr(line.rfind(':') + 1);
      if (line.find(":memory:") != std::string::npos) {
        own = path;
        root = "/sys/fs/cgroup/memory";
        first = true;
      } else if (line.rfind("0::", 0) == 0 && !first) {
        own = path;
        root = "/sys/fs/cgroup";
      }
    }
    if (root.empty()) return {};
    if (geteuid() != 0) {
      why_ = "only root can make a memory control group; EBB_TEST_CGROUP can name a folder of one";
      return {};
    }
    std::filesystem::path parent = root;
    std::filesystem::path above = root;
    for (const auto& part : std::filesystem::path(own).relative_path()) {
      above /= part;
      const int64_t limit = number(above / (first ? "memory.limit_in_bytes" : "memory.max"));
      if (limit > 0 && limit < int64_t{1} << 60) parent = root / own.substr(1);
    }
    if (!first) {
      std::ofstream(parent / "cgroup.subtree_control") << "+memory";
      std::ifstream on(parent / "cgroup.subtree_control");
      std::string names;
      std::getline(on, names);
      if (names.find("memory") == std::string::npos) {
        why_ = parent.string() + " hands no memory controller on to groups below it";
        return {};
      }
    }
    return parent;
  }

  std::filesystem::path folder_;
  bool first_ = false;  // version 1
  std::string why_;
};

}  // namespace ebb
