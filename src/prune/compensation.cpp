#include "prune/compensation.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "model/storage.h"
#include "state/matrix_stream.h"

namespace ebb {

namespace {

// The means of the columns that go; 0 for those that stay.
std::vector<double> means_of_gone(const std::vector<double>& means,
                                  const std::vector<int64_t>& kept, int64_t width) {
  std::vector<double> gone = means;
  for (const int64_t structure : kept) std::fill_n(gone.begin() + structure * width, width, 0.0);
  return gone;
}

// weight (rows, columns) times the vector, row by row.
std::vector<float> product(const SafetensorsReader& file, const ParamSpec& weight,
                           const std::string& prefix, const std::vector<double>& vector) {
  constexpr int64_t kPart = 1 << 16;  // numbers that are read at once
  const int64_t columns = std::ssize(vector);
  std::vector<double> sums(static_cast<size_t>(weight.rows()));
  std::vector<float> part(kPart);
  MatrixStream stream(file, weight, prefix);
  for (int64_t first = 0; stream.left() > 0; first += kPart) {
    const int64_t count = std::min(kPart, stream.left());
    stream.read(part.data(), count);
    for (int64_t i = 0; i < count; ++i) {
      sums[(first + i) / columns] += part[i] * vector[(first + i) % columns];
    }
  }
  return {sums.begin(), sums.end()};
}

}  // namespace

Gains compensation(const SafetensorsReader& file, const DitConfig& config, const Survivors& kept,
                   const std::vector<BlockMeans>& means) {
  Gains gains;
  std::map<std::string, ParamSpec> specs;
  for (const ParamSpec& spec : parameters(config)) specs.emplace(spec.name, spec);
  for (const Survivor& block : kept) {
    for (const Structure kind : kStructures) {
      const std::vector<int64_t>& left = block.of(kind);
      const int64_t before = structure_count(config.blocks[block.block], kind);
      if (left.empty() || std::ssize(left) == before) continue;
      const int64_t width = kind == Structure::head ? config.head_width : 1;
      const auto gone = means_of_gone(means.at(block.block).of(kind), left, width);
      const std::string layer = fmt::format("blocks.{}.{}", block.block,
                                            kind == Structure::head ? "attn.proj" : "mlp.fc2");
      for (const std::string prefix : {"", kAverage}) {
        if (file.find(prefix + layer + ".weight") == nullptr) continue;
        gains[prefix + layer + ".bias"] = product(file, specs.at(layer + ".weight"), prefix, gone);
      }
    }
  }
  return gains;
}

}  // namespace ebb
