// Devices that compute nothing, lie, or count: what the executor is tested with.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <functional>
#include <utility>
#include <vector>

#include "kernels/cpu/device.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/pointers.h"
#include "program/program.h"

namespace ebb {

// The CPU, but ops go through call().
class CpuLike : public Device {
 public:
  std::string identity() const override { return cpu_device().identity(); }
  std::string kernels() const override { return cpu_device().kernels(); }
  int threads() const override { return cpu_device().threads(); }
  int64_t scratch_bytes(const OpParams& params) const override {
    return cpu_device().scratch_bytes(params);
  }
  std::unique_ptr<DeviceMemory> take(int64_t bytes) const override {
    return cpu_memory(bytes, limits());
  }
  void run(const OpParams& params, const Operands& operands, DeviceMemory& memory) const override {
    call(params, Pointers(operands, memory).call());
  }
  std::vector<OpParams> measured_shapes() const override { return cpu_device().measured_shapes(); }
  std::vector<OpTiming> measure() const override { return cpu_device().measure(); }

  virtual void call(const OpParams& params, const Call& call) const { cpu::run_op(params, call); }
};

// Computes nothing. Each op fills what it writes and updates with a pattern of that buffer and that
// op, and checks that what it reads still holds the pattern that it was last given: every byte of
// every buffer, from its first writer to its last reader.
class PatternDevice final : public CpuLike {
 public:
  explicit PatternDevice(const Program& program)
      : program_(program), pattern_(program.buffers.size(), 1) {}
  void call(const OpParams&, const Call& call) const override {
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

// The CPU, but every Silu is told as `lie` instead.
class LyingDevice final : public CpuLike {
 public:
  explicit LyingDevice(std::function<void(const Call&)> lie) : lie_(std::move(lie)) {}
  int64_t scratch_bytes(const OpParams&) const override { return 0; }
  void call(const OpParams& params, const Call& call) const override {
    if (std::holds_alternative<Silu>(params)) return lie_(call);
    cpu::run_op(params, call);
  }

 private:
  std::function<void(const Call&)> lie_;
};

// The CPU, counting what kernels take from the heap while they run, by kind of op.
class CountingDevice final : public CpuLike {
 public:
  explicit CountingDevice(const std::atomic<int64_t>& news) : news_(news) {}
  void call(const OpParams& params, const Call& call) const override {
    const int64_t before = news_;
    cpu::run_op(params, call);
    taken[params.index()] += news_ - before;
  }
  mutable std::array<int64_t, std::variant_size_v<OpParams>> taken{};

 private:
  const std::atomic<int64_t>& news_;
};

}  // namespace ebb
