// What plan, bench and inspect tell other programs.
#include <set>
#include <sstream>

#include "base/threads.h"
#include "cli_fixture.h"

namespace ebb::cli_fixture {
namespace {

class CliPlan : public CliTest {
 protected:
  static void expect_keys(const Json& object, const std::vector<std::string>& keys) {
    for (const std::string& key : keys)
      EXPECT_TRUE(object.contains(key)) << key << " in " << object;
  }
};

TEST_F(CliPlan, TheJsonHasEveryKeyAndItsLedgerSumsToTheArena) {
  const Json plan = json(Args{"plan", "--json", "--image-size", "8", "--batch", "2"} + model());
  expect_keys(plan, {"model", "params", "batch", "micro_batch", "accumulation", "budget_bytes",
                     "fits", "process_bytes", "arena_bytes", "outside_bytes", "floor_bytes",
                     "ledger", "techniques", "predicted_step_seconds", "step_flops"});
  expect_keys(plan["ledger"],
              {"weight", "gradient", "moment", "ema", "activation", "scratch", "data", "exchange"});
  int64_t sum = 0;
  for (const auto& [purpose, bytes] : plan["ledger"].items()) {
    EXPECT_GE(bytes.get<int64_t>(), 0) << purpose;
    sum += bytes.get<int64_t>();
  }
  EXPECT_EQ(sum, plan["arena_bytes"]);
  EXPECT_EQ(plan["process_bytes"],
            plan["arena_bytes"].get<int64_t>() + plan["outside_bytes"].get<int64_t>());
  EXPECT_EQ(plan["micro_batch"].get<int64_t>() * plan["accumulation"].get<int64_t>(), 2);
  EXPECT_EQ(plan["fits"], true);
  EXPECT_GT(plan["predicted_step_seconds"], 0);
  EXPECT_GT(plan["step_flops"], 0);
  EXPECT_GE(plan["ledger"]["moment"].get<int64_t>(), 2 * plan["ledger"]["ema"].get<int64_t>());
  for (const Json& technique : plan["techniques"]) {
    expect_keys(technique, {"name", "setting", "class"});
  }
}

TEST_F(CliPlan, ATimelineHasEveryRankOfThePlanAndIsOfOnePlan) {
  const Args small = {"plan", "--image-size", "8", "--json",  "--width", "16", "--depth",
                      "2",    "--heads",      "2", "--patch", "4"};
  succeed(small + Args{"--batch", "4", "--ranks", "pipe=2", "--timeline", "t.svg"});
  const std::string drawn = file("t.svg");
  EXPECT_TRUE(drawn.starts_with("<svg ")) << drawn;
  for (const char* words : {">rank 0, blocks 0-0<", ">rank 1, blocks 1-1<", "--ranks pipe=2",
                            ">forward<", ">backward<", ">gradients of matrices<", ">update<"}) {
    EXPECT_TRUE(contains(drawn, words)) << words << "\n" << drawn;
  }
  for (const char* asked : {"--timeline", "--csv"}) {
    expect_refused(run(small + Args{"--batch", "max", asked, "none"}), 2, {asked, "--batch max"});
    EXPECT_FALSE(fs::exists(at("none")));
  }
}

TEST_F(CliPlan, ALargerBatchNeverTakesLess) {
  int64_t before = 0;
  for (const char* batch : {"1", "2", "4", "16"}) {
    const Json plan =
        json(Args{"plan", "--json", "--image-size", "8", "--batch", batch, "--sample-every", "0"} +
             model());
    EXPECT_GE(plan["arena_bytes"].get<int64_t>(), before);
    before = plan["arena_bytes"];
  }
}

TEST_F(CliPlan, TheLargestModelIsPlannedWithoutTakingItsMemory) {
  const Result result =
      run({"plan", "--model", "DiT-XL/2", "--batch", "8", "--memory", "1T", "--json"});
  ASSERT_EQ(result.code, 0) << result.story();
  const Json plan = parsed(result);
  EXPECT_EQ(plan["params"], 675129632);
  EXPECT_GT(plan["arena_bytes"], int64_t{675129632} * 16);
  EXPECT_LT(result.peak_bytes, int64_t{200} << 20);
}

TEST_F(CliPlan, TheNamedSizesHaveTheParametersOfTheReference) {
  const std::vector<std::pair<const char*, int64_t>> kCounts = {
      {"DiT-S/2", 32963360},   {"DiT-S/4", 32945024},   {"DiT-S/8", 33148160},
      {"DiT-B/2", 130512416},  {"DiT-B/4", 130475648},  {"DiT-B/8", 130881536},
      {"DiT-L/2", 458102816},  {"DiT-L/4", 458053760},  {"DiT-L/8", 458594816},
      {"DiT-XL/2", 675129632}, {"DiT-XL/4", 675074432}, {"DiT-XL/8", 675683072}};
  for (const auto& [name, count] : kCounts) {
    const Json plan = json({"plan", "--json", "--model", name, "--batch", "1", "--sample-every",
                            "0", "--memory", "1T"});
    EXPECT_EQ(plan["params"], count) << name;
    EXPECT_EQ(plan["model"], name);
  }
}

TEST_F(CliPlan, TheAnswerForPeopleNamesThePeakAndTheFit) {
  const Result result = succeed(Args{"plan", "--image-size", "8", "--batch", "2"} + model());
  for (const char* word : {"weight", "gradient", "moment", "ema", "outside", "process", "fits"}) {
    EXPECT_TRUE(contains(result.out, word)) << word << " in\n" << result.out;
  }
}

struct Row {
  std::string id;
  int64_t lower, upper, size, offset;
};

std::vector<Row> rows_of(const std::string& csv) {
  std::istringstream in(csv);
  std::string line;
  std::getline(in, line);
  EXPECT_EQ(line, "id,lower,upper,size,offset");
  std::vector<Row> rows;
  while (std::getline(in, line)) {
    std::istringstream fields(line);
    Row row;
    char comma = 0;
    std::getline(fields, row.id, ',');
    fields >> row.lower >> comma >> row.upper >> comma >> row.size >> comma >> row.offset;
    EXPECT_TRUE(fields && fields.peek() == EOF) << line;
    rows.push_back(row);
  }
  return rows;
}

TEST_F(CliPlan, ThePlacementNeverPutsTwoLiveBuffersOverEachOther) {
  const Json plan =
      json(Args{"plan", "--json", "--image-size", "8", "--batch", "2", "--csv", "plan.csv"} +
           model() + Args{"--depth", "2", "--sample-every", "0"});
  const auto rows = rows_of(file("plan.csv"));
  ASSERT_GT(rows.size(), 100u);
  int64_t end = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    const Row& a = rows[i];
    EXPECT_LT(a.lower, a.upper) << a.id;
    EXPECT_GT(a.size, 0) << a.id;
    EXPECT_GE(a.offset, 0) << a.id;
    end = std::max(end, a.offset + a.size);
    for (size_t j = 0; j < i; ++j) {
      const Row& b = rows[j];
      EXPECT_NE(a.id, b.id);
      const bool together = a.lower < b.upper && b.lower < a.upper;
      const bool apart = a.offset >= b.offset + b.size || b.offset >= a.offset + a.size;
      EXPECT_TRUE(!together || apart) << a.id << " lies over " << b.id;
    }
  }
  EXPECT_EQ(end, plan["arena_bytes"]);
}

TEST_F(CliPlan, ABenchIsOneJsonObject) {
  const Json bench =
      json(Args{"bench", "--json", "--image-size", "8", "--batch", "2", "--rounds", "2"} + model());
  expect_keys(bench, {"model", "batch", "tokens", "step_seconds", "model_gflops", "sgemm_gflops",
                      "of_sgemm", "process_peak_bytes"});
  EXPECT_FALSE(bench.contains("recalibrated_step_seconds"));
  EXPECT_EQ(bench["batch"], 2);
  EXPECT_EQ(bench["tokens"], 4);
  for (const char* key : {"step_seconds", "model_gflops", "sgemm_gflops", "of_sgemm"}) {
    EXPECT_GT(bench[key], 0) << key;
  }
}

TEST_F(CliPlan, AProfileHoldsEveryOpOfTheStepAndItsLimit) {
  const Args bench =
      Args{"bench", "--image-size", "8", "--batch", "2", "--rounds", "2", "--profile"} + model();
  const Json profile = json(bench + Args{"--json"})["profile"];
  EXPECT_GT(profile["flops_limit"], 0);
  EXPECT_GT(profile["bytes_limit"], 0);
  std::set<std::string> kinds;
  for (const Json& op : profile["ops"]) {
    expect_keys(op, {"op", "shape", "calls", "seconds", "predicted_seconds", "gflops",
                     "gbytes_per_second", "limit", "of_limit"});
    kinds.insert(op["op"]);
    EXPECT_GT(op["seconds"], 0) << op;
    EXPECT_GT(op["calls"], 0) << op;
    EXPECT_TRUE(op["limit"] == "flops" || op["limit"] == "bytes") << op;
  }
  for (const char* kind : {"linear", "linear_backward_params", "attention", "attention_backward",
                           "add_gated", "adaln", "ddpm_loss", "squared_norm", "adamw"}) {
    EXPECT_EQ(kinds.count(kind), 1) << kind;
  }
  const std::string table = succeed(bench).out;
  for (const char* word : {"of limit", "GFLOP/s", "adamw", "if every op were at its limit"}) {
    EXPECT_NE(table.find(word), std::string::npos) << table;
  }
}

TEST_F(CliPlan, InspectTellsWhatIsInADataFolder) {
  write_idx(32, 4);
  const Json idx = json({"inspect", "idx", "--json"});
  EXPECT_EQ(idx["count"], 32);
  EXPECT_EQ(idx["classes"], 4);
  EXPECT_EQ(idx["height"], 8);
  write_features(8, 2);
  const Json latents = json({"inspect", "latents", "--json"});
  EXPECT_EQ(latents["channels"], 4);
  EXPECT_EQ(latents["pixels"], false);
}

TEST_F(CliPlan, InspectTellsWhatIsInACheckpointAndInABatch) {
  write_idx();
  succeed(training("run", {"--steps", "2"}));
  const Json saved = json({"inspect", checkpoint("run", 2), "--json"});
  EXPECT_EQ(saved["metadata"]["ebb.step"], "2");
  EXPECT_EQ(saved["tensors"]["ema.blocks.0.attn.qkv.weight"]["shape"], Json({48, 16}));
  const Json batch =
      json({"inspect", EBB_SOURCE_DIR "/tests/golden/ddpm_small.batch.safetensors", "--json"});
  EXPECT_EQ(batch["tensors"]["t"]["type"], "I64");
  EXPECT_EQ(batch["values"], 1542);
}

TEST_F(CliPlan, AnAnswerThatCannotBeWrittenIsAnError) {
  launch_.out = "/dev/full";
  EXPECT_EQ(run(Args{"plan", "--json", "--image-size", "8", "--batch", "2"} + model()).code, 5);
}

TEST_F(CliPlan, TheWholeRunsTimeAndDiskAreForetold) {
  write_idx();
  const Args run =
      Args{"--data", "idx", "--batch", "4", "--steps", "10", "--save-every", "4"} + model();
  const Json plan = json(Args{"plan", "--json", "--sample-every", "0"} + run);
  const double step = plan["predicted_step_seconds"];
  EXPECT_NEAR(plan["total_seconds"].get<double>(), 10 * step, 1e-9);
  EXPECT_NEAR(plan["first_checkpoint_seconds"].get<double>(), 4 * step, 1e-9);
  EXPECT_TRUE(plan["first_picture_seconds"].is_null());
  const Json kept = json(Args{"plan", "--json", "--sample-every", "0", "--keep", "1"} + run);
  EXPECT_EQ(plan["disk_total_bytes"], 3 * plan["checkpoint_bytes"].get<int64_t>());
  EXPECT_EQ(kept["disk_total_bytes"], 2 * plan["checkpoint_bytes"].get<int64_t>());

  succeed(Args{"train", "--out", "r", "--sample-every", "0"} + run);
  const auto real = static_cast<double>(fs::file_size(checkpoint("r", 10)));
  EXPECT_NEAR(plan["checkpoint_bytes"].get<double>(), real, 0.15 * real);

  const Json drawing = json(Args{"plan", "--json", "--sample-every", "3"} + run);
  const double drawn = drawing["first_picture_seconds"].get<double>() - 3 * step;
  EXPECT_GT(drawn, 0);
  EXPECT_NEAR(drawing["total_seconds"].get<double>(), 10 * step + 4 * drawn, 1e-9);
}

TEST_F(CliPlan, TimeAndDiskAreSaidInWordsByPlanAndTrain) {
  write_idx();
  const Args run =
      Args{"--data", "idx", "--batch", "4", "--steps", "3", "--count", "1", "--sample-steps", "2"} +
      model();
  for (const Args& words : {Args{"plan"}, Args{"train", "--out", "r"}}) {
    const std::string out = succeed(words + run).out;
    EXPECT_TRUE(contains(out, "for 3 steps; first pictures and checkpoint after ")) << out;
    EXPECT_TRUE(contains(out, " a checkpoint")) << out;
  }
  EXPECT_TRUE(
      contains(succeed({"plan", "--model", "DiT-XL/2", "--batch", "1"}).out, " s an image"));
}

// The README and ./demo send people to it.
TEST_F(CliPlan, TheRecipeForPhotosIsAPlanAndARun) {
  write_idx();
  const Args recipe = {"--config", EBB_SOURCE_DIR "/examples/photos.toml"};
  const Json plan = json(Args{"plan", "--json", "--channels", "3", "--classes", "0"} + recipe);
  EXPECT_GT(plan["total_seconds"], 0);
  succeed(Args{"train", "--data", "idx", "--out", "r", "--image-size", "8", "--steps", "1",
               "--batch", "2", "--save-every", "0", "--sample-every", "0"} +
          recipe);
}

TEST_F(CliPlan, AbsurdSizesAreRefusedAtOnce) {
  launch_.seconds = 10;
  for (const Args& sizes :
       {Args{"--width", "65536", "--depth", "1024", "--heads", "1024", "--patch", "2", "--batch",
             "1048576"},
        Args{"--width", "4", "--depth", "1", "--heads", "1", "--patch", "1", "--image-size",
             "16384", "--batch", "1048576"},
        Args{"--width", "65536", "--depth", "1", "--heads", "1", "--patch", "1", "--image-size",
             "16384", "--channels", "1024", "--batch", "1024"}}) {
    const Result result = run(Args{"plan", "--json"} + sizes);
    expect_refused(result, 2, {});
    EXPECT_TRUE(result.out.empty());
  }
}

TEST_F(CliPlan, MoreThreadsThanCpusAreCalibratedAsTheCpusAre) {
  calibrate(allowed_cpus());
  launch_.seconds = 20;
  const Result result =
      succeed({"plan", "--model", "DiT-S/8", "--batch", "2", "--threads", "1024", "--json"});
  EXPECT_FALSE(contains(result.err, "calibration")) << result.story();
}

TEST_F(CliPlan, HoldsTheDataToWhatTrainHoldsItTo) {
  std::string images = {0, 0, 8, 3, 0, 0, 64, 0, 0, 0, 0, 32, 0, 0, 0, 32};  // 16 MiB
  images.resize(16 + (16 << 20), 'x');
  spill(at("large/train-images-idx3-ubyte"), images);
  for (const std::string verb : {"train", "plan"}) {
    Args args = training("run", {"--steps", "1", "--memory", "24M"}, "large");
    args[0] = verb;
    expect_refused(run(args), 4, {"16.0 MiB", "12.0 MiB"});
  }
}

}  // namespace
}  // namespace ebb::cli_fixture
