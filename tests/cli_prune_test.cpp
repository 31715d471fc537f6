// `ebb prune` as a user runs it: amounts, targets, masks, and what it refuses.
#include "cli_fixture.h"
#include "formats/pruned_json.h"
#include "prune/structure.h"
#include "prune_fixture.h"

namespace ebb::cli_fixture {
namespace {

class CliPrune : public CliTest {
 protected:
  CliPrune() { write({info_of(config_)}); }

  void write(const Written& w) const { write_checkpoint(at("a.safetensors"), w); }
  static Args prune(const Args& more) {
    return Args{"prune", "--from", "a.safetensors", "--out", "p.safetensors"} + more;
  }
  void expect_not_pruned(const Args& more, int code, const std::vector<std::string>& nouns) const {
    SCOPED_TRACE(testing::PrintToString(more));
    const auto before = files_below(folder_);
    expect_refused(run(prune(more)), code, nouns);
    EXPECT_EQ(files_below(folder_), before);
  }
  void write_mask(const std::vector<TensorData>& tensors) const {
    write_safetensors(at("m.safetensors"), tensors, {}, false);
  }
  CheckpointInfo pruned() const { return read_info(SafetensorsReader(at("p.safetensors"))); }

  const DitConfig config_ = prunable_config(4, 4);  // blocks of 4 heads and 128 MLP units
};

TEST_F(CliPrune, AmountsAreRemovedAndTheFileSaysSo) {
  const Result r = succeed(prune({"--heads", "0.25", "--mlp", "32", "--blocks", "1"}));
  EXPECT_TRUE(contains(r.out, "wrote p.safetensors")) << r.out;
  EXPECT_TRUE(contains(r.out, "4:128*4 -> 3:96*3")) << r.out;
  EXPECT_EQ(pruned().config.blocks, (std::vector<BlockShape>(3, {3, 96})));
  const Result shown = succeed({"inspect", "p.safetensors"});
  EXPECT_TRUE(contains(shown.out, "heads:mlp*blocks 3:96*3")) << shown.out;
}

TEST_F(CliPrune, ItCanBePrunedAgainAndDrawnFrom) {
  succeed(prune({"--heads", "1", "--by", "random", "--seed", "3"}));
  succeed({"prune", "--from", "p.safetensors", "--out", "q.safetensors", "--heads", "1", "--by",
           "random", "--seed", "3"});
  succeed(prune({"--heads", "2", "--by", "random", "--seed", "3"}));
  EXPECT_TRUE(file("p.safetensors") == file("q.safetensors"));
  succeed({"sample", "--from", "q.safetensors", "--count", "1", "--steps", "2", "--out", "g.png"});
}

TEST_F(CliPrune, ADryRunShowsEveryBlockAndWritesNothing) {
  const auto before = files_below(folder_);
  const Result r = succeed({"prune", "--from", "a.safetensors", "--heads", "0.5", "--blocks", "1",
                            "--batch", "4", "--dry-run"});
  EXPECT_EQ(files_below(folder_), before);
  for (const char* part : {"2 of 4", "128 of 128", "goes", "before", "after", "at batch 4",
                           "images/s", "parameters"}) {
    EXPECT_TRUE(contains(r.out, part)) << part << r.story();
  }
  std::istringstream lines(r.out);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 80u) << line;
}

TEST_F(CliPrune, JsonIsOneObject) {
  const Json j = json(prune({"--heads", "1", "--mlp", "0.25", "--batch", "4", "--json"}));
  const DitConfig after = pruned().config;
  EXPECT_EQ(j["params"], parameter_count(after));
  EXPECT_EQ(j["removed"]["params"], parameter_count(config_) - parameter_count(after));
  EXPECT_EQ(j["removed"]["heads"], 4);
  EXPECT_EQ(j["removed"]["mlp"], 4 * 32);
  EXPECT_EQ(j["removed"]["blocks"], 0);
  EXPECT_EQ(j["shapes"], Json::parse("[[3,96],[3,96],[3,96],[3,96]]"));
  EXPECT_GT(j["process_bytes"], j["floor_bytes"].get<int64_t>() - 1);
}

TEST_F(CliPrune, ScoresAndScopesDiffer) {
  std::map<std::string, std::string> by_record;
  for (const char* by : {"l1", "l2", "fisher", "random"}) {
    for (const char* scope : {"block", "model"}) {
      succeed(prune({"--heads", "0.25", "--mlp", "0.4", "--by", by, "--scope", scope}));
      by_record.emplace(pruned().pruned, std::string(by) + " " + scope);
    }
  }
  EXPECT_GE(by_record.size(), 7u);  // l1 and l2 may agree
}

TEST_F(CliPrune, ParametersAreATarget) {
  const int64_t wanted = parameter_count(config_) * 3 / 4;
  const Json j = json(prune({"--params", std::to_string(wanted), "--json"}));
  EXPECT_LE(j["params"], wanted);
  EXPECT_GT(j["params"], wanted - structure_params(config_, Structure::head));
  const Result enough = succeed(prune({"--params", "100000000"}));
  EXPECT_TRUE(contains(enough.out, "nothing goes")) << enough.out;
  expect_not_pruned({"--params", "1000"}, 2, {"--params 1000", "parameters are left"});
}

// The plan fits, and with any head or panel more it would not: a mask puts one back.
TEST_F(CliPrune, MemoryIsATargetThatIsHit) {
  write({info_of(prunable_config(4, 4, 128))});
  const Args plan = {"--batch", "8", "--json"};
  const Json whole = json(prune(Args{"--heads", "1", "--dry-run"} + plan));
  const int64_t budget = whole["floor_bytes"].get<int64_t>() - (3 << 20);
  const Json j = json(prune(Args{"--memory", std::to_string(budget)} + plan));
  EXPECT_TRUE(j["fits"]);
  EXPECT_LE(j["process_bytes"], budget);
  EXPECT_LE(j["floor_bytes"], budget);
  const PrunedRecord record = pruned_from_json(pruned().pruned, pruned().config, "p", Exit::disk);
  const auto with_one_more = [&](int64_t block, Structure kind, size_t count) {
    std::vector<std::vector<uint8_t>> memory;
    std::vector<TensorData> tensors;
    for (size_t b = 0; b < 4; ++b) {
      for (const Structure each : kStructures) {
        const auto& ranges = each == Structure::head ? record[b].heads : record[b].mlp;
        std::vector<uint8_t> mask(each == Structure::head ? 4 : 512);
        for (const int64_t i : indices_of(ranges)) mask[i] = 1;
        size_t left = static_cast<int64_t>(b) == block && each == kind ? count : 0;
        for (uint8_t& bit : mask) left -= left > 0 && bit == 0 ? (bit = 1) : 0;
        memory.push_back(mask);
        tensors.push_back({std::string(structure_name(each)) + "." + std::to_string(b),
                           TensorType::U8,
                           {std::ssize(mask)},
                           nullptr});
      }
    }
    for (size_t i = 0; i < tensors.size(); ++i) tensors[i].data = memory[i].data();
    write_mask(tensors);
    return json(prune(Args{"--mask", "m.safetensors", "--dry-run"} + plan))["floor_bytes"]
        .get<int64_t>();
  };
  EXPECT_LE(with_one_more(0, Structure::head, 0), budget);  // the mask says what was chosen
  for (const int64_t block : {0, 3}) {
    EXPECT_GT(with_one_more(block, Structure::head, 1), budget) << j.dump();
    EXPECT_GT(with_one_more(block, Structure::mlp, 48), budget) << j.dump();
  }
}

TEST_F(CliPrune, ABudgetThatNoPruningReachesIsCodeThree) {
  expect_not_pruned({"--memory", "3M", "--batch", "4"}, 3, {"--memory", "--batch 4", "at least"});
}

// A budget that the whole model does not fit: the refusal says what pruning for it would remove.
TEST_F(CliPrune, ABudgetThatCannotHoldNamesWhatPruningWouldGive) {
  const Args model = {"--width",    "192", "--depth",   "6", "--heads", "6", "--image-size", "8",
                      "--channels", "1",   "--classes", "3", "--patch", "2", "--batch",      "2"};
  const Json plan = json(Args{"plan", "--json", "--memory", "4G"} + model);
  const int64_t budget = plan["floor_bytes"].get<int64_t>() * 9 / 10;
  const Result r = run(Args{"plan", "--memory", std::to_string(budget)} + model);
  EXPECT_EQ(r.code, 3) << r.story();
  const std::string said =
      "`ebb prune --memory " + std::to_string(budget) + " --batch 2` would remove ";
  const size_t at = r.err.find(said);
  ASSERT_NE(at, std::string::npos) << r.story();
  const int percent = std::atoi(r.err.c_str() + at + said.size());
  EXPECT_GT(percent, 3) << r.err;
  EXPECT_LT(percent, 40) << r.err;
}

TEST_F(CliPrune, AmountsThatAreNoneAreRefused) {
  for (const char* flag : {"--heads", "--mlp", "--blocks"}) {
    for (const char* value : {"0", "1.0", "-0.5", "1.5", "-1", "nan", "all", ""}) {
      expect_not_pruned({flag, value}, 2, {flag});
    }
  }
  expect_not_pruned({"--heads", "4"}, 2, {"--heads 4", "block 0"});
  expect_not_pruned({"--heads", "0.99"}, 2, {"--heads 0.99", "all of"});
  expect_not_pruned({"--mlp", "128"}, 2, {"--mlp 128"});
  expect_not_pruned({"--heads", "16", "--scope", "model"}, 2, {"--heads 16", "16 heads"});
  expect_not_pruned({"--blocks", "3"}, 2, {"--blocks 3", "first and the last"});
  expect_not_pruned({"--heads", "0.1"}, 2, {"removes nothing"});
  expect_not_pruned({"--mlp", "1"}, 2, {"removes nothing", "rounded up"});
}

TEST_F(CliPrune, FlagsThatContradictOrWouldBeIgnoredAreRefused) {
  expect_not_pruned({}, 2, {"what is to go"});
  expect_not_pruned({"--heads", "1", "--seed", "4"}, 2, {"--seed", "random"});
  expect_not_pruned({"--blocks", "1", "--scope", "model"}, 2, {"--scope"});
  expect_not_pruned({"--mask", "m.safetensors", "--heads", "1"}, 2, {"--heads", "--mask"});
  expect_not_pruned({"--heads", "1", "--by", "taylr"}, 2, {"--by", "taylr"});
  expect_not_pruned({"--heads", "1", "--optimizer", "lion"}, 2, {"--optimizer", "adamw"});
  expect_refused(run({"prune", "--heads", "1", "--out", "p"}), 2, {"--from"});
  expect_refused(run({"prune", "--from", "a.safetensors", "--heads", "1"}), 2, {"--out"});
  Args onto_itself = prune({"--heads", "1"});
  onto_itself[4] = "./a.safetensors";
  expect_refused(run(onto_itself), 2, {"--out", "a.safetensors"});
}

TEST_F(CliPrune, MasksOfAnotherSizeTypeNameOrValueAreRefusedByName) {
  const std::vector<uint8_t> bytes = {1, 0, 1, 1, 1};
  const std::vector<float> floats = {1, 0, 0.5f, 1};
  const std::vector<double> doubles = {1, 0, 1, 1};
  const Args masked = {"--mask", "m.safetensors"};
  const auto expect = [&](const TensorData& tensor, const std::vector<std::string>& nouns) {
    write_mask({tensor});
    expect_not_pruned(masked, 2, nouns);
  };
  expect({"heads.0", TensorType::U8, {5}, bytes.data()}, {"heads.0", "[5]", "[4]"});
  expect({"heads.0", TensorType::U8, {2, 2}, bytes.data()}, {"heads.0", "[2,2]"});
  expect({"heads.0", TensorType::F64, {4}, doubles.data()}, {"heads.0", "F64"});
  expect({"heads.0", TensorType::F32, {4}, floats.data()}, {"heads.0", "0.5", "element 2"});
  expect({"heads.4", TensorType::U8, {4}, bytes.data()}, {"heads.4"});
  expect({"head.0", TensorType::U8, {4}, bytes.data()}, {"head.0"});
  expect({"blocks", TensorType::U8, {5}, bytes.data()}, {"blocks", "[5]"});
  const std::vector<int64_t> none(128), all(4, 1);
  expect({"blocks", TensorType::I64, {4}, none.data()}, {"blocks", "nothing that stays"});
  expect({"blocks", TensorType::I64, {4}, all.data()}, {"removes nothing"});
  spill(at("m.safetensors"), "nonsense");
  expect_not_pruned(masked, 2, {"m.safetensors"});
  expect_not_pruned({"--mask", "nosuch"}, 2, {"nosuch"});
  // One that is right, of all four types: the first block goes because it is said.
  const std::vector<uint8_t> blocks = {0, 1, 1, 1};
  const std::vector<float> heads = {1, 0, 0, 1};
  std::vector<int64_t> units(128, 1);
  units[5] = 0;
  write_mask({{"blocks", TensorType::BOOL, {4}, blocks.data()},
              {"heads.1", TensorType::F32, {4}, heads.data()},
              {"heads.2", TensorType::U8, {4}, bytes.data()},
              {"mlp.3", TensorType::I64, {128}, units.data()}});
  succeed(prune(masked));
  EXPECT_EQ(pruned().config.blocks, (std::vector<BlockShape>{{2, 128}, {3, 128}, {4, 127}}));
}

TEST_F(CliPrune, AMaskMayLeaveHalfABlockButNotAModelWithoutHeads) {
  const std::vector<int64_t> none(128);
  std::vector<TensorData> masks;
  for (int64_t i = 0; i < 4; ++i) {
    masks.push_back({"heads." + std::to_string(i), TensorType::I64, {4}, none.data()});
  }
  write_mask(masks);
  expect_not_pruned({"--mask", "m.safetensors"}, 2, {"all blocks", "no head"});
  // Block 0 loses its heads, block 1 its MLP, block 2 both.
  write_mask({{"heads.0", TensorType::I64, {4}, none.data()},
              {"mlp.1", TensorType::I64, {128}, none.data()},
              {"heads.2", TensorType::I64, {4}, none.data()},
              {"mlp.2", TensorType::I64, {128}, none.data()}});
  const Result r = succeed(prune({"--mask", "m.safetensors"}));
  EXPECT_TRUE(contains(r.out, "-> 0:128,4:0,4:128")) << r.out;
  EXPECT_EQ(pruned().config.blocks, (std::vector<BlockShape>{{0, 128}, {4, 0}, {4, 128}}));
  succeed({"prune", "--from", "p.safetensors", "--out", "q.safetensors", "--heads", "0.5"});
  const CheckpointInfo again = read_info(SafetensorsReader(at("q.safetensors")));
  EXPECT_EQ(again.config.blocks, (std::vector<BlockShape>{{0, 128}, {2, 0}, {2, 128}}));
  const PrunedRecord record = pruned_from_json(again.pruned, again.config, "q", Exit::disk);
  EXPECT_EQ(record[2].block, 3);
  EXPECT_TRUE(record[0].heads.empty());
  succeed({"sample", "--from", "q.safetensors", "--count", "1", "--steps", "2", "--out", "g.png"});
}

TEST_F(CliPrune, FilesThatAreNoCheckpointOfTheModelAreCodeFive) {
  expect_refused(run({"prune", "--from", "nosuch", "--heads", "1", "--out", "p"}), 5, {"nosuch"});
  fs::create_directory(at("empty"));
  expect_refused(run({"prune", "--from", "empty", "--heads", "1", "--out", "p"}), 5,
                 {"no checkpoint"});
  // Another model's tensors.
  Written w{info_of(config_)};
  w.besides = {{"ebb.model", file("a.safetensors").empty() ? "" : "{\"width\":32}"}};
  write(w);
  expect_not_pruned({"--heads", "1"}, 5, {"a.safetensors"});
  CheckpointInfo deeper = info_of(prunable_config(5, 4));
  w.besides = {{"ebb.model", checkpoint_metadata(deeper).at("ebb.model")}};
  write(w);
  expect_not_pruned({"--heads", "1"}, 5, {"blocks.4"});
  CheckpointInfo wider = info_of(prunable_config(4, 4, 64));
  w.besides = {{"ebb.model", checkpoint_metadata(wider).at("ebb.model")}};
  write(w);
  expect_not_pruned({"--heads", "1"}, 5, {"shape"});
  w.besides = {{"ebb.pruned", R"({"blocks":[{"block":0,"heads":"0-9","mlp":"0"}]})"}};
  write(w);
  expect_not_pruned({"--heads", "1"}, 5, {"ebb.pruned"});
  // Weights alone.
  const float one = 1;
  write_safetensors(at("a.safetensors"), {{"x", TensorType::F32, {1}, &one}}, {}, false);
  expect_not_pruned({"--heads", "1"}, 5, {"not a checkpoint of Ebb"});
}

TEST_F(CliPrune, FisherNeedsMomentsAndScoresNeedNumbers) {
  Written w{info_of(config_)};
  w.moments = false;
  write(w);
  expect_not_pruned({"--heads", "1", "--by", "fisher"}, 5, {"second moments", "fisher"});
  succeed(prune({"--heads", "1", "--by", "l1"}));
  fs::remove(at("p.safetensors"));
  w.value = [](const std::string& name, int64_t i) {
    return name == "blocks.0.attn.qkv.weight" && i == 7 ? NAN : value_of(name, i);
  };
  write(w);
  expect_not_pruned({"--heads", "1"}, 6, {"blocks.0.attn.qkv.weight"});
}

TEST_F(CliPrune, ADamagedFileAndAFullDiskLeaveNothingHalfWritten) {
  const std::string good = file("a.safetensors");
  for (const size_t from_end : {size_t{1}, good.size() / 3, good.size() / 2}) {
    std::string bad = good;
    bad[bad.size() - from_end] ^= 4;
    spill(at("a.safetensors"), bad);
    expect_not_pruned({"--heads", "1"}, 5, {"a.safetensors", "hash"});
  }
  spill(at("a.safetensors"), good.substr(0, good.size() - 100));
  expect_not_pruned({"--heads", "1"}, 5, {"a.safetensors"});
  spill(at("a.safetensors"), good);
  Launch small = launch_;
  small.file_limit = 100'000;
  expect_refused(run(prune({"--heads", "1"}), small), 5, {"p.safetensors", "write"});
  expect_refused(run({"prune", "--from", "a.safetensors", "--heads", "1", "--out", "no/p"}), 5,
                 {"no/p"});
  EXPECT_EQ(files_below(folder_), std::vector<std::string>{"a.safetensors"});
  // What stood there before stands there still.
  spill(at("p.safetensors"), "before");
  expect_refused(run(prune({"--heads", "1"}), small), 5, {"p.safetensors"});
  EXPECT_EQ(file("p.safetensors"), "before");
}

// What memory a sanitizer takes is not ours to bound: ./check leaves CliMemory* out there.
class CliMemoryOfPruning : public CliPrune {};

// Of 400 MB. Drawing takes the weights into memory, a quarter of the file: so much would be seen.
TEST_F(CliMemoryOfPruning, IsAFractionOfTheFile) {
  DitConfig config = prunable_config(14, 6, 384);
  Written w{info_of(config)};
  w.value = [](const std::string&, int64_t i) {
    return static_cast<float>(i % 1000 - 500) * 1e-6f;
  };
  write(w);
  constexpr int64_t kMost = 64 << 20;
  const auto bytes = static_cast<int64_t>(fs::file_size(at("a.safetensors")));
  EXPECT_GT(bytes, 6 * kMost);
  for (const Args& amounts : {Args{"--heads", "0.2", "--mlp", "0.5", "--by", "fisher"},
                              Args{"--params", "15000000", "--scope", "model"}}) {
    const Result r = succeed(prune(amounts));
    EXPECT_LE(r.peak_bytes, kMost) << r.story();
  }
  const Result control = succeed({"sample", "--from", "a.safetensors", "--count", "1", "--classes",
                                  "0", "--steps", "1", "--out", "g.png"});
  EXPECT_GT(control.peak_bytes, bytes / 4);
}

}  // namespace
}  // namespace ebb::cli_fixture
