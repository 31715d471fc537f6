#include "machine/process.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <string>

namespace ebb {

namespace {

constexpr int64_t kUnlimited = std::numeric_limits<int64_t>::max();

// "VmRSS:   1234 kB" of a /proc file, in bytes; 0 when absent.
int64_t proc_field(const char* file, const std::string& key) {
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    if (line.rfind(key + ":", 0) == 0) return std::atoll(line.c_str() + key.size() + 1) * 1024;
  }
  return 0;
}

int64_t read_number(const std::string& file, int64_t absent) {
  std::ifstream in(file);
  std::string word;
  if (!(in >> word) || word == "max") return absent;
  return std::atoll(word.c_str());
}

// The tightest limit - use of a cgroup and its parents. `path` is from /proc/self/cgroup.
int64_t cgroup_left(const std::string& root, std::string path, const char* limit_file,
                    const char* use_file) {
  int64_t left = kUnlimited;
  while (true) {
    const std::string folder = root + path;
    const int64_t limit = read_number(folder + "/" + limit_file, kUnlimited);
    if (limit < (int64_t{1} << 60)) {
      left = std::min(left, std::max<int64_t>(0, limit - read_number(folder + "/" + use_file, 0)));
    }
    if (path.empty() || path == "/") return left;
    path.resize(path.rfind('/'));
  }
}

int64_t cgroup_left() {
  std::ifstream in("/proc/self/cgroup");
  int64_t left = kUnlimited;
  for (std::string line; std::getline(in, line);) {
    const size_t first = line.find(':');
    const size_t second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const std::string path = line.substr(second + 1);
    if (controllers.empty()) {
      left = std::min(left, cgroup_left("/sys/fs/cgroup", path, "memory.max", "memory.current"));
    } else if (controllers.find("memory") != std::string::npos) {
      left = std::min(left, cgroup_left("/sys/fs/cgroup/memory", path, "memory.limit_in_bytes",
                                        "memory.usage_in_bytes"));
    }
  }
  return left;
}

}  // namespace

int64_t process_resident_bytes() { return proc_field("/proc/self/status", "VmRSS"); }
int64_t process_peak_bytes() { return proc_field("/proc/self/status", "VmHWM"); }

int64_t available_memory_bytes() {
  return std::min(proc_field("/proc/meminfo", "MemAvailable"), cgroup_left());
}

double cpu_seconds_of_others() {
  std::ifstream file("/proc/stat");
  std::string cpu;
  int64_t user = 0, nice = 0, system = 0, idle = 0, wait = 0, irq = 0, softirq = 0, steal = 0;
  file >> cpu >> user >> nice >> system >> idle >> wait >> irq >> softirq >> steal;
  const auto busy = static_cast<double>(user + nice + system + irq + softirq + steal);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  rusage own{};
  getrusage(RUSAGE_SELF, &own);
  return busy / static_cast<double>(sysconf(_SC_CLK_TCK)) - seconds(own.ru_utime) -
         seconds(own.ru_stime);
}

}  // namespace ebb
