// A source that knows what it gave, and a loader with memory of its own.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <set>
#include <vector>

#include "base/error.h"
#include "data/loader.h"
#include "data/order.h"

namespace ebb {

// Sample i is (i, 0) with label i % 7. Fails at the indices it is told to.
class FakeSource : public Source {
 public:
  explicit FakeSource(int64_t count, std::set<int64_t> bad = {}, int64_t most_bad = 0)
      : bad_(std::move(bad)), most_bad_(most_bad) {
    info_.kind = "fake";
    info_.count = count;
    info_.channels = 2;
    info_.height = info_.width = 1;
    info_.classes = 7;
  }
  void load(std::byte* values, int32_t* label, int64_t index,
            std::span<std::byte> scratch) const override {
    // The scratch is this thread's alone: a race here is for ThreadSanitizer to see.
    for (std::byte& byte : scratch) byte = std::byte{static_cast<unsigned char>(index)};
    if (bad_.contains(index)) fail(Exit::data, fmt::format("sample {} is bad", index));
    auto* x = reinterpret_cast<float*>(values);
    x[0] = static_cast<float>(index);
    x[1] = 0;
    *label = this->label(index);
    EXPECT_EQ(scratch.back(), std::byte{static_cast<unsigned char>(index)});
  }
  int32_t label(int64_t index) const override { return static_cast<int32_t>(index % 7); }
  int64_t most_bad() const override { return most_bad_; }
  int64_t scratch_bytes() const override { return 100; }
  int64_t heap_bytes() const override { return 0; }
  int64_t held_bytes() const override { return 0; }

 private:
  std::set<int64_t> bad_;
  int64_t most_bad_;
};

// The host's memory as a device's.
class HostMemory final : public DeviceMemory {
 public:
  explicit HostMemory(int64_t bytes) : bytes_(static_cast<size_t>(bytes)) {}
  void read(void* to, Place from, int64_t bytes) const override {
    std::memcpy(to, host(0) + from.offset, static_cast<size_t>(bytes));
  }
  void write(Place to, const void* from, int64_t bytes) override {
    ASSERT_LE(to.offset + bytes, std::ssize(bytes_)) << "a sample goes only where it fits";
    std::memcpy(host(0) + to.offset, from, static_cast<size_t>(bytes));
  }
  void move(Place, Place, int64_t) override {}
  std::byte* host(int32_t) const override { return const_cast<std::byte*>(bytes_.data()); }

 private:
  std::vector<std::byte> bytes_;
};

// A loader with memory of its own.
class Loading {
 public:
  Loading(const Source& source, const Loader::Options& options, int64_t first_step)
      : batch_(options.taken().count),
        bytes_(Loader::memory_bytes(source, options)),
        memory_(static_cast<std::byte*>(std::aligned_alloc(64, static_cast<size_t>(bytes_)))),
        loader_(source, options, first_step, {memory_.get(), static_cast<size_t>(bytes_)}) {}

  using Samples = std::pair<std::vector<float>, std::vector<int32_t>>;

  // The next batch, `part` samples at a time.
  Samples next(int64_t part = 0) {
    if (part == 0) part = batch_;
    Samples all;
    for (int64_t first = 0; first < batch_; first += part) {
      const auto [x, y] = take(first, std::min(part, batch_ - first));
      all.first.insert(all.first.end(), x.begin(), x.end());
      all.second.insert(all.second.end(), y.begin(), y.end());
    }
    return all;
  }
  Samples take(int64_t first, int64_t count) {
    const int64_t values = count * 2 * static_cast<int64_t>(sizeof(float));
    HostMemory memory(values + count * static_cast<int64_t>(sizeof(int32_t)));
    const Place labels{0, values};
    loader_.take(memory, {0, 0}, &labels, first, count);
    Samples taken{std::vector<float>(static_cast<size_t>(2 * count)),
                  std::vector<int32_t>(static_cast<size_t>(count))};
    memory.read(taken.first.data(), {0, 0}, values);
    memory.read(taken.second.data(), labels, count * static_cast<int64_t>(sizeof(int32_t)));
    return taken;
  }
  Loader& loader() { return loader_; }

 private:
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };
  int64_t batch_;
  int64_t bytes_;
  std::unique_ptr<std::byte, Free> memory_;
  Loader loader_;
};

}  // namespace ebb
