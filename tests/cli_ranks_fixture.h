// The program over ranks, as mpiexec starts it.
#pragma once

#include "cli_fixture.h"

namespace ebb::cli_fixture {

inline constexpr const char* kLauncher = "/usr/bin/mpiexec.mpich";

class CliRanks : public CliTest {
 protected:
  void SetUp() override {
    if (!fs::exists(kLauncher)) GTEST_SKIP() << "no " << kLauncher;
    write_idx();
  }

  Launch ranks(int n) const {
    Launch launch = launch_;
    launch.launcher = {kLauncher, "-n", std::to_string(n)};
    return launch;
  }
  static Args settings(int steps) {
    return {"--depth", "4", "--batch",      "8",   "--steps",        std::to_string(steps),
            "--clip",  "1", "--save-every", "2",   "--sample-every", "0",
            "--keep",  "0", "--memory",     "300M"};
  }
  void train_over(int n, const std::string& out, int steps, const Args& more) const {
    const Result r = run(training(out, settings(steps) + more), ranks(n));
    ASSERT_EQ(r.code, 0) << r.story();
  }
  // Every tensor of a checkpoint, by bytes: what its metadata says of settings may differ.
  std::map<std::string, std::string> tensors(const std::string& out, int step) const {
    const SafetensorsReader file(
        launch_.folder / out / fmt::format("checkpoints/step-{:09}.safetensors", step), Exit::disk);
    std::map<std::string, std::string> all;
    for (const TensorEntry& entry : file.tensors()) {
      std::string& bytes = all[entry.name];
      bytes.resize(static_cast<size_t>(tensor_bytes(entry.type, entry.shape).value()));
      file.read_range(entry, 0, bytes.data(), std::ssize(bytes));
    }
    return all;
  }
  // The process of a rank, 0 where there is none: ranks are the launcher's grandchildren, and are
  // found by what they run.
  int last_rank() const {
    int rank = 0;
    for (const auto& entry : fs::directory_iterator("/proc")) {
      std::ifstream words(entry.path() / "cmdline"), name(entry.path() / "comm");
      const std::string all{std::istreambuf_iterator<char>(words), {}};
      std::string program;
      name >> program;
      if (program.starts_with("ebb") && contains(all, launch_.folder.string())) {
        rank = std::max(rank, std::atoi(entry.path().filename().c_str()));
      }
    }
    return rank;
  }
};

}  // namespace ebb::cli_fixture
