// The machine that plans are made for.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace ebb {

// What was measured of a machine: how long operations take, what a process takes besides its plan,
// what is available. A value that never changes; copies are cheap and safe from any thread.
class MeasuredMachine {
 public:
  // How long each of the operations took that are timed.
  struct Times {
    std::vector<double> seconds;  // none: it failed
    bool busy = false;            // others had more than a little of the CPUs meanwhile
  };

  struct Options {
    int threads = 0;                // of every run; 0: OMP_NUM_THREADS, else one for each CPU
    std::filesystem::path offload;  // a directory on a disk that runs may use; empty: none
    std::filesystem::path cache;    // a file that keeps the times; empty: measured every time
    // Who times the operations. It may have time_operations() run in another process, where what
    // this takes is no part of this process.
    std::function<Times(int threads)> time = time_operations;
    std::function<void(const std::string& line)> say = {};  // is told what a person should know
  };

  // Measures this machine, for some seconds and within 80 MB where the cache does not know it. What
  // the process has by now counts in every plan, so open data later. One thread at a time, while
  // nothing else runs. Fails with Exit::disk where `offload` cannot be used.
  static MeasuredMachine measure(const Options& options);
  static MeasuredMachine measure() { return measure(Options()); }
  static Times time_operations(int threads);

  // Where the program keeps its times; an empty path if there is no place for them.
  static std::filesystem::path usual_cache();

  // The machine that json() or `ebb machine --json` has described in a file; `offload` is one of
  // its directories, or nothing. Plans for it are as made there, to the byte; a run needs this
  // machine to be of that kind, and cannot use the directory. Fails with Exit::usage.
  static MeasuredMachine read(const std::filesystem::path& file, const std::string& offload = "");
  std::string json() const;
  // The same from that text itself; `where` is what messages call it.
  static MeasuredMachine from_json(const std::string& text, const std::string& where,
                                   const std::string& offload = "");

  int threads() const;
  int64_t available_bytes() const;  // that a process may take
  int64_t outside_bytes() const;    // that a process takes besides its plan and its data

  // For Ebb's own use.
  struct Impl;
  explicit MeasuredMachine(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}
  const Impl& impl() const { return *impl_; }

 private:
  std::shared_ptr<const Impl> impl_;
};

}  // namespace ebb
