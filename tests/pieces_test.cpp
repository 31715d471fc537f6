// A device that gives its memory in small pieces: no buffer lies across two, and nothing changes.
#include <gtest/gtest.h>

#include "device_fixture.h"
#include "step_runs.h"

namespace ebb {
namespace {

constexpr int64_t kBatch = 4;

// The CPU with other limits.
class InPieces final : public CpuLike {
 public:
  explicit InPieces(const Limits& limits) : limits_(limits) {}
  Limits limits() const override { return limits_; }

 private:
  const Limits limits_;
};

std::vector<Choices> ways(int64_t depth) {
  const Schedule lean = plain_schedule(std::vector<KeepSet>(depth));
  return {{}, {.micro_batch = 3, .layer_major = true, .release = true, .schedule = lean}};
}

int64_t largest_buffer(const Program& program) {
  int64_t most = 0;
  for (const Buffer& b : program.buffers) {
    if (!b.is_view() && !b.away()) most = std::max(most, Limits{}.aligned(b.bytes()));
  }
  return most;
}

TEST(Pieces, NoBufferLiesAcrossTwoAndTheBitsAreThoseOfOnePiece) {
  const OneThread one_thread;
  for (const ModelCase& m : model_cases()) {
    for (const Choices& way : ways(m.config.depth())) {
      SCOPED_TRACE(testing::Message() << m.name << way.release);
      const StepSpec spec = updating(0, kBatch);
      StepSpec chosen = spec;
      chosen.choices = way;
      const Program program = write_step(m.config, chosen, cpu_device());
      const int64_t most = largest_buffer(program);
      const Bits whole = run_with(m.config, spec, way);
      for (const int64_t piece : {most, most * 5 / 4 / 256 * 256 + 256, most * 3}) {
        const InPieces device({64, piece});
        const PlanSet set = make_plans({program}, device.limits());
        EXPECT_GT(set.arena_bytes, piece) << "it would be one piece";
        for (size_t i = 0; i < program.buffers.size(); ++i) {
          const Buffer& b = program.buffers[i];
          const int64_t begin = set.plans[0].offsets[i];
          if (b.is_view() || b.bytes() == 0 || set.plans[0].lives[i].empty()) continue;
          EXPECT_EQ(begin / piece, (begin + b.bytes() - 1) / piece) << b.name;
        }
        expect_same(whole, run_on(with_disk(middling_machine(device)), m.config, spec, way));
      }
    }
  }
}

TEST(Pieces, DebugMemoryPassesInThem) {
  const OneThread one_thread;
  const DitConfig config = small_config();
  const InPieces device({64, largest_buffer(write_step(config, step_spec(2), cpu_device()))});
  expect_same(
      run_with(config, updating(0, 2), {}),
      run_on(middling_machine(device), config, updating(0, 2), {}, Executor::Mode::debug_memory));
}

TEST(Pieces, EveryBufferIsAlignedAsTheDeviceAsks) {
  const Program program = write_step(small_config(), step_spec(2), cpu_device());
  const Limits wide{512};
  const PlanSet set = make_plans({program}, wide);
  for (size_t i = 0; i < program.buffers.size(); ++i) {
    if (program.buffers[i].is_view()) continue;
    EXPECT_EQ(set.plans[0].offsets[i] % 512, 0);
  }
  const PlanSet narrow = make_plans({program});
  EXPECT_THROW(validate_plan(narrow.plans[0], narrow.arena_bytes, wide), Bug);
}

TEST(Pieces, AValidatorOfItsOwnRefusesWhatLiesAcrossTwo) {
  const Program program = write_step(small_config(), step_spec(2), cpu_device());
  const PlanSet set = make_plans({program});  // in one piece
  const Limits pieces{64, largest_buffer(program)};
  EXPECT_NO_THROW(validate_plan(set.plans[0], set.arena_bytes));
  EXPECT_THROW(validate_plan(set.plans[0], set.arena_bytes, pieces), Bug);
}

TEST(Pieces, ABufferThatIsLargerThanAPieceIsRefusedByName) {
  const Program program = write_step(small_config(), step_spec(2), cpu_device());
  try {
    make_plans({program}, {64, largest_buffer(program) - 64});
    FAIL() << "nothing was refused";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), Exit::budget);
    EXPECT_NE(std::string(e.what()).find("in one piece"), std::string::npos);
  }
}

}  // namespace
}  // namespace ebb
