// The label table's gradient and updates in the rows that a batch touches: the bits of the whole
// table's.
#include "cli_ranks_fixture.h"
#include "kernels/cpu/kernels.h"
#include "op_case.h"
#include "step_runs.h"

namespace ebb {
namespace {

constexpr double kDoubleSum = 1e-12;
constexpr AdamW kAdam = {0, 0.9, 0.999, 1e-8, 0, true};

AdamW adam(double decay, bool ema) {
  AdamW op = kAdam;
  op.decay = decay;
  op.ema = ema;
  return op;
}

TEST(LabelRowsOps, AgreeWithTheReference) {
  for (const int64_t D : {1, 13, 50, 300}) {
    check_against_reference(LabelRowsBackward{7, D, 9});
    check_against_reference(AddLabelRows{D, 9});
    for (const int64_t rows : {5, 2000}) {
      check_against_reference(LabelRowsNorm{rows, D, 9, 3}, {.tolerance = kDoubleSum});
    }
    for (const bool ema : {false, true}) {
      check_against_reference(LabelRowsUpdate{40, D, 9, adam(0.1, ema)});
      check_against_reference(LabelRowsCatchUp{7, 40, D, adam(0, ema)});
      check_against_reference(LabelRowsCatchUp{0, 40, D, adam(0.1, ema)});
    }
  }
}

TEST(LabelRowsOps, ANormThatIsNotFiniteChangesNothing) {
  Check check{.tolerance = kExact};
  check.adjust = [](OpValues<double>& v) { v.reads[1] = {INFINITY, 1.0}; };
  check_against_reference(LabelRowsUpdate{40, 13, 9, adam(0.1, true)}, check);
}

// Chunks of the sum end within rows, and the last one is short.
TEST(LabelRowsOps, TheNormHasTheBitsOfTheWholeTables) {
  constexpr int64_t kRows = 301, kD = 77, kSlots = 50;
  Random random(5);
  const LabelRowsNorm some{kRows, kD, kSlots, 0};
  const OpValues<double> in = make_inputs(some, random, 1);
  Column whole(kRows * kD, 0.0);
  for (int64_t s = 0; s < kSlots; ++s) {
    const double* slot = in.reads[0].data() + s * (kD + 1);
    if (slot[kD] > 0)
      std::copy_n(slot, kD, whole.data() + (static_cast<int64_t>(slot[kD]) - 1) * kD);
  }
  const OpValues<double> all{{whole}, {Column(1)}, {}};
  const double norm = run_on_device(some, in, test_scalars(), std::byte{1}).writes[0][0];
  EXPECT_GT(norm, 0);
  EXPECT_EQ(
      norm,
      run_on_device(SquaredNorm{kRows * kD, 0}, all, test_scalars(), std::byte{1}).writes[0][0]);
}

// ---- many updates -------------------------------------------------------------------------------

// A table and its moments, as one of the two ways keeps them.
struct Table {
  std::vector<float> w, m, v, ema;
  std::vector<int32_t> done;
  std::vector<double> history = std::vector<double>(kHistorySize);

  Table(int64_t rows, int64_t D) : m(rows * D), v(rows * D), done(rows) {
    Random random(3);
    for (const double x : random_column(rows * D, random)) w.push_back(static_cast<float>(x));
    ema = w;
    ema[D] = 0.5f;  // of a row that has no other trace
    w[2 * D] = ema[2 * D] = -0.0f;
  }
  template <typename T>
  static std::byte* bytes(std::vector<T>& values) {
    return reinterpret_cast<std::byte*>(values.data());
  }
  std::vector<std::byte*> in_rows() {
    return {bytes(w), bytes(m), bytes(v), bytes(done), bytes(history), bytes(ema)};
  }
  std::vector<std::byte*> whole() { return {bytes(w), bytes(m), bytes(v), bytes(ema)}; }
};

void run_cpu(const OpParams& op, std::vector<const std::byte*> reads,
             std::vector<std::byte*> updates, const Scalars& scalars) {
  std::vector<std::byte> scratch(cpu::scratch_of(op));
  Call call;
  call.reads = reads;
  call.updates = updates;
  call.scratch = scratch;
  call.scalars = &scalars;
  cpu::run_op(op, call);
}

// Longer than the history is: rows that return later, rows that never do.
TEST(LabelRows, RowsThatReturnAfterManyUpdatesHaveTheBitsOfTheWholeTable) {
  constexpr int64_t kRows = 1500, kD = 5, kSlots = 3;
  for (const double decay : {0.0, 0.1}) {
    Table some(kRows, kD), all(kRows, kD);
    LabelRowsUpdate update{kRows, kD, kSlots, adam(decay, true)};
    AdamW whole_update = update.adam;
    whole_update.n = kRows * kD;
    Random random(17);
    for (int64_t k = 0; k < 2 * kHistory + 100; ++k) {
      Scalars scalars = training_scalars(k);
      scalars.lr *= 1 + 0.5f * static_cast<float>(k % 7);
      scalars.ema_decay = k < 5 ? 1 : 0.99;
      std::vector<float> drows(kSlots * (kD + 1)), whole(kRows * kD);
      for (int64_t s = 0; s < kSlots; ++s) {
        // Three rows at any time, and now and then one of many.
        const auto row = static_cast<int64_t>(s == 2 && k % 400 == 0 ? 100 + random() % 1000
                                                                     : 3 * s + random() % 3);
        float* slot = drows.data() + s * (kD + 1);
        slot[kD] = static_cast<float>(row + 1);
        for (int64_t i = 0; i < kD; ++i) {
          slot[i] = whole[row * kD + i] = static_cast<float>(random() % 1000) - 500;
        }
      }
      const float clip[2] = {k % 50 == 3 ? INFINITY : 1.0f, 0.25f};
      const auto* factor = reinterpret_cast<const std::byte*>(clip);
      if (k % 10 == 0) {
        const int32_t y[4] = {7, static_cast<int32_t>(random() % kRows), 7, 0};
        LabelRowsCatchUp read{4, kRows, kD, update.adam};
        run_cpu(read, {reinterpret_cast<const std::byte*>(y)}, some.in_rows(), scalars);
        for (const int32_t row : y) {
          ASSERT_EQ(std::memcmp(&some.w[row * kD], &all.w[row * kD], kD * 4), 0) << k;
        }
      }
      run_cpu(update, {Table::bytes(drows), factor}, some.in_rows(), scalars);
      run_cpu(whole_update, {Table::bytes(whole), factor}, all.whole(), scalars);
    }
    run_cpu(LabelRowsCatchUp{0, kRows, kD, update.adam}, {}, some.in_rows(), {});
    const auto same = [](const std::vector<float>& a, const std::vector<float>& b) {
      return std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
    };
    EXPECT_TRUE(same(some.w, all.w) && same(some.m, all.m) && same(some.v, all.v));
    EXPECT_TRUE(same(some.ema, all.ema));
  }
}

// ---- steps --------------------------------------------------------------------------------------

// What steps leave behind once it is settled, but for what only rows have.
Bits settled(const DitConfig& config, StepSpec spec, const Choices& choices, int64_t steps) {
  spec.choices = choices;
  std::vector<Program> programs;
  programs.push_back(write_step(config, spec, cpu_device()));
  if (leaves_updates(config, spec)) programs.push_back(write_settle(config, spec, cpu_device()));
  const auto count = static_cast<int>(programs.size());
  Rig machine(std::move(programs), Executor::Mode::debug_memory);
  machine.set_weights(config);
  Random random(23);
  for (int64_t k = 0; k < steps; ++k) {
    machine.set_batch(config, spec.batch);
    machine.set(kBatchY, random_labels(spec.batch, k % 2 == 0 ? 3 : config.classes, random));
    machine.executor().run(training_scalars(k));
  }
  if (count > 1) machine.executor(1).run({});
  Bits bits = results(machine);
  std::erase_if(bits, [](const auto& each) {
    return each.first.starts_with("done.") || each.first.starts_with("history.");
  });
  return bits;
}

TEST(LabelRows, EveryWayThroughAStepHasTheBitsOfTheWholeTable) {
  const OneThread one_thread;
  constexpr int64_t kBatch = 5, kSteps = 12;
  DitConfig config = small_config();
  config.classes = 40;
  const Storage rows{.label_rows = kBatch};
  for (const float clip : {0.0f, 0.05f}) {
    const StepSpec spec = updating(clip, kBatch);
    const Bits whole = settled(config, spec, {}, kSteps);
    const std::vector<Choices> ways = {
        {.storage = rows},
        {.micro_batch = 2, .storage = rows},
        {.micro_batch = 2, .layer_major = true, .release = true, .storage = rows}};
    for (const Choices& way : ways) expect_same(whole, settled(config, spec, way, kSteps));
    StepSpec tree = spec;
    tree.leaves = 4;
    expect_same(settled(config, tree, {}, kSteps),
                settled(config, tree, {.storage = rows}, kSteps));
  }
}

}  // namespace
}  // namespace ebb

// ---- runs ---------------------------------------------------------------------------------------

namespace ebb::cli_fixture {
namespace {

class CliRankLabelRows : public CliRanks {
 protected:
  static Args rows(const char* word) { return {"--label-rows", word, "--ema", "0.9"}; }
};

TEST_F(CliRankLabelRows, CheckpointsAreThoseOfTheWholeTable) {
  ASSERT_EQ(run(training("whole", settings(40) + rows("off"))).code, 0);
  const Result r = run(training("rows", settings(40) + rows("on")));
  ASSERT_EQ(r.code, 0) << r.story();
  EXPECT_TRUE(tensors("rows", 40) == tensors("whole", 40));
  ASSERT_EQ(run(training("resumed", settings(13) + rows("on"))).code, 0);
  const Args resume = {"train", "--resume", "--out", "resumed", "--steps", "40"};
  ASSERT_EQ(run(resume + Args{"--label-rows", "off"}).code, 0);
  EXPECT_TRUE(tensors("resumed", 40) == tensors("whole", 40));
}

TEST_F(CliRankLabelRows, FourRanksHaveTheirBits) {
  ASSERT_EQ(run(training("whole", settings(20) + rows("off"))).code, 0);
  train_over(4, "ranks", 20, Args{"--ranks", "data=4", "--shard", "off"} + rows("on"));
  EXPECT_TRUE(tensors("ranks", 20) == tensors("whole", 20));
  train_over(2, "stages", 20, Args{"--ranks", "pipe=2"} + rows("on"));
  EXPECT_TRUE(tensors("stages", 20) == tensors("whole", 20));
  const Args tree = {"--sum", "tree:4"};
  ASSERT_EQ(run(training("whole_tree", settings(20) + tree + rows("off"))).code, 0);
  train_over(4, "tree", 20, Args{"--ranks", "data=4", "--shard", "off"} + tree + rows("on"));
  EXPECT_TRUE(tensors("tree", 20) == tensors("whole_tree", 20));
}

TEST_F(CliRankLabelRows, AreRefusedByNameWhereTheyCannotBe) {
  for (const auto& [flag, word] :
       std::vector<std::pair<std::string, std::string>>{{"--optimizer", "lion"},
                                                        {"--moments", "8bit"},
                                                        {"--classes", "0"},
                                                        {"--label-rows", "some"}}) {
    Args flags = rows("on") + Args{flag, word};
    const Result r = run(training("no", settings(2) + flags));
    EXPECT_EQ(r.code, 2) << r.story();
    EXPECT_TRUE(contains(r.err, flag)) << r.story();
  }
}

}  // namespace
}  // namespace ebb::cli_fixture
