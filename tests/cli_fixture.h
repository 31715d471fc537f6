// Runs the built program as a user does, for the cli_*_test.cpp files: in a folder of its own, with
// its output, exit code and peak memory captured.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "control_group.h"
#include "formats/atomic_file.h"
#include "formats/safetensors.h"
#include "temp_folder.h"

namespace ebb::cli_fixture {

namespace fs = std::filesystem;
using Args = std::vector<std::string>;
using Json = nlohmann::json;

inline Args operator+(Args left, const Args& right) {
  left.insert(left.end(), right.begin(), right.end());
  return left;
}

struct Result {
  std::string command, out, err;
  int code = -1;           // of exit; 0 - signal when a signal ended it
  int64_t peak_bytes = 0;  // largest resident size, as the system saw it

  // Line `index` of stderr; "" when there are fewer.
  std::string err_line(int index) const {
    size_t begin = 0;
    for (; index > 0; --index) {
      begin = err.find('\n', begin);
      if (begin == std::string::npos) return "";
      ++begin;
    }
    return err.substr(begin, err.find('\n', begin) - begin);
  }
  std::string story() const {
    return "$ " + command + "\nexit " + std::to_string(code) + "\nstdout: " + out +
           "\nstderr: " + err;
  }
};

struct Launch {
  fs::path folder;         // the working directory
  int64_t file_limit = 0;  // RLIMIT_FSIZE in bytes; 0: none
  unsigned seconds = 60;   // a program that hangs is ended by SIGALRM
  int threads = 1;
  const char* out = nullptr;  // where stdout goes instead of into Result::out
  const char* err = nullptr;  // and stderr
  std::string calibration = EBB_CALIBRATION_FILE;
  std::string processes;  // of a control group: a file that the program enters itself into
  Args launcher = {};     // words before the program's own: mpiexec and what it is told
};

// A running program. Ends it when forgotten.
class Child {
 public:
  Child(const Args& args, const Launch& launch) {
    // ./check points the same tests at a binary that was built with sanitizers.
    const char* other = std::getenv("EBB_BINARY");
    Args words = launch.launcher + Args{other ? other : EBB_BINARY} + args;
    result_.command = "ebb";
    for (const std::string& arg : args) result_.command += " " + (arg.empty() ? "''" : arg);
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    std::string threads = "OMP_NUM_THREADS=" + std::to_string(launch.threads);
    std::string calibration = "EBB_CALIBRATION=" + launch.calibration;
    std::vector<char*> environment = {threads.data(), calibration.data()};
    for (char** entry = environ; *entry != nullptr; ++entry) {
      const std::string_view name = *entry;
      if (name.starts_with("OMP_") || name.starts_with("EBB_CALIBRATION=")) continue;
      environment.push_back(*entry);
    }
    environment.push_back(nullptr);
    out_ = memfd_create("stdout", MFD_CLOEXEC);
    err_ = memfd_create("stderr", MFD_CLOEXEC);
    pid_ = fork();
    if (pid_ == 0) become(argv.data(), environment.data(), launch);
  }
  ~Child() {
    if (pid_ > 0) {
      kill(pid_, SIGKILL);
      wait();
    }
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  void send(int signal) const { kill(pid_, signal); }
  pid_t pid() const { return pid_; }
  // Whether the program has come to the point where it catches this signal.
  bool catches(int signal) const {
    std::ifstream status("/proc/" + std::to_string(pid_) + "/status");
    for (std::string word; status >> word;) {
      if (word != "SigCgt:") continue;
      status >> word;
      return (std::stoull(word, nullptr, 16) >> (signal - 1) & 1) != 0;
    }
    return false;
  }
  bool running() const {
    siginfo_t info = {};
    return waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
           info.si_pid == 0;
  }
  Result wait() {
    int status = 0;
    rusage use = {};
    while (wait4(pid_, &status, 0, &use) < 0 && errno == EINTR) {
    }
    pid_ = -1;
    result_.code = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
    result_.peak_bytes = int64_t{use.ru_maxrss} * 1024;
    result_.out = contents(out_);
    result_.err = contents(err_);
    return result_;
  }

 private:
  // Only what is safe between fork and exec.
  [[noreturn]] void become(char** argv, char** environment, const Launch& launch) const {
    dup2(launch.out != nullptr ? open(launch.out, O_WRONLY) : out_, STDOUT_FILENO);
    dup2(launch.err != nullptr ? open(launch.err, O_WRONLY) : err_, STDERR_FILENO);
    signal(SIGHUP, SIG_DFL);  // the tests themselves may run under nohup
    signal(SIGINT, SIG_DFL);
    const int empty = open("/dev/null", O_RDONLY);
    dup2(empty, STDIN_FILENO);
    if (launch.file_limit > 0) {
      const auto bytes = static_cast<rlim_t>(launch.file_limit);
      const rlimit limit = {bytes, bytes};
      setrlimit(RLIMIT_FSIZE, &limit);
    }
    if (!launch.processes.empty()) ControlGroup::enter(launch.processes.c_str());
    alarm(launch.seconds);
    if (chdir(launch.folder.c_str()) == 0) execve(argv[0], argv, environment);
    _exit(127);
  }
  static std::string contents(int file) {
    std::string text(static_cast<size_t>(lseek(file, 0, SEEK_END)), '\0');
    const ssize_t got = pread(file, text.data(), text.size(), 0);
    text.resize(static_cast<size_t>(std::max<ssize_t>(0, got)));
    close(file);
    return text;
  }

  pid_t pid_ = -1;
  int out_ = -1, err_ = -1;
  Result result_;
};

inline std::string slurp(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

inline void spill(const fs::path& path, const std::string& bytes) {
  fs::create_directories(path.parent_path());
  fs::remove(path);
  std::ofstream(path, std::ios::binary) << bytes;
}

// Paths of the files below a folder, relative to it, sorted.
inline std::vector<std::string> files_below(const fs::path& folder) {
  std::vector<std::string> names;
  if (!fs::exists(folder)) return names;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (!entry.is_directory()) names.push_back(fs::relative(entry.path(), folder).string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

inline bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

enum class Remedy { wanted, optional };

// The program ended with `code`, and its one error line names all of `nouns`.
inline void expect_refused(const Result& r, int code, const std::vector<std::string>& nouns,
                           Remedy remedy = Remedy::wanted) {
  EXPECT_EQ(r.code, code) << r.story();
  EXPECT_EQ(r.err_line(0).rfind("error: ", 0), 0u) << r.story();
  for (const std::string& noun : nouns) {
    EXPECT_TRUE(contains(r.err_line(0), noun)) << "no '" << noun << "' in\n" << r.story();
  }
  if (remedy == Remedy::wanted) {
    EXPECT_EQ(r.err_line(1).rfind("  ", 0), 0u) << "no remedy in\n" << r.story();
  }
}

// An array in numpy's format, version 1.
inline std::string npy(const std::string& type, const std::string& shape, const std::string& data) {
  std::string header =
      "{'descr': '" + type + "', 'fortran_order': False, 'shape': " + shape + ", }";
  header.resize((10 + header.size() + 1 + 63) / 64 * 64 - 10 - 1, ' ');
  header += '\n';
  std::string bytes = "\x93NUMPY";
  bytes += '\x01';
  bytes += '\0';
  bytes += static_cast<char>(header.size() & 0xff);
  bytes += static_cast<char>(header.size() >> 8);
  return bytes + header + data;
}

template <typename T>
std::string raw(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

class CliTest : public testing::Test {
 protected:
  CliTest() {
    launch_.folder = folder_;
    calibrate();
  }
  ~CliTest() override {
    for (const std::string& name : files_below(folder_)) {
      EXPECT_FALSE(name.ends_with(".tmp")) << "left behind: " << name;
    }
  }

  // The first run on a machine measures it and says so. One file serves all tests of a build, and
  // is there before any of them looks at what the program says.
  static void calibrate() {
    static const int kCode = calibrate(1);
    EXPECT_EQ(kCode, 0);
  }
  // For runs with so many threads: it is measured for each number.
  static int calibrate(int threads) {
    Launch launch;
    launch.folder = fs::temp_directory_path();
    launch.seconds = 300;  // with sanitizers
    launch.threads = threads;
    const int code = run(Args{"plan", "--image-size", "8", "--batch", "1"} + model(), launch).code;
    keep_for_good(launch.calibration);
    return code;
  }

  // What a busy machine measured expires, and would be measured again in the midst of a test.
  static void keep_for_good(const std::string& calibration) {
    const DirectoryLock lock(fs::path(calibration).parent_path());
    std::ifstream file(calibration);
    const Json found = Json::parse(file);
    Json kept = found;
    for (Json& machine : kept["machines"]) machine["expires"] = 0;
    if (kept != found) write_file_atomically(calibration, kept.dump());
  }

  Result run(const Args& args) const { return run(args, launch_); }
  static Result run(const Args& args, const Launch& launch) { return Child(args, launch).wait(); }
  Result succeed(const Args& args) const {
    Result result = run(args);
    EXPECT_EQ(result.code, 0) << result.story();
    return result;
  }
  // stdout as one JSON object; a null when it is anything else.
  Json json(const Args& args) const { return parsed(succeed(args)); }
  static Json parsed(const Result& result) {
    Json value = Json::parse(result.out, nullptr, false);
    EXPECT_TRUE(value.is_object()) << result.story();
    return value;
  }

  fs::path at(const std::string& name) const { return folder_ / name; }
  std::string file(const std::string& name) const { return slurp(at(name)); }

  // 8x8 gray pictures with labels 0 .. classes-1, in the folder "idx".
  void write_idx(int count = 32, int classes = 4) const {
    std::string images = {0, 0, 8, 3, 0, 0, 0, static_cast<char>(count), 0, 0, 0, 8, 0, 0, 0, 8};
    std::string labels = {0, 0, 8, 1, 0, 0, 0, static_cast<char>(count)};
    for (int i = 0; i < count; ++i) {
      for (int p = 0; p < 64; ++p) images += static_cast<char>(i * 37 + p * (i % 7 + 1));
      labels += static_cast<char>(i % classes);
    }
    spill(at("idx/train-images-idx3-ubyte"), images);
    spill(at("idx/train-labels-idx1-ubyte"), labels);
  }
  // Latents (1,4,8,8) as fast-DiT writes them, in the folder "latents".
  void write_features(int count = 8, int classes = 2) const {
    for (int64_t i = 0; i < count; ++i) {
      std::vector<float> values(256);
      for (size_t k = 0; k < values.size(); ++k) {
        values[k] = 0.01f * static_cast<float>((k * 7 + i * 31) % 200) - 1;
      }
      spill(at("latents/x_features/" + std::to_string(i) + ".npy"),
            npy("<f4", "(1, 4, 8, 8)", raw(values)));
      spill(at("latents/x_labels/" + std::to_string(i) + ".npy"),
            npy("<i8", "(1,)", raw(std::vector<int64_t>{i % classes})));
    }
  }

  static Args model() { return {"--width", "16", "--depth", "1", "--heads", "2", "--patch", "4"}; }
  // A run in the folder `out` that neither saves nor draws unless `more` says so.
  static Args training(const std::string& out, const Args& more = {},
                       const std::string& data = "idx") {
    return Args{"train", "--data", data, "--out", out, "--batch", "4"} + model() +
           Args{"--sample-every", "0"} + more;
  }

  fs::path checkpoint(const std::string& run_name, int64_t step) const {
    char name[40];
    std::snprintf(name, sizeof(name), "step-%09ld.safetensors", static_cast<long>(step));
    return folder_ / run_name / "checkpoints" / name;
  }
  // Names and bytes of a checkpoint's tensors, in the order of the file.
  std::vector<std::pair<std::string, std::string>> tensors(const std::string& run_name,
                                                           int64_t step) const {
    const SafetensorsReader reader(checkpoint(run_name, step));
    std::map<uint64_t, std::pair<std::string, std::string>> by_place;
    for (const TensorEntry& entry : reader.tensors()) {
      std::string bytes(entry.bytes(), '\0');
      reader.read(entry, bytes.data(), entry.bytes());
      by_place[entry.begin] = {entry.name, std::move(bytes)};
    }
    std::vector<std::pair<std::string, std::string>> all;
    for (auto& [place, tensor] : by_place) all.push_back(std::move(tensor));
    return all;
  }
  // Its tensors under other metadata, every hash right.
  void copy_with_metadata(const fs::path& from, const fs::path& to,
                          const std::map<std::string, std::string>& changes) const {
    const SafetensorsReader reader(from);
    std::vector<std::string> bytes;
    std::vector<TensorData> all;
    bytes.reserve(reader.tensors().size());
    for (const TensorEntry& entry : reader.tensors()) {
      bytes.emplace_back(static_cast<size_t>(entry.bytes()), '\0');
      reader.read(entry, bytes.back().data(), entry.bytes());
      all.push_back({entry.name, entry.type, entry.shape, bytes.back().data()});
    }
    std::map<std::string, std::string> metadata = reader.metadata();
    std::erase_if(metadata, [](const auto& entry) { return entry.first.starts_with("xxh3."); });
    for (const auto& [key, value] : changes) metadata[key] = value;
    write_safetensors(to, all, metadata, true);
  }

  std::vector<Json> log(const std::string& run_name) const {
    std::vector<Json> lines;
    std::ifstream in(folder_ / run_name / "log.jsonl");
    for (std::string line; std::getline(in, line);) {
      lines.push_back(Json::parse(line, nullptr, false));
      EXPECT_TRUE(lines.back().is_object()) << line;
    }
    return lines;
  }
  void expect_same_files(const std::string& left, const std::string& right) const {
    const auto names = files_below(at(left));
    EXPECT_FALSE(names.empty()) << left;
    EXPECT_EQ(names, files_below(at(right)));
    for (const std::string& name : names) {
      EXPECT_TRUE(slurp(at(left) / name) == slurp(at(right) / name)) << name << " differs";
    }
  }

  TempFolder temp_;
  fs::path folder_ = temp_.path();
  Launch launch_;
};

}  // namespace ebb::cli_fixture
