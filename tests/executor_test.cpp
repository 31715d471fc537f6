// The executor and the arena: what was planned is what is used, and declarations are proven.
#include "run/executor.h"

#include <gtest/gtest.h>
#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <new>

#include "device_fixture.h"
#include "kernels/cpu/arena.h"
#include "model_fixture.h"

namespace {
std::atomic<int64_t> news{0};
}  // namespace

// Counted for the whole test binary. A sanitizer brings its own.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define EBB_COUNTS_NEWS 1
void* operator new(size_t bytes) {
  ++news;
  if (void* made = std::malloc(bytes > 0 ? bytes : 1)) return made;
  throw std::bad_alloc();
}
void operator delete(void* p) noexcept { std::free(p); }
void operator delete(void* p, size_t) noexcept { operator delete(p); }
#endif

namespace ebb {
namespace {

using Mode = Executor::Mode;

Rig trained_machine(const DitConfig& config, Mode mode, const Device& device = cpu_device()) {
  return Rig({write_step(config, step_spec(2), cpu_device())}, mode, device);
}

void start(Rig& machine, const DitConfig& config) {
  machine.set_weights(config);
  machine.set_batch(config, 2);
}

// Inputs are gone after a run: the host gives them anew.
void run_steps(Rig& machine, const DitConfig& config, int begin, int end) {
  for (int k = begin; k < end; ++k) {
    machine.set_batch(config, 2);
    machine.executor().run(training_scalars(k));
  }
}

// ---- planned is measured
// -------------------------------------------------------------------------

TEST(Executor, UsesExactlyThePlannedBytes) {
  const OneThread one_thread;
  for (const ModelCase& m : model_cases()) {
    for (const int64_t batch : {1, 2, 5}) {
      SCOPED_TRACE(testing::Message() << m.name << " at batch " << batch);
      Rig machine({write_step(m.config, step_spec(batch), cpu_device())});
      machine.set_weights(m.config);
      machine.set_batch(m.config, batch);
      machine.executor().run(training_scalars(0));
      EXPECT_EQ(machine.executor().peak_bytes(), machine.plan().bytes);
      EXPECT_EQ(machine.plans().arena_bytes, machine.plan().bytes);
    }
  }
}

TEST(Executor, TheTimelineReachesThePlannedPeak) {
  const OneThread one_thread;
  Rig machine = trained_machine(small_config(), Mode::timed);
  start(machine, small_config());
  machine.executor().run(training_scalars(0));
  const auto& timeline = machine.executor().timeline();
  ASSERT_EQ(timeline.size(), machine.plan().program.ops.size());
  const Plan& plan = machine.plan();
  int64_t most = 0;
  for (size_t i = 0; i < timeline.size(); ++i) {
    int64_t live = 0;
    for (size_t b = 0; b < plan.held.size(); ++b) {
      if (plan.held[b].contains(static_cast<int>(i))) live += plan.program.buffers[b].bytes();
    }
    EXPECT_EQ(timeline[i].op, static_cast<int>(i));
    EXPECT_EQ(timeline[i].live_bytes, live);
    EXPECT_GE(timeline[i].seconds, 0);
    most = std::max(most, live);
  }
  EXPECT_LE(most, plan.bytes);
  EXPECT_GE(most, 0.9 * static_cast<double>(plan.bytes));
  machine.set_batch(small_config(), 2);
  machine.executor().run(training_scalars(1));
  EXPECT_EQ(timeline.size(), plan.program.ops.size());
}

TEST(Arena, EveryPageIsInMemoryFromTheStart) {
  const int64_t page = sysconf(_SC_PAGESIZE);
  for (const int64_t bytes : {int64_t{1}, page - 1, page, page + 1, 1000 * page, 5 * page + 17}) {
    const Arena arena(bytes);
    EXPECT_EQ(arena.bytes(), bytes);
    EXPECT_EQ(arena.resident_bytes(), (bytes + page - 1) / page * page);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(arena.data()) % 64, 0u);
    EXPECT_TRUE(std::all_of(arena.data(), arena.data() + bytes,
                            [](std::byte b) { return b == std::byte{0}; }));
  }
}

TEST(Arena, SaysWhenTheSystemRefuses) {
  try {
    const Arena arena(int64_t{1} << 62);
    FAIL() << "the system gave 4 EiB";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), Exit::budget);
    EXPECT_FALSE(e.hint().empty());
  }
}

// ---- every buffer keeps its bytes while it lives
// -------------------------------------------------

TEST(Executor, EveryBufferKeepsItsPatternWhileItLives) {
  for (const ModelCase& m : model_cases()) {
    SCOPED_TRACE(m.name);
    const PlanSet plans = make_plans({write_step(m.config, step_spec(2), cpu_device())});
    const Plan& plan = plans.plans[0];
    const PatternDevice device(plan.program);
    RunMemory memory(plans, middling_machine());
    Executor executor(plan, device, memory);
    const auto place = [&](Buf b) { return memory.host(plan, b).data(); };
    for (size_t i = 0; i < plan.program.buffers.size(); ++i) {
      const Buf b{static_cast<int32_t>(i)};
      if (plan.program.buffers[i].resident) device.fill(b, place(b));
    }
    for (int run = 0; run < 2; ++run) {
      for (const Buf b : plan.program.inputs) device.fill(b, place(b));
      const_cast<PatternDevice&>(device).restart();
      executor.run({});
      const Op after{"the host", "", Zero{0}, {}, {}, {}, {}};
      for (const Buf b : plan.program.outputs) device.check(after, b, place(b));
      for (size_t i = 0; i < plan.program.buffers.size(); ++i) {
        const Buf b{static_cast<int32_t>(i)};
        if (plan.program.buffers[i].resident) device.check(after, b, place(b));
      }
    }
  }
}

// ---- the same bits
// -------------------------------------------------------------------------------

// With all threads: which of them takes which task must not show.
TEST(Executor, TwoRunsGiveTheSameBits) {
  for (const ModelCase& m : {model_cases().front(), model_cases().back()}) {
    SCOPED_TRACE(m.name);
    std::string bits[2];
    for (std::string& found : bits) {
      Rig machine = trained_machine(m.config, Mode::normal);
      start(machine, m.config);
      run_steps(machine, m.config, 0, 2);
      found = machine.residents();
    }
    EXPECT_EQ(bits[0], bits[1]);
  }
}

TEST(DebugMemory, PassesOnRealStepsAndChangesNoBit) {
  const OneThread one_thread;
  for (const ModelCase& m : model_cases()) {
    SCOPED_TRACE(m.name);
    std::string bits[2];
    for (const Mode mode : {Mode::normal, Mode::debug_memory}) {
      Rig machine = trained_machine(m.config, mode);
      start(machine, m.config);
      ASSERT_NO_THROW(machine.executor().run(training_scalars(0)));
      EXPECT_TRUE(std::isfinite(machine.get(kLoss)[0]));
      bits[mode == Mode::debug_memory] = machine.residents();
    }
    EXPECT_EQ(bits[0], bits[1]);
  }
}

// ---- debug-memory catches lies
// -------------------------------------------------------------------

// w (resident), x (input): y = x + w; z = silu(y); out = z + x.
Program chain() {
  Builder b("chain", cpu_device());
  const Buf w = b.declare({"w", "step", Purpose::weight, DType::f32, {30}, true});
  const Buf x = b.buffer("x", {30}, Purpose::data);
  b.input(x);
  const Buf y = b.buffer("y", {30});
  const Buf z = b.buffer("z", {30});
  const Buf out = b.buffer("out", {30});
  b.emit("y", Add{30}, {x, w}, {y});
  b.emit("z", Silu{30}, {y}, {z});
  b.emit("out", Add{30}, {z, x}, {out});
  b.output(out);
  return b.finish();
}

// Instead of the op "z" a lie is told: at(name) is where a buffer lies.
using At = std::function<float*(const char*)>;
using Lie = std::function<void(const Call&, const At&)>;

void honest(const Call& call, int64_t count = 30) {
  std::copy_n(call.read(0), count, call.write(0));
}

// The sum of the chain's result.
float run_lying(const Lie& lie, Mode mode = Mode::debug_memory) {
  Rig* self = nullptr;
  const LyingDevice device(
      [&](const Call& call) { lie(call, [&](const char* name) { return self->host(name); }); });
  Rig machine({chain()}, mode, device);
  self = &machine;
  machine.set("w", Column(30, 0.5));
  machine.set("x", Column(30, 1.0));
  machine.executor().run({});
  float sum = 0;
  for (const double value : machine.get("out")) sum += static_cast<float>(value);
  return sum;
}

void expect_caught(const Lie& lie) {
  EXPECT_NO_THROW(run_lying(lie, Mode::normal));
  EXPECT_THROW(run_lying(lie), Bug);
}

TEST(DebugMemory, AcceptsAnHonestDevice) {
  EXPECT_EQ(run_lying([](const Call& call, const At&) { honest(call); }), 30 * 2.5f);
}

TEST(DebugMemory, CatchesAWriteToAResident) {
  expect_caught([](const Call& call, const At& at) {
    honest(call);
    at("w")[29] = 3;
  });
}

TEST(DebugMemory, CatchesAWriteToABufferOfALaterOp) {
  expect_caught([](const Call& call, const At& at) {
    honest(call);
    at("x")[0] = 1;  // the value that it has
  });
}

TEST(DebugMemory, CatchesAWriteIntoThePaddingBehindABuffer) {
  expect_caught([](const Call& call, const At& at) {
    honest(call);
    at("w")[30] = 0;
  });
  expect_caught([](const Call& call, const At&) {
    honest(call);
    call.write(0)[30] = 0;
  });
}

TEST(DebugMemory, CatchesAChangedRead) {
  expect_caught([](const Call& call, const At&) {
    honest(call);
    const_cast<float*>(call.read(0))[7] += 1;
  });
}

TEST(DebugMemory, AnUndeclaredReadBecomesNaN) {
  const Lie lie = [](const Call& call, const At& at) {
    honest(call);
    call.write(0)[3] = at("x")[3];
  };
  EXPECT_FALSE(std::isnan(run_lying(lie, Mode::normal)));
  EXPECT_TRUE(std::isnan(run_lying(lie)));
}

TEST(DebugMemory, AnElementThatWasNotWrittenIsNaN) {
  const Lie lie = [](const Call& call, const At&) { honest(call, 29); };
  EXPECT_FALSE(std::isnan(run_lying(lie, Mode::normal)));
  EXPECT_TRUE(std::isnan(run_lying(lie)));
}

// Reading what is there before it is written: an update that was declared a write.
TEST(DebugMemory, AWriteThatLooksAtWhatWasThereIsNaN) {
  const Lie lie = [](const Call& call, const At&) {
    for (int i = 0; i < 30; ++i) call.write(0)[i] = call.read(0)[i] + 0 * call.write(0)[i];
  };
  EXPECT_TRUE(std::isnan(run_lying(lie)));
}

// ---- no allocation after planning
// ----------------------------------------------------------------

#ifdef EBB_COUNTS_NEWS
TEST(Executor, TakesNothingFromTheHeapOnceItRuns) {
  const OneThread one_thread;
  const DitConfig config = uneven_config(Objective::ddpm);
  const CountingDevice device(news);
  for (const Mode mode : {Mode::normal, Mode::timed}) {
    Rig machine = trained_machine(config, mode, device);
    start(machine, config);
    run_steps(machine, config, 0, 2);
    device.taken = {};
    int64_t all = 0;
    for (int k = 2; k < 10; ++k) {
      machine.set_batch(config, 2);
      const Scalars scalars = training_scalars(k);
      const int64_t news_before = news;
      const auto heap_before = mallinfo2();
      machine.executor().run(scalars);
      const auto heap_after = mallinfo2();
      all += news - news_before;
      EXPECT_EQ(heap_after.uordblks, heap_before.uordblks);
      EXPECT_EQ(heap_after.hblkhd, heap_before.hblkhd);
    }
    EXPECT_EQ(all, 0) << "mode " << static_cast<int>(mode);
    for (const Op& op : machine.plan().program.ops) {
      EXPECT_EQ(device.taken[op.params.index()], 0) << op.kind();
    }
  }
}
#endif

}  // namespace
}  // namespace ebb
