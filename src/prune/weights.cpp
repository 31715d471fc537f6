#include "prune/weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "base/error.h"
#include "base/text.h"
#include "prune/cut.h"
#include "state/matrix_stream.h"

namespace ebb {

namespace {

constexpr int64_t kPart = 1 << 18;  // elements that are read at once

struct Matrix {
  const ParamSpec* spec;
  Cut cut;
};

// Those that may lose weights and whose structures are not all gone.
std::vector<Matrix> matrices_of(const std::vector<ParamSpec>& params, const DitConfig& config,
                                const Survivors& kept) {
  std::vector<Matrix> all;
  for (const ParamSpec& spec : params) {
    if (!spec.prunable()) continue;
    const Belonging place = belonging(spec, config);
    const Staying stay = staying(place, kept);
    if (stay.stays) all.push_back({&spec, cut_tensor({&spec, ""}, place, config, stay.block)});
  }
  return all;
}

class Chooser {
 public:
  explicit Chooser(const SafetensorsReader& file) : file_(file), part_(kPart) {}

  int64_t count(const Matrix& m) const {
    if (!m.spec->sparse()) return m.cut.left_rows() * m.cut.left_columns();
    const MatrixBits bits = read_matrix_bits(file_, *m.spec);
    const CutElements cut(m.cut);
    int64_t count = 0;
    for (int64_t i = 0; i < element_count(m.spec->shape); ++i) {
      count += cut.stays(i) && bits.at(i) ? 1 : 0;
    }
    return count;
  }

  // The magnitude from which on `wanted` weights of these matrices stay.
  Magnitude of(const std::vector<Matrix>& matrices, int64_t wanted) {
    constexpr int kLow = 15;
    // The number of the bin, from the largest on, in which the last of them lies.
    const auto bin_of = [](const std::vector<int64_t>& bins, int64_t& still) {
      size_t bin = bins.size();
      while (bins[--bin] < still) still -= bins[bin];
      return static_cast<uint32_t>(bin);
    };
    std::vector<int64_t> bins(size_t{1} << 16);
    visit(matrices, [&](size_t, uint32_t bits) { ++bins[bits >> kLow]; });
    int64_t still = wanted;
    const uint32_t high = bin_of(bins, still);
    bins.assign(size_t{1} << kLow, 0);
    visit(matrices, [&](size_t, uint32_t bits) {
      if (bits >> kLow == high) ++bins[bits & ((1u << kLow) - 1)];
    });
    const uint32_t low = bin_of(bins, still);
    return {high << kLow | low, still, wanted};
  }

  // What one magnitude for all of them leaves of each; of just that magnitude the first ones.
  std::vector<Magnitude> each(const std::vector<Matrix>& matrices, const Magnitude& all) {
    std::vector<Magnitude> found(matrices.size(), {all.least, 0, 0});
    int64_t of_least = all.of_least;
    visit(matrices, [&](size_t matrix, uint32_t bits) {
      if (bits < all.least || (bits == all.least && of_least == 0)) return;
      if (bits == all.least) --of_least, ++found[matrix].of_least;
      ++found[matrix].left;
    });
    return found;
  }

 private:
  // visit(matrix, bits) of every weight that is there and whose structure stays, in order.
  template <typename Visit>
  void visit(const std::vector<Matrix>& matrices, Visit visit) {
    constexpr uint32_t kInfinite = 0x7f800000u;
    for (size_t m = 0; m < matrices.size(); ++m) {
      const ParamSpec& spec = *matrices[m].spec;
      const CutElements cut(matrices[m].cut);
      MatrixStream stream(file_, spec);
      for (int64_t first = 0; stream.left() > 0;) {
        const int64_t count = std::min(kPart, stream.left());
        stream.read(part_.data(), count);
        for (int64_t i = 0; i < count; ++i) {
          if (!cut.stays(first + i) || !stream.is_there(first + i)) continue;
          const uint32_t bits = magnitude_bits(part_[i]);
          if (bits >= kInfinite) {
            fail(Exit::numbers,
                 fmt::format("{}: {} has a value that is not finite",
                             printable(file_.path().string()), spec.name),
                 "use an earlier checkpoint");
          }
          visit(m, bits);
        }
        first += count;
      }
    }
  }

  const SafetensorsReader& file_;
  std::vector<float> part_;
};

// How many stay of so many; at least one.
int64_t staying_of(const Amount& amount, int64_t count, const std::string& of) {
  const int64_t gone = amount.of(count);
  if (gone < count) return count - gone;
  if (amount.number == 0) return 1;  // a share of very few
  fail(Exit::usage,
       fmt::format("--weights {}: that is all of {}, which has {}", amount.text, of, count),
       "choose a smaller amount: a share such as 0.5 is of each matrix");
}

}  // namespace

Magnitudes choose_weights(const SafetensorsReader& file, const DitConfig& config,
                          const Survivors& kept, const Amount& amount, Scope scope) {
  const std::vector<ParamSpec> params = parameters(config);
  const std::vector<Matrix> all = matrices_of(params, config, kept);
  Chooser chooser(file);
  Magnitudes found;
  if (!amount.given()) {
    for (const Matrix& m : all) {
      if (!m.spec->sparse()) continue;
      const int64_t count = chooser.count(m);
      found[m.spec->name] = {0, count, count};
    }
    return found;
  }
  if (scope == Scope::block) {
    for (const Matrix& m : all) {
      found[m.spec->name] = chooser.of({m}, staying_of(amount, chooser.count(m), m.spec->name));
    }
    return found;
  }
  int64_t total = 0;
  for (const Matrix& m : all) total += chooser.count(m);
  const Magnitude common = chooser.of(all, staying_of(amount, total, "the model's matrices"));
  const std::vector<Magnitude> each = chooser.each(all, common);
  for (size_t i = 0; i < all.size(); ++i) {
    // A matrix of which nothing would be left keeps its largest weight.
    found[all[i].spec->name] = each[i].left > 0 ? each[i] : chooser.of({all[i]}, 1);
  }
  return found;
}

namespace {

// left(spec, elements that its structures leave): of every matrix that may be sparse.
template <typename Left>
DitConfig with_left(DitConfig pruned, const DitConfig& config, const Survivors& kept, Left left) {
  const std::vector<ParamSpec> params = parameters(config);
  for (const Matrix& m : matrices_of(params, config, kept)) {
    const Staying stay = staying(belonging(*m.spec, config), kept);
    LeftAt at = m.spec->left_at;
    if (at.block >= 0) at.block = static_cast<int64_t>(stay.place);
    left_of(pruned, at) = left(*m.spec, m.cut.left_rows() * m.cut.left_columns());
  }
  return pruned;
}

}  // namespace

DitConfig with_weights(DitConfig pruned, const DitConfig& config, const Survivors& kept,
                       const Magnitudes& left) {
  return with_left(std::move(pruned), config, kept, [&](const ParamSpec& spec, int64_t) {
    const auto found = left.find(spec.name);
    return found == left.end() ? 0 : found->second.left;
  });
}

DitConfig with_expected_weights(DitConfig pruned, const DitConfig& config, const Survivors& kept,
                                const Amount& amount) {
  return with_left(std::move(pruned), config, kept, [&](const ParamSpec& spec, int64_t elements) {
    if (!spec.sparse() && !amount.given()) return int64_t{0};
    const double share =
        static_cast<double>(spec.count()) / static_cast<double>(element_count(spec.shape));
    const auto there = static_cast<int64_t>(share * static_cast<double>(elements));
    return std::max<int64_t>(1, there - (amount.given() ? amount.of(there) : 0));
  });
}

}  // namespace ebb
