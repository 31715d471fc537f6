// --memory over its whole range, from the floor to what the fastest way takes: the process stays
// within it, uses what was foretold, and computes the same.
#include <csignal>
#include <limits>

#include "cli_fixture.h"
#include "control_group.h"
#include "formats/safetensors.h"

namespace ebb::cli_fixture {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

class CliMemory : public CliTest {
 protected:
  CliMemory() { write_idx(); }

  // Tens of megabytes, of which the planner can save a third: the fixture's model is too small for
  // its memory to be told from the process around it.
  static Args middle(const Args& more = {}) {
    return Args{"--width", "128", "--depth", "6", "--heads", "4", "--patch", "2", "--batch", "32"} +
           more;
  }
  static Args planning(const Args& more = {}) {
    Args args = training("unused", more);
    args[0] = "plan";
    return args + Args{"--json"};
  }
  static Args memory(int64_t bytes) { return {"--memory", std::to_string(bytes)}; }
  int64_t floor_of(const Args& settings) const { return json(planning(settings))["floor_bytes"]; }
  // The smallest budget: every technique is in use.
  int64_t tight(const Args& settings) const { return floor_of(settings); }

  // "needs at least 12.3 MiB": the bytes behind the words, 0 when they are not there.
  static int64_t size_after(const std::string& text, const std::string& words) {
    const size_t at = text.find(words);
    if (at == std::string::npos) return 0;
    return static_cast<int64_t>(std::atof(text.c_str() + at + words.size()) *
                                static_cast<double>(kMiB));
  }

  void expect_within(const std::string& name, const Result& result, int64_t budget,
                     size_t steps) const {
    const auto lines = log(name);
    ASSERT_EQ(lines.size(), steps) << result.story();
    for (const Json& line : lines) EXPECT_LE(line["process_peak_bytes"], budget) << line;
    EXPECT_LE(result.peak_bytes, budget) << result.story();
  }
};

TEST_F(CliMemory, EveryBudgetFromTheFloorToAmpleIsKeptAndUsed) {
  const Json ample = json(planning(middle()));
  const int64_t low = ample["floor_bytes"];
  const int64_t high = ample["process_bytes"];
  ASSERT_GT(high - low, 10 * kMiB) << "nothing to choose from";
  for (int i = 0; i < 6; ++i) {
    const int64_t budget = low + (high - low) * i / 5;
    SCOPED_TRACE(budget);
    const Json plan = json(planning(middle(memory(budget))));
    const int64_t planned = plan["process_bytes"];
    EXPECT_LE(planned, budget);
    const std::string name = "run" + std::to_string(i);
    const Result result =
        succeed(training(name, middle(memory(budget)) + Args{"--steps", "3", "--save-every", "0"}));
    expect_within(name, result, budget, 3);
    if (log(name).empty()) continue;
    EXPECT_GE(log(name).back()["process_peak_bytes"].get<int64_t>(),
              planned - std::max(planned / 100, 8 * kMiB))
        << "the plan is for more than is used";
  }
}

TEST_F(CliMemory, TheFloorThatARefusalNamesIsEnough) {
  const Result refused = run(planning(middle({"--memory", "1M"})));
  expect_refused(refused, 3, {"needs at least"});
  const int64_t floor = parsed(refused)["floor_bytes"];
  const Result result =
      succeed(training("run", middle(memory(floor)) + Args{"--steps", "2", "--save-every", "0"}));
  expect_within("run", result, floor, 2);
}

TEST_F(CliMemory, MoreMemoryIsNeverSlower) {
  const Json ample = json(planning(middle()));
  const int64_t low = ample["floor_bytes"];
  const int64_t high = ample["process_bytes"];
  double before = std::numeric_limits<double>::infinity();
  for (int i = 0; i < 12; ++i) {
    const int64_t budget = low + (high + kMiB - low) * i / 11;
    const Json plan = parsed(run(planning(middle(memory(budget)))));
    if (plan["fits"] == false) {
      EXPECT_EQ(i, 0) << "less was enough, " << budget << " is not";
      continue;
    }
    EXPECT_LE(plan["predicted_step_seconds"].get<double>(), before) << "at " << budget;
    before = plan["predicted_step_seconds"];
  }
}

TEST_F(CliMemory, SavingAndDrawingStayWithinATightBudget) {
  const Args settings = middle({"--sample-every", "1", "--sample-steps", "2", "--count", "2"});
  const int64_t budget = tight(settings);
  const Result result = succeed(training(
      "run", settings + memory(budget) + Args{"--steps", "3", "--save-every", "1", "--keep", "2"}));
  expect_within("run", result, budget, 3);
  EXPECT_TRUE(fs::exists(checkpoint("run", 3)));
  EXPECT_EQ(files_below(at("run/samples")).size(), 3u);
}

// Measuring the machine takes memory too, and the first run does it under its budget.
TEST_F(CliMemory, TheFirstRunOnAMachineStaysWithinItsBudget) {
  const int64_t budget = tight(middle()) + kMiB;  // some pages more than with a calibration
  launch_.calibration = at("calibration.json").string();
  const Result result =
      succeed(training("run", middle(memory(budget)) + Args{"--steps", "2", "--save-every", "0"}));
  EXPECT_TRUE(contains(result.err, "calibration: ")) << result.story();
  EXPECT_TRUE(fs::exists(at("calibration.json")));
  // What measured was a process of its own: result.peak_bytes is the larger of both.
  for (const Json& line : log("run")) EXPECT_LE(line["process_peak_bytes"], budget) << line;
}

TEST_F(CliMemory, AKilledRunInATightBudgetEndsWithTheBitsOfOneThatWasNot) {
  const Args clipped = middle({"--clip", "1"});
  const Args settings =
      clipped + memory(tight(clipped)) + Args{"--steps", "14", "--save-every", "3", "--keep", "2"};
  succeed(training("straight", settings));
  Args command = training("killed", settings);
  int kills = 0;
  for (const size_t moment : {4, 10}) {
    Child child(command, launch_);
    while (child.running() && log("killed").size() < moment) usleep(1000);
    child.send(SIGKILL);
    kills += child.wait().code == -SIGKILL;
    command = {"train", "--resume", "--out", "killed"};
  }
  EXPECT_GT(kills, 0) << "the run was over before it could be killed";
  succeed(command);
  expect_same_files("straight/checkpoints", "killed/checkpoints");
  EXPECT_EQ(log("killed").size(), 14u);
}

// A checkpoint's tensors, in the order of the file, say nothing of the way in which they were
// computed.
TEST_F(CliMemory, CheckpointsOfEveryBudgetHoldTheSameTensorsBitForBit) {
  const Args two = middle({"--steps", "2", "--clip", "1"});
  succeed(training("ample", two + Args{"--micro-batch", "32", "--recompute", "none"}));
  for (const Args& way :
       {memory(tight(two)), Args{"--micro-batch", "5", "--order", "layer", "--release", "on"},
        Args{"--micro-batch", "7", "--recompute", "all"}, Args{"--threads", "1"}}) {
    succeed(training("other", two + way));
    EXPECT_TRUE(tensors("ample", 2) == tensors("other", 2)) << testing::PrintToString(way);
    fs::remove_all(at("other"));
  }
}

// ---- the same gradients

class CliMemoryGrad : public CliMemory {
 protected:
  // Weights that training left, and a batch of 12 for them.
  CliMemoryGrad() {
    succeed(training("run", middle({"--steps", "2"})));
    write_batch(0);
  }
  void write_batch(int64_t first_label) const {
    constexpr int64_t kBatch = 12;
    std::vector<float> x(kBatch * 64), noise(kBatch * 64);
    std::vector<int64_t> t(kBatch), y(kBatch);
    for (int64_t i = 0; i < kBatch * 64; ++i) {
      x[i] = 0.01f * static_cast<float>(i * 37 % 200) - 1;
      noise[i] = 0.02f * static_cast<float>(i * 61 % 201) - 2;
    }
    for (int64_t i = 0; i < kBatch; ++i) {
      t[i] = i * 83;
      y[i] = (first_label + i) % 4;
    }
    write_safetensors(at("batch.safetensors"),
                      {{"x", TensorType::F32, {kBatch, 1, 8, 8}, x.data()},
                       {"noise", TensorType::F32, {kBatch, 1, 8, 8}, noise.data()},
                       {"t", TensorType::I64, {kBatch}, t.data()},
                       {"y", TensorType::I64, {kBatch}, y.data()}},
                      {}, false);
  }
  Args grad(const std::string& out, const Args& more) const {
    return Args{"grad",  "--weights", checkpoint("run", 2), "--batch-file", "batch.safetensors",
                "--out", out} +
           more;
  }
};

TEST_F(CliMemoryGrad, AreTheSameBytesUnderEveryBudgetOrderAndRecomputation) {
  succeed(grad("ample.safetensors", {"--micro-batch", "12"}));
  const std::string wanted = file("ample.safetensors");
  ASSERT_GT(wanted.size(), size_t{6 << 20});
  int refused = 0, done = 0;
  for (int64_t budget = 12 * kMiB; done < 6; budget += 3 * kMiB) {
    ASSERT_LT(budget, 200 * kMiB);
    const Result result = run(grad("g.safetensors", memory(budget)));
    if (result.code == 3) {
      ++refused;
      EXPECT_EQ(done, 0) << "a smaller budget was enough\n" << result.story();
      continue;
    }
    ASSERT_EQ(result.code, 0) << result.story();
    ++done;
    EXPECT_LE(result.peak_bytes, budget) << result.story();
    EXPECT_TRUE(file("g.safetensors") == wanted) << budget;
  }
  EXPECT_GT(refused, 0) << "the budgets were all ample";
  const std::vector<Args> kTechniques = {{"--order", "layer"},
                                         {"--order", "batch"},
                                         {"--recompute", "all"},
                                         {"--recompute", "none"},
                                         {"--recompute", "all", "--order", "layer"},
                                         {"--threads", "2"},
                                         {"--threads", "3"},
                                         {"--micro-batch", "1"}};
  for (const int threads : {2, 3}) ASSERT_EQ(calibrate(threads), 0);
  for (const Args& techniques : kTechniques) {
    succeed(grad("g.safetensors", Args{"--micro-batch", "5"} + techniques));  // 5 + 5 + 2
    EXPECT_TRUE(file("g.safetensors") == wanted) << testing::PrintToString(techniques);
  }
  write_batch(1);  // and the comparison can fail
  succeed(grad("g.safetensors", {}));
  EXPECT_FALSE(file("g.safetensors") == wanted);
}

// ---- what is refused

TEST_F(CliMemory, ABudgetBelowTheFloorNamesTheFloorAndTwoWaysOut) {
  const int64_t budget = floor_of(middle()) - 10 * kMiB;
  const Args below = middle(memory(budget));
  for (const Args& args : {training("out", below + Args{"--steps", "1"}), planning(below)}) {
    const Result result = run(args);
    expect_refused(result, 3, {"at least", "--memory", "--batch 32"});
    EXPECT_GT(size_after(result.err_line(0), "at least "), budget) << result.story();
    // What changes the training least of all that fits: a lossy technique, then half the depth. A
    // smaller batch alone would not be enough.
    for (const std::string way : {"--allow adam8 would need ", "--depth 3 would need "}) {
      EXPECT_GT(size_after(result.err_line(1), way), 0) << result.story();
      EXPECT_LE(size_after(result.err_line(1), way), budget) << result.story();
    }
  }
  EXPECT_FALSE(fs::exists(at("out")));
}

TEST_F(CliMemory, AWayOutThatIsNamedIsOne) {
  const Result refused = run(training("out", middle({"--memory", "20M", "--steps", "1"})));
  const std::string lossy = "adam8,bf16,ema16,galore";
  for (const auto& [how, change] : {std::pair{"--allow " + lossy, Args{"--allow", lossy}},
                                    std::pair{std::string("--depth 3"), Args{"--depth", "3"}}}) {
    const int64_t said = size_after(refused.err_line(1), how + " would need ");
    ASSERT_GT(said, 0) << refused.story();
    const int64_t enough = said + kMiB / 10;  // what is not printed
    const Result result = succeed(training(
        change[1], middle(memory(enough)) + change + Args{"--steps", "1", "--save-every", "0"}));
    expect_within(change[1], result, enough, 1);
  }
}

TEST_F(CliMemory, WordsThatAreNoBudgetAreRefused) {
  for (const std::string word : {"lots", "-1G", "12Q", "", "1e400", "nan", "2 G G"}) {
    expect_refused(run(training("out", {"--steps", "1", "--memory", word})), 2, {"--memory"},
                   Remedy::optional);
  }
  EXPECT_FALSE(fs::exists(at("out")));
}

TEST_F(CliMemory, ContradictingTechniquesAreRefusedAndBothNamed) {
  const Args train = training("out", {"--steps", "1"});
  expect_refused(run(train + Args{"--release", "on", "--order", "batch", "--micro-batch", "2"}), 2,
                 {"--release on", "--order batch", "--micro-batch 2"});
  expect_refused(run(train + Args{"--micro-batch", "5"}), 2, {"--micro-batch", "5", "--batch 4"});
  const std::string golden = EBB_SOURCE_DIR "/tests/golden/flow_small";
  expect_refused(run({"grad", "--weights", golden + ".weights.safetensors", "--batch-file",
                      golden + ".batch.safetensors", "--out", "g.safetensors", "--release", "on"}),
                 2, {"--release on"});
  // The same words without the contradiction.
  succeed(train + Args{"--release", "on", "--order", "batch", "--micro-batch", "4"});
}

TEST_F(CliMemory, UnknownTechniquesAreRefused) {
  const Args train = training("out", {"--steps", "1"});
  expect_refused(run(train + Args{"--recompute", "gellu"}), 2,
                 {"--recompute", "gellu", "did you mean", "gelu"});
  expect_refused(run(train + Args{"--recompute", "qkv+"}), 2, {"--recompute"});
  expect_refused(run(train + Args{"--order", "layers"}), 2, {"--order", "layers", "layer"},
                 Remedy::optional);
  for (const std::string zero : {"--batch", "--micro-batch"}) {
    expect_refused(run(train + Args{zero, "0"}), 2, {zero, "0"}, Remedy::optional);
  }
  EXPECT_FALSE(fs::exists(at("out")));
}

// ---- the largest batch

TEST_F(CliMemory, TheLargestBatchFitsAndTwiceOfItDoesNot) {
  const auto everything_kept = [](int64_t batch) {
    return Args{"--recompute", "none",  "--micro-batch", std::to_string(batch),
                "--order",     "batch", "--release",     "off"};
  };
  const int64_t budget = json(planning(middle()) + everything_kept(32))["process_bytes"];
  const auto with_batch = [&](int64_t batch) {
    return middle(memory(budget)) + Args{"--batch", std::to_string(batch)};
  };
  const Json largest = json(planning(middle(memory(budget)) + Args{"--batch", "max"}));
  EXPECT_EQ(largest["budget_bytes"], budget);
  const int64_t full = largest["largest_batch_at_full_speed"];
  const int64_t any = largest["largest_batch_at_any_speed"];
  EXPECT_NEAR(static_cast<double>(full), 32, 4) << "the budget is what batch 32 takes";
  EXPECT_GT(any, full);
  const Result result =
      succeed(training("run", with_batch(full) + Args{"--steps", "1", "--save-every", "0"}));
  expect_within("run", result, budget, 1);
  EXPECT_EQ(run(planning(with_batch(full)) + everything_kept(full)).code, 0);
  EXPECT_EQ(run(planning(with_batch(any))).code, 0);
  // A batch that goes through in micro-batches, one after the other, takes no more than they do: it
  // can be as large as Ebb counts. Layer by layer, all inputs of all blocks are there.
  EXPECT_EQ(any, 1 << 20);
  const Args by_layer = {"--order", "layer"};
  const Json layers = json(planning(middle(memory(budget)) + by_layer + Args{"--batch", "max"}));
  const int64_t most = layers["largest_batch_at_any_speed"];
  EXPECT_GT(most, full);
  EXPECT_EQ(run(planning(with_batch(most) + by_layer)).code, 0);
  EXPECT_EQ(run(planning(with_batch(2 * most) + by_layer)).code, 3);
}

// ---- a limit that the system enforces

TEST_F(CliMemory, ASystemLimitOfTheBudgetNeverEndsARun) {
  const int64_t budget = tight(middle());
  const ControlGroup group(budget);
  if (!group.why().empty()) GTEST_SKIP() << group.why();
  launch_.processes = group.processes();
  const Args settings = middle(memory(budget)) + Args{"--steps", "4", "--save-every", "2"};
  succeed(training("run", settings));
  EXPECT_EQ(log("run").size(), 4u);
  EXPECT_GT(group.peak(), budget / 2) << "the run was not in the group";
  EXPECT_EQ(group.kills(), 0);
  const ControlGroup half(budget / 2);  // and a limit can end one
  launch_.processes = half.processes();
  const Result killed = run(training("killed", settings));
  EXPECT_EQ(killed.code, -SIGKILL) << killed.story();
  EXPECT_EQ(half.kills(), 1);
}

}  // namespace
}  // namespace ebb::cli_fixture
