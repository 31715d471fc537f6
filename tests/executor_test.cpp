// The executor and the arena: what was planned is what is used, and declarations are proven.
#include "run/executor.h"

#include <gtest/gtest.h>
#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <new>

#include "model_fixture.h"
#include "sample/sampler.h"

namespace {
std::atomic<int64_t> news{0}, deletes{0};
}  // namespace

// Counted for the whole test binary, oneDNN included. A sanitizer brings its own.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define EBB_COUNTS_NEWS 1
void* operator new(size_t bytes) {
  ++news;
  if (void* made = std::malloc(bytes > 0 ? bytes : 1)) return made;
  throw std::bad_alloc();
}
void operator delete(void* p) noexcept {
  if (p) ++deletes;
  std::free(p);
}
void operator delete(void* p, size_t) noexcept { operator delete(p); }
#endif

namespace ebb {
namespace {

using Mode = Executor::Mode;

Machine trained_machine(const DitConfig& config, Mode mode, const Device& device = cpu_device()) {
  return Machine({write_step(config, step_spec(2), cpu_device())}, mode, device);
}

void start(Machine& machine, const DitConfig& config) {
  machine.set_weights(config);
  machine.set_batch(config, 2);
}

// ---- planned is measured -------------------------------------------------------------------------

TEST(Executor, UsesExactlyThePlannedBytes) {
  for (const ModelCase& m : model_cases()) {
    for (const int64_t batch : {1, 2, 5}) {
      SCOPED_TRACE(testing::Message() << m.name << " at batch " << batch);
      Machine machine({write_step(m.config, step_spec(batch), cpu_device())});
      machine.set_weights(m.config);
      machine.set_batch(m.config, batch);
      machine.executor().run(training_scalars(0));
      EXPECT_EQ(machine.executor().peak_bytes(), machine.plan().bytes);
      EXPECT_EQ(machine.arena().bytes(), machine.plan().bytes);
    }
  }
}

TEST(Executor, TheTimelineReachesThePlannedPeak) {
  Machine machine = trained_machine(small_config(), Mode::timed);
  start(machine, small_config());
  machine.executor().run(training_scalars(0));
  const auto& timeline = machine.executor().timeline();
  ASSERT_EQ(timeline.size(), machine.plan().program.ops.size());
  const Plan& plan = machine.plan();
  int64_t most = 0;
  for (size_t i = 0; i < timeline.size(); ++i) {
    int64_t live = 0;
    for (size_t b = 0; b < plan.lives.size(); ++b) {
      const Lifetime& life = plan.lives[b];
      if (life.begin <= static_cast<int>(i) && static_cast<int>(i) < life.end) {
        live += plan.program.buffers[b].bytes();
      }
    }
    EXPECT_EQ(timeline[i].op, static_cast<int>(i));
    EXPECT_EQ(timeline[i].live_bytes, live);
    EXPECT_GE(timeline[i].seconds, 0);
    most = std::max(most, live);
  }
  EXPECT_LE(most, plan.bytes);
  EXPECT_GE(most, 0.9 * static_cast<double>(plan.bytes));
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

// ---- every buffer keeps its bytes while it lives -------------------------------------------------

// Computes nothing. Each op fills what it writes and updates with a pattern of that buffer and that
// op, and checks that what it reads still holds the pattern that it was last given: every byte of
// every buffer, from its first writer to its last reader.
class PatternDevice final : public Device {
 public:
  explicit PatternDevice(const Program& program)
      : program_(program), pattern_(program.buffers.size(), 1) {}
  int64_t scratch_bytes(const OpParams& params) const override {
    return cpu_device().scratch_bytes(params);
  }
  void run(const OpParams&, const Call& call) const override {
    const Op& op = program_.ops[at_++];
    for (size_t i = 0; i < op.reads.size(); ++i) check(op, op.reads[i], call.reads[i]);
    for (size_t i = 0; i < op.updates.size(); ++i) check(op, op.updates[i], call.updates[i]);
    for (size_t i = 0; i < op.writes.size(); ++i) fill(op.writes[i], call.writes[i]);
    for (size_t i = 0; i < op.updates.size(); ++i) fill(op.updates[i], call.updates[i]);
    if (op.scratch) {
      ASSERT_EQ(static_cast<int64_t>(call.scratch.size()), program_.buffer(op.scratch).bytes());
      fill(op.scratch, call.scratch.data());
    }
  }
  void fill(Buf b, std::byte* bytes) const {
    pattern_[b.id] = ++last_;
    for (int64_t i = 0; i < program_.buffer(b).bytes(); ++i) bytes[i] = expected(b, i);
  }
  void check(const Op& op, Buf b, const std::byte* bytes) const {
    int64_t wrong = 0;
    for (int64_t i = 0; i < program_.buffer(b).bytes(); ++i) wrong += bytes[i] != expected(b, i);
    ASSERT_EQ(wrong, 0) << op.name << " finds other bytes in " << program_.buffer(b).name;
  }
  void restart() { at_ = 0; }

 private:
  std::byte expected(Buf b, int64_t i) const {
    return static_cast<std::byte>((i * 31 + pattern_[b.id] * 167 + (i >> 8)) & 0xff);
  }
  const Program& program_;
  mutable std::vector<int> pattern_;
  mutable size_t at_ = 0;
  mutable int last_ = 1;
};

TEST(Executor, EveryBufferKeepsItsPatternWhileItLives) {
  for (const ModelCase& m : model_cases()) {
    SCOPED_TRACE(m.name);
    const PlanSet plans = make_plans({write_step(m.config, step_spec(2), cpu_device())});
    const Plan& plan = plans.plans[0];
    const Arena arena(plans.arena_bytes);
    const PatternDevice device(plan.program);
    Executor executor(plan, device, arena.data());
    const auto place = [&](Buf b) { return arena.data() + plan.offsets[b.id]; };
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

// ---- the same bits -------------------------------------------------------------------------------

TEST(Executor, TwoRunsGiveTheSameBits) {
  for (const ModelCase& m : model_cases()) {
    SCOPED_TRACE(m.name);
    std::string bits[2];
    for (std::string& found : bits) {
      Machine machine = trained_machine(m.config, Mode::normal);
      start(machine, m.config);
      for (int k = 0; k < 3; ++k) {
        machine.set_batch(m.config, 2);
        machine.executor().run(training_scalars(k));
      }
      found = machine.residents();
    }
    EXPECT_EQ(bits[0], bits[1]);
  }
}

TEST(DebugMemory, PassesOnRealStepsAndChangesNoBit) {
  for (const ModelCase& m : model_cases()) {
    SCOPED_TRACE(m.name);
    std::string bits[2];
    for (const Mode mode : {Mode::normal, Mode::debug_memory}) {
      Machine machine = trained_machine(m.config, mode);
      start(machine, m.config);
      for (int k = 0; k < 2; ++k) {
        machine.set_batch(m.config, 2);
        ASSERT_NO_THROW(machine.executor().run(training_scalars(k)));
        EXPECT_TRUE(std::isfinite(machine.get(kLoss)[0]));
      }
      bits[mode == Mode::debug_memory] = machine.residents();
    }
    EXPECT_EQ(bits[0], bits[1]);
  }
}

// ---- debug-memory catches lies -------------------------------------------------------------------

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

// The CPU, but the op "z" also does `lie`.
class LyingDevice final : public Device {
 public:
  using Lie = std::function<void(const Call&)>;
  explicit LyingDevice(Lie lie) : lie_(std::move(lie)) {}
  int64_t scratch_bytes(const OpParams&) const override { return 0; }
  void run(const OpParams& params, const Call& call) const override {
    cpu_device().run(params, call);
    if (std::holds_alternative<Silu>(params)) lie_(call);
  }

 private:
  Lie lie_;
};

// Runs the chain with a lie that is told the arena and where each buffer lies; the result's sum.
using Lie = std::function<void(const Call&, const std::function<float*(const char*)>&)>;
float run_lying(const Lie& lie, Mode mode = Mode::debug_memory) {
  Machine* self = nullptr;
  const LyingDevice device([&](const Call& call) {
    lie(call, [&](const char* name) { return self->executor().host(name); });
  });
  Machine machine({chain()}, mode, device);
  self = &machine;
  machine.set("w", Column(30, 0.5));
  machine.set("x", Column(30, 1.0));
  machine.executor().run({});
  float sum = 0;
  for (const double value : machine.get("out")) sum += static_cast<float>(value);
  return sum;
}

TEST(DebugMemory, AcceptsAnHonestDevice) {
  EXPECT_TRUE(std::isfinite(run_lying([](const Call&, const auto&) {})));
}

TEST(DebugMemory, CatchesAWriteToAResident) {
  EXPECT_THROW(run_lying([](const Call&, const auto& at) { at("w")[29] = 3; }), Bug);
}

TEST(DebugMemory, CatchesAWriteToABufferOfALaterOp) {
  EXPECT_THROW(run_lying([](const Call&, const auto& at) { at("x")[0] = 1; }), Bug);
}

TEST(DebugMemory, CatchesAWriteIntoThePaddingBehindABuffer) {
  EXPECT_THROW(run_lying([](const Call&, const auto& at) { at("w")[30] = 0; }), Bug);
  EXPECT_THROW(run_lying([](const Call& call, const auto&) { call.write(0)[30] = 0; }), Bug);
}

TEST(DebugMemory, CatchesAChangedRead) {
  EXPECT_THROW(run_lying([](const Call& call, const auto&) {
                 const_cast<float*>(call.read(0))[7] += 1;
               }),
               Bug);
}

TEST(DebugMemory, AnUndeclaredReadBecomesNaN) {
  const Lie lie = [](const Call& call, const auto& at) { call.write(0)[3] = at("x")[3]; };
  EXPECT_FALSE(std::isnan(run_lying(lie, Mode::normal)));
  EXPECT_TRUE(std::isnan(run_lying(lie)));
}

TEST(DebugMemory, AnElementThatIsNeverWrittenBecomesNaN) {
  const Lie lie = [](const Call& call, const auto&) {
    const float before = call.write(0)[5];
    static_cast<void>(before);
    std::memset(call.write(0) + 5, 0xff, sizeof(float));
  };
  EXPECT_TRUE(std::isnan(run_lying(lie)));
}

PLACEHOLDER_ALLOC
}  // namespace
}  // namespace ebb
