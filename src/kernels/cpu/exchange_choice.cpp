// The few elements of a gradient that are sent, and where they are added. Which are largest is
// found by their bits: counts of the first eleven of all magnitudes say which those of the least
// that is sent begin with, counts of the next ten of those that begin so go on, and so do the last.
// Counts do not depend on how elements are cut.
#include <algorithm>
#include <bit>

#include "kernels/cpu/each_lane.h"
#include "kernels/cpu/exchange_gate.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/random_bits.h"

namespace ebb::cpu {

namespace {

struct Level {
  int shift, bits;  // of a magnitude's bits
};
constexpr Level kLevels[] = {{20, 11}, {10, 10}, {0, 10}};
constexpr int64_t kBins = 2048;
constexpr int64_t kLeastChunk = 16384, kMostChunks = 64;

int64_t chunk_size(int64_t n) { return std::max(kLeastChunk, (n + kMostChunks - 1) / kMostChunks); }
int64_t chunk_count(int64_t n) { return (n + chunk_size(n) - 1) / chunk_size(n); }

VecU magnitude(Vec x) { return as_bits<VecU>(x) & 0x7fffffffu; }

class Search {
 public:
  Search(const EncodeTopK& op, const Call& call)
      : op_(op),
        g_(call.read(0)),
        x_(call.update(0)),
        indices_(call.write<int32_t>(0)),
        values_(call.write(1)),
        size_(chunk_size(op.n)),
        chunks_(chunk_count(op.n)),
        counts_(reinterpret_cast<uint32_t*>(call.scratch.data())),
        total_(counts_ + chunks_ * kBins),
        above_(total_ + kBins),
        equal_(above_ + chunks_) {}

  void run(float factor) {
    std::fill_n(above_, chunks_, 0u);
    each_chunk([&](int64_t chunk, int64_t begin, int64_t end) {
      std::fill_n(counts(chunk), kBins, 0u);
      code(begin, end, splat(factor));
      count_all(counts(chunk), begin, end);
    });
    narrow_down(kLevels[0]);
    for (const Level level : {kLevels[1], kLevels[2]}) {
      each_chunk([&](int64_t chunk, int64_t begin, int64_t end) {
        std::fill_n(counts(chunk), kBins, 0u);
        count_some(counts(chunk), begin, end, level);
      });
      narrow_down(level);
    }
    share_out();
    each_chunk([&](int64_t chunk, int64_t begin, int64_t end) { send(chunk, begin, end); });
  }

 private:
  uint32_t* counts(int64_t chunk) const { return counts_ + chunk * kBins; }

  template <typename Body>
  void each_chunk(Body body) const {
    parallel_range(chunks_, 1, size_, [&](int64_t first, int64_t last) {
      for (int64_t chunk = first; chunk < last; ++chunk) {
        body(chunk, chunk * size_, std::min(op_.n, (chunk + 1) * size_));
      }
    });
  }

  void code(int64_t begin, int64_t end, Vec factor) const {
    for_lanes(begin, end, [&](int64_t i, auto get, auto put) {
      put(x_ + i, multiply_add(get(g_ + i), factor, get(x_ + i)));
    });
  }

  uint32_t bits(int64_t i) const { return std::bit_cast<uint32_t>(x_[i]) & 0x7fffffffu; }

  void count_all(uint32_t* bins, int64_t begin, int64_t end) const {
    for (int64_t i = begin; i < end; ++i) ++bins[bits(i) >> kLevels[0].shift];
  }

  // Calls body for each element whose bits pass the test. A lane that is none is passed by.
  template <typename Test, typename Body>
  void each_that(int64_t begin, int64_t end, Test test, Body body) const {
    for_lanes(begin, end, [&](int64_t i, auto get, auto) {
      uint32_t which = lane_bits(test(magnitude(get(x_ + i))));
      for (; which != 0; which &= which - 1) {
        const int64_t at = i + std::countr_zero(which);
        if (at < end) body(at);
      }
    });
  }

  void count_some(uint32_t* bins, int64_t begin, int64_t end, Level level) const {
    const int known = level.shift + level.bits;
    const uint32_t mask = (1u << level.bits) - 1;
    each_that(
        begin, end, [&](VecU x) -> VecI { return x >> known == least_; },
        [&](int64_t i) { ++bins[(bits(i) >> level.shift) & mask]; });
  }

  // By the next bits of the least magnitude that is sent.
  void narrow_down(Level level) {
    std::fill_n(total_, kBins, 0u);
    for (int64_t chunk = 0; chunk < chunks_; ++chunk) {
      const uint32_t* bins = counts(chunk);
      for (int64_t b = 0; b < kBins; ++b) total_[b] += bins[b];
    }
    int64_t bin = (int64_t{1} << level.bits) - 1;
    for (; bin > 0 && total_[bin] < left_; --bin) left_ -= total_[bin];
    for (int64_t chunk = 0; chunk < chunks_; ++chunk) {
      const uint32_t* bins = counts(chunk);
      for (int64_t b = bin + 1; b < kBins; ++b) above_[chunk] += bins[b];
      equal_[chunk] = bins[bin];
    }
    least_ = least_ << level.bits | static_cast<uint32_t>(bin);
  }

  // Of those that are as large as the least, the first are sent. From here on `above_` is where a
  // chunk's begin among what is sent, and `equal_` how many of the equal ones are the chunk's.
  void share_out() {
    uint32_t sent = 0;
    for (int64_t chunk = 0; chunk < chunks_; ++chunk) {
      equal_[chunk] = std::min(equal_[chunk], left_);
      left_ -= equal_[chunk];
      const uint32_t here = above_[chunk] + equal_[chunk];
      above_[chunk] = sent;
      sent += here;
    }
  }

  void send(int64_t chunk, int64_t begin, int64_t end) const {
    uint32_t to = above_[chunk], equal = equal_[chunk];
    each_that(
        begin, end, [&](VecU x) -> VecI { return x >= least_; },
        [&](int64_t i) {
          if (bits(i) == least_) {
            if (equal == 0) return;
            --equal;
          }
          indices_[to] = static_cast<int32_t>(i);
          values_[to++] = x_[i];
          x_[i] = 0;
        });
  }

  const EncodeTopK& op_;
  const float* g_;
  float* x_;
  int32_t* indices_;
  float* values_;
  const int64_t size_, chunks_;
  uint32_t *counts_, *total_, *above_, *equal_;   // the last two of each chunk
  uint32_t least_ = 0;                            // the bits of it that are known
  uint32_t left_ = static_cast<uint32_t>(op_.k);  // to be sent of those that begin so
};

// One of each k-th part.
void choose(const EncodeTopK& op, const Call& call) {
  auto* indices = call.write<int32_t>(0);
  parallel_range(op.k, kRandomWords, 16, [&](int64_t begin, int64_t end) {
    for (int64_t first = begin; first < end; first += kRandomWords) {
      uint32_t words[kRandomWords];
      random_words(words, call.scalars->seed, Stream::exchange_choice,
                   static_cast<uint32_t>(call.scalars->step), op.tensor,
                   static_cast<uint32_t>(first / kRandomWords));
      for (int64_t part = first; part < std::min(end, first + kRandomWords); ++part) {
        const int64_t from = op.n * part / op.k, size = op.n * (part + 1) / op.k - from;
        const uint64_t place = uint64_t{words[part - first]} * static_cast<uint64_t>(size) >> 32;
        indices[part] = static_cast<int32_t>(from + static_cast<int64_t>(place));
      }
    }
  });
}

void send_chosen(const EncodeTopK& op, const Call& call, float factor) {
  const float* g = call.read(0);
  const auto* indices = call.write<int32_t>(0);
  float *values = call.write(1), *x = call.update(0);
  each_lane(op.n, [=, by = splat(factor)](int64_t i, auto get, auto put) {
    put(x + i, multiply_add(get(g + i), by, get(x + i)));
  });
  parallel_range(op.k, 16, 8, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      values[i] = x[indices[i]];
      x[indices[i]] = 0;
    }
  });
}

}  // namespace

int64_t scratch(const EncodeTopK& op) {
  if (op.random) return 0;
  return ((chunk_count(op.n) + 1) * kBins + 2 * chunk_count(op.n)) *
         static_cast<int64_t>(sizeof(uint32_t));
}

void run(const EncodeTopK& op, const Call& call) {
  const Gate gate(call.read(1));
  auto* indices = call.write<int32_t>(0);
  if (op.random) choose(op, call);
  if (gate.is_open) {
    return op.random ? send_chosen(op, call, gate.factor) : Search(op, call).run(gate.factor);
  }
  for (int64_t i = 0; i < op.k && !op.random; ++i) indices[i] = static_cast<int32_t>(i);
  std::fill_n(call.write(1), op.k, kNotANumber);
}

void run(const AddTopK& op, const Call& call) {
  const auto* indices = call.read<int32_t>(0);
  const float* values = call.read(1);
  float* sum = call.update(0);
  const float scale = call.scalars->loss_scale;
  parallel_range(op.k, 16, 8, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      float& to = sum[indices[i]];
      to = std::fma(values[i], scale, to);
    }
  });
}

}  // namespace ebb::cpu
