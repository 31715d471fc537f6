// What else ranks do together: draw pictures, measure themselves and their link.
#include <signal.h>

#include <sstream>

#include "cli_ranks_fixture.h"

namespace ebb::cli_fixture {
namespace {

class CliRankVerbs : public CliRanks {
 protected:
  static Args drawing(const std::string& from, const std::string& out, const Args& more = {}) {
    return Args{"sample", "--from", from, "--out", out, "--steps", "3", "--seed", "5"} + more;
  }
  static Args bench(const Args& more = {}) {
    return Args{"bench", "--image-size", "8", "--batch", "6", "--rounds", "2"} + model() +
           Args{"--depth", "2", "--memory", "300M"} + more;
  }
  Result over(int n, const Args& args) const {
    Result r = run(args, ranks(n));
    EXPECT_EQ(r.code, 0) << r.story();
    return r;
  }
  // As one rank says it for all.
  static void expect_refused_once(const Result& r, int code,
                                  const std::vector<std::string>& nouns) {
    expect_refused(r, code, nouns);
    EXPECT_EQ(r.err.find("error: ", 1), std::string::npos) << r.story();
  }
};

// Uneven shares, a rank that has none, and every kind of file.
TEST_F(CliRankVerbs, PicturesAreTheFilesOfOneProcess) {
  succeed(training("run", {"--steps", "2", "--lr", "0.01"}));
  const auto expect_same = [&](int n, const std::string& out, const Args& more) {
    succeed(drawing("run", "one-" + out, more));
    over(n, drawing("run", "all-" + out, more));
    if (fs::is_directory(at("one-" + out))) return expect_same_files("one-" + out, "all-" + out);
    EXPECT_FALSE(file("one-" + out).empty());
    EXPECT_TRUE(file("one-" + out) == file("all-" + out)) << n << " ranks: " << out;
  };
  expect_same(3, "grid.png", {"--classes", "2,0", "--count", "4", "--batch", "2"});
  expect_same(2, "set.npz", {"--count", "3"});
  expect_same(3, "values.npy", {"--classes", "1", "--count", "5"});
  expect_same(3, "folder", {"--classes", "3", "--count", "1", "--weights", "raw"});
}

TEST_F(CliRankVerbs, WhatCannotBeDrawnIsSaidOnceWithItsCode) {
  succeed(training("run", {"--steps", "2"}));
  const auto refused = [&](int code, const Args& args, const std::vector<std::string>& nouns) {
    expect_refused_once(run(args, ranks(2)), code, nouns);
    EXPECT_FALSE(fs::exists(at("a.png")));
  };
  spill(at("cut.safetensors"), slurp(checkpoint("run", 2)).substr(0, 9000));
  refused(5, drawing("cut.safetensors", "a.png"), {"cut.safetensors"});
  refused(5, drawing("nowhere", "a.png"), {"--from", "nowhere"});
  refused(5, drawing("run", "no/such/folder/a.png"), {"no/such/folder"});
  refused(3, drawing("run", "a.png", {"--memory", "20M"}), {"--memory 20.0 MiB"});
  refused(2, drawing("run", "a.png", {"--ranks", "pipe=2"}), {"--ranks", "pipe=2", "sample"});
  refused(2, drawing("run", "a.png", {"--ranks", "data=3"}), {"3 processes", "found 2"});
  const Result alone = run(drawing("run", "a.png", {"--ranks", "data=2"}));
  expect_refused(alone, 2, {"--ranks", "2 processes"});
  EXPECT_TRUE(contains(alone.err_line(1), "mpiexec -n 2 ebb sample")) << alone.story();
}

TEST_F(CliRankVerbs, ASignalToOneEndsTheDrawingOfAll) {
  succeed(training("run", {"--steps", "2"}));
  const std::string out = at("folder");  // named in full, so that ranks are found by it
  Child child(drawing("run", out, {"--count", "200000", "--batch", "1"}), ranks(2));
  while (child.running() && files_below(out).size() < 3) usleep(10'000);
  const int rank = last_rank();
  ASSERT_GT(rank, 0);
  kill(rank, SIGTERM);
  const Result r = child.wait();
  EXPECT_EQ(r.code, 128 + SIGTERM) << r.story();
  EXPECT_FALSE(contains(r.out, "wrote")) << r.story();
}

TEST_F(CliRankVerbs, ABenchSaysWhereTheTimeOfEachRankGoes) {
  for (const char* layout : {"data=3", "pipe=2"}) {
    const int n = layout[5] - '0';
    const Json told = parsed(over(n, bench({"--json", "--ranks", layout, "--link", "1G,1ms"})));
    EXPECT_EQ(told["layout"], layout);
    EXPECT_EQ(told["link_bytes_per_second"], 125e6);
    EXPECT_EQ(told["link_latency_seconds"], 1e-3);
    ASSERT_EQ(told["ranks"].size(), static_cast<size_t>(n));
    double most = 0;
    for (const Json& rank : told["ranks"]) {
      EXPECT_GT(rank["sent_bytes"], 0);
      EXPECT_EQ(rank["sent_bytes"], rank["planned_sent_bytes"]) << rank;
      EXPECT_GT(rank["compute_seconds"], 0);
      EXPECT_LE(rank["process_peak_bytes"], rank["planned_process_bytes"]);
      EXPECT_LE(rank["step_seconds"], told["step_seconds"]);
      most = std::max(most, rank["compute_seconds"].get<double>());
    }
    EXPECT_EQ(told["ranks"][told["slowest_rank"].get<size_t>()]["compute_seconds"], most);
    for (const char* key : {"model_gflops", "sgemm_gflops", "images_per_second"}) {
      EXPECT_GT(told[key], 0) << key;
    }
  }
}

// With a line on the link and a table on ranks, which fit a terminal.
TEST_F(CliRankVerbs, ABenchIsReadOnATerminalOfEightyColumns) {
  std::istringstream lines(over(2, bench()).out);
  std::string all;
  for (std::string line; std::getline(lines, line); all += line + "\n") {
    EXPECT_LE(line.size(), 80u) << line;
  }
  for (const char* part : {"link between ranks: ", "(measured", "\n     1 ", "slowest: rank "}) {
    EXPECT_TRUE(contains(all, part)) << "no '" << part << "' in\n" << all;
  }
  expect_refused(run(bench({"--ranks", "data=2"})), 2, {"--ranks", "2 processes"});
  expect_refused(run(bench({"--link", "1G,1us"})), 2, {"--link", "one process"});
  expect_refused_once(run(bench({"--link", "fast"}), ranks(2)), 2, {"--link", "fast"});
  expect_refused_once(run(bench({"--recalibrate"}), ranks(2)), 2, {"--recalibrate", "--ranks"});
}

TEST_F(CliRankVerbs, ARunMeasuresItsLinkAndSaysWhoIsSlowest) {
  const auto said = [&](const std::string& out, const Args& more) {
    return over(2, training(out, settings(3) + Args{"--ranks", "pipe=2"} + more)).out;
  };
  const std::string measured = said("measured", {});
  EXPECT_TRUE(contains(measured, "link between ranks: ")) << measured;
  EXPECT_TRUE(contains(measured, "slowest: rank ")) << measured;
  EXPECT_FALSE(contains(said("given", {"--link", "1G,50us"}), "link between ranks"));
  const std::vector<Json> steps = log("measured");
  ASSERT_EQ(steps.size(), 3u);
  for (const Json& step : steps) {
    EXPECT_LT(step["slowest_rank"], 2);
    EXPECT_GE(step["slowest_compute_seconds"], step["compute_seconds"]);
    EXPECT_GT(step["compute_seconds"], 0);
    EXPECT_GT(step["wait_seconds"].get<double>() + step["exchange_seconds"].get<double>(), 0);
  }
}

}  // namespace
}  // namespace ebb::cli_fixture
