#include "train/session.h"

#include <algorithm>

#include "base/rng.h"
#include "state/unsent.h"

namespace ebb {

// Lots decide, one after the other: each element is left with the share that is still to be chosen
// of those that are still to come.
void Session::choose_left(const ParamSpec& spec, uint64_t seed) {
  int64_t to_come = element_count(spec.shape), wanted = spec.left;
  const int64_t columns = spec.columns();
  std::array<uint32_t, 4> words{};
  state_.write_mask(state_.at(kMask + spec.name), [&](int64_t row, uint8_t* bytes) {
    std::fill_n(bytes, mask_bytes(columns), 0);
    for (int64_t k = 0; k < columns; ++k, --to_come) {
      const int64_t i = row * columns + k;
      if (k == 0 || i % 4 == 0) {
        words = philox(seed, static_cast<uint32_t>(Stream::left), name_key(spec.name),
                       static_cast<uint32_t>(i / 4 >> 32), static_cast<uint32_t>(i / 4));
      }
      const double lot = open_unit(words[i % 4]) * static_cast<double>(to_come);
      if (lot >= static_cast<double>(wanted)) continue;
      bytes[k / 8] |= static_cast<uint8_t>(1u << (k % 8));
      --wanted;
    }
  });
}

// The starting values that a whole matrix has in those places.
void Session::start_sparse(const ParamSpec& spec, const std::string& name, uint64_t seed) {
  const StateTensor& tensor = state_.at(name);
  const StateTensor& mask = state_.at(kMask + spec.name);
  const int64_t columns = spec.columns();
  constexpr int64_t kPart = 64 * kMomentBlock;
  std::vector<float> row(static_cast<size_t>(columns + 3)), left;
  std::vector<uint8_t> bits(static_cast<size_t>(mask_bytes(columns)));
  int64_t written = 0;
  const auto flush = [&] {
    state_.write(tensor, written, left.data(), std::ssize(left));
    written += std::ssize(left);
    left.clear();
  };
  for (int64_t i = 0; i < spec.rows(); ++i) {
    const int64_t first = i * columns / 4 * 4, skipped = i * columns - first;
    initialise_part(row.data(), first, columns + skipped, spec, seed, config_);
    state_.read_mask(mask, i * std::ssize(bits), bits.data(), std::ssize(bits));
    for (int64_t k = 0; k < columns; ++k) {
      if ((bits[k / 8] >> (k % 8) & 1) == 0) continue;
      left.push_back(row[skipped + k]);
      if (std::ssize(left) == kPart) flush();
    }
  }
  flush();
}

// The starting values that the whole tensor has there; they are made four at a time.
void Session::start_slice(const StateTensor& tensor, const ParamSpec& spec, uint64_t seed,
                          const Values& values) {
  constexpr int64_t kFour = 4, kPart = 256;
  float part[kPart + kFour];
  const auto start = [&](int64_t whole, int64_t own, int64_t count) {
    for (int64_t done = 0; done < count; done += kPart) {
      const int64_t n = std::min(kPart, count - done), skipped = (whole + done) % kFour;
      initialise_part(part, whole + done - skipped, n + skipped, spec, seed, config_);
      std::copy_n(part + skipped, n, values.to + own - values.first + done);
    }
  };
  tensor.slice.each_run(values.first, values.count, start);
}

void Session::initialise(uint64_t seed) {
  const auto start = [&](const ParamSpec& spec, const std::string& name) {
    const StateTensor* tensor = state_.find(name);
    if (tensor == nullptr) return;  // another rank's
    if (spec.sparse()) return start_sparse(spec, name, seed);
    state_.fill(*tensor, [&](float* values, int64_t first, int64_t count) {
      if (!tensor->slice.any()) return initialise_part(values, first, count, spec, seed, config_);
      start_slice(*tensor, spec, seed, {values, first, count});
    });
  };
  for (const ParamSpec& spec : parameters(config_)) {
    if (spec.sparse() && state_.find(kMask + spec.name) != nullptr) choose_left(spec, seed);
    start(spec, spec.name);
    if (spec.trained()) start(spec, kAverage + spec.name);
  }
  begin_codes(state_, config_);
}

}  // namespace ebb
