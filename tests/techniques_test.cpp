// Whatever way a step is carried out, the result is the same, bit for bit.
#include <gtest/gtest.h>

#include "base/threads.h"
#include "cut_work.h"
#include "model_fixture.h"
#include "schedule_fixture.h"
#include "step_runs.h"

namespace ebb {
namespace {

constexpr int64_t kBatch = 5;

TEST(Checkpointing, GradientsAreBitForBitThoseOfKeepingEverything) {
  const OneThread one_thread;
  Random random(5);
  for (const ModelCase& m : model_cases()) {
    SCOPED_TRACE(m.name);
    const StepSpec spec = step_spec(kBatch, false);
    const Bits all = run_with(m.config, spec, {});
    const int depth = static_cast<int>(m.config.depth());
    expect_same(
        all, run_with(m.config, spec, {.schedule = plain_schedule(std::vector<KeepSet>(depth))}));
    for (int i = 0; i < 6; ++i) {
      expect_same(all, run_with(m.config, spec, {.schedule = random_schedule(depth, random)}));
    }
  }
}

TEST(Checkpointing, EverySingleTensorCanBeDroppedOrKept) {
  const OneThread one_thread;
  for (const DitConfig& config : {small_config(), uneven_config(Objective::flow)}) {
    const StepSpec spec = step_spec(2, false);
    const Bits all = run_with(config, spec, {});
    for (int t = 0; t < kBlockSlots; ++t) {
      const auto tensor = static_cast<Slot>(t);
      SCOPED_TRACE(slot_name(tensor));
      for (const KeepSet keep : {KeepSet{tensor}, KeepSet::all().with(tensor, false)}) {
        const std::vector<KeepSet> each(config.depth(), keep);
        expect_same(all, run_with(config, spec, {.schedule = plain_schedule(each)}));
      }
    }
  }
}

TEST(LayerMajor, GivesTheBitsOfBatchByBatch) {
  const OneThread one_thread;
  Random random(6);
  for (const ModelCase& m : model_cases()) {
    SCOPED_TRACE(m.name);
    const StepSpec spec = step_spec(kBatch, false);
    const int depth = static_cast<int>(m.config.depth());
    for (const int64_t micro : {1, 2, 3, 4, 5}) {
      SCOPED_TRACE(micro);
      const Bits batch_major = run_with(m.config, spec, {.micro_batch = micro});
      expect_same(batch_major,
                  run_with(m.config, spec, {.micro_batch = micro, .layer_major = true}));
      for (const bool layer_major : {false, true}) {
        expect_same(batch_major, run_with(m.config, spec,
                                          {.micro_batch = micro,
                                           .layer_major = layer_major,
                                           .schedule = random_schedule(depth, random)}));
      }
    }
  }
}

TEST(Release, LeavesTheWeightsMomentsAndAverageOfALateUpdate) {
  const OneThread one_thread;
  Random random(7);
  for (const ModelCase& m : model_cases()) {
    SCOPED_TRACE(m.name);
    const int depth = static_cast<int>(m.config.depth());
    for (const float clip : {0.0f, 0.05f}) {
      SCOPED_TRACE(clip);
      for (const int64_t micro : {int64_t{2}, kBatch}) {
        SCOPED_TRACE(micro);
        const Bits late = run_with(m.config, updating(clip, kBatch), {.micro_batch = micro});
        const Choices early = {.micro_batch = micro, .layer_major = true, .release = true};
        expect_same(late, run_with(m.config, updating(clip, kBatch), early));
        Choices scheduled = early;
        scheduled.layer_major = micro < kBatch;
        scheduled.schedule = random_schedule(depth, random);
        expect_same(late, run_with(m.config, updating(clip, kBatch), scheduled));
      }
    }
  }
}

TEST(Techniques, DebugMemoryPassesOnAllOfThem) {
  const OneThread one_thread;
  Random random(8);
  const DitConfig config = uneven_config(Objective::ddpm);
  for (const bool release : {false, true}) {
    for (const int64_t micro : {2, 5}) {
      Choices c{.micro_batch = micro, .layer_major = release, .release = release};
      c.schedule = random_schedule(3, random);
      const Bits plain = run_with(config, updating(0.1f, kBatch), c);
      expect_same(plain, run_with(config, updating(0.1f, kBatch), c, Executor::Mode::debug_memory));
    }
  }
}

// The mean over the global batch, whatever the split; a short tail counts for what it is.
TEST(Accumulation, EverySplitGivesTheSameBits) {
  const OneThread one_thread;
  for (const ModelCase& m : model_cases()) {
    SCOPED_TRACE(m.name);
    const StepSpec spec = step_spec(kBatch, false);
    const Bits whole = run_with(m.config, spec, {});
    for (const int64_t micro : {1, 2, 3, 4}) {
      SCOPED_TRACE(micro);
      expect_same(whole, run_with(m.config, spec, {.micro_batch = micro}));
    }
  }
}

// The bits of a step with 1, 2 and 3 threads, most of whose ops they must have shared.
void expect_any_number_of_threads_gives_the_same(const DitConfig& config, const Choices& choices) {
  const OneThread one_thread;  // and afterwards as many as before
  const int64_t before = team_jobs();
  const Bits alone = run_with(config, updating(0.05f, kBatch), choices);
  EXPECT_EQ(team_jobs(), before);
  for (const int threads : {2, 3}) {
    SCOPED_TRACE(threads);
    set_team_threads(threads);
    const int64_t jobs = team_jobs();
    expect_same(alone, run_with(config, updating(0.05f, kBatch), choices));
    EXPECT_GT(team_jobs() - jobs, 100) << "nothing was cut";
  }
}

TEST(Threads, AnyNumberGivesTheSameBits) {
  const CutWork cut;
  for (const ModelCase& m : model_cases()) {
    SCOPED_TRACE(m.name);
    expect_any_number_of_threads_gives_the_same(m.config, {});
  }
}

TEST(Threads, AnyNumberGivesTheSameBitsWhereWorkIsCutByItself) {
  DitConfig config = small_config();
  config.width = 64;
  config.image_size = 16;  // 64 tokens: 20,480 elements a batch
  expect_any_number_of_threads_gives_the_same(config, {});
}

TEST(Threads, AnyNumberGivesTheSameBitsWithEverythingOnDisk) {
  const CutWork cut;
  Choices away;
  away.release = away.layer_major = true;
  away.offload = to_disk(true, true, true);
  away.micro_batch = 2;
  expect_any_number_of_threads_gives_the_same(small_config(), away);
}

TEST(Accumulation, CountsSamplesOnce) {
  for (int64_t batch = 1; batch <= 12; ++batch) {
    for (int64_t micro = 0; micro <= batch + 1; ++micro) {
      int64_t next = 0;
      for (const Part& part : micro_batches(batch, micro)) {
        EXPECT_EQ(part.first, next);
        next += part.size * part.count;
      }
      EXPECT_EQ(next, batch);
    }
  }
}

}  // namespace
}  // namespace ebb
