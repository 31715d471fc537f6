// Removing is zeroing: loss, output and every gradient that is left are those of the parent with
// the same structures set to zero, bit for bit. And training goes on through a pruning.
#include <bit>

#include "cli_fixture.h"
#include "prune/surgery.h"
#include "prune_fixture.h"

namespace ebb::cli_fixture {
namespace {

std::vector<uint32_t> bits(const std::vector<float>& values) {
  std::vector<uint32_t> all;
  for (const float value : values) all.push_back(std::bit_cast<uint32_t>(value));
  return all;
}

class CliPruneExact : public CliTest {
 protected:
  void write_batch(const DitConfig& c, int64_t count) const {
    const Shape shape = {count, c.channels, c.image_size, c.image_size};
    std::vector<float> x, noise;
    for (int64_t i = 0; i < element_count(shape); ++i) {
      x.push_back(8 * value_of("x", i));
      noise.push_back(10 * value_of("noise", i));
    }
    std::vector<int64_t> t, y;
    for (int64_t i = 0; i < count; ++i) {
      t.push_back(i * 997 / count);
      y.push_back(i % (c.classes + 1));
    }
    write_safetensors(at("b.safetensors"),
                      {{"x", TensorType::F32, shape, x.data()},
                       {"noise", TensorType::F32, shape, noise.data()},
                       {"t", TensorType::I64, {count}, t.data()},
                       {"y", TensorType::I64, {count}, y.data()}},
                      {}, false);
  }

  // Which numbers of a tensor belong to structures that go.
  static std::vector<bool> going(const DitConfig& config, const Survivors& kept,
                                 const ParamSpec& spec) {
    std::vector<bool> goes(static_cast<size_t>(element_count(spec.shape)));
    const Belonging place = belonging(spec, config);
    if (!place.member) return goes;
    const int64_t columns = spec.shape.size() > 1 ? spec.shape[1] : 1;
    const int64_t count = structure_count(config.blocks[*place.block], place.member->kind);
    const auto& left = kept[*place.block].of(place.member->kind);
    for (int64_t i = 0; i < std::ssize(goes); ++i) {
      const int64_t along = place.member->columns ? i % columns : i / columns;
      const int64_t number = along / place.member->width % count;
      goes[i] = !std::binary_search(left.begin(), left.end(), number);
    }
    return goes;
  }

  static std::vector<float> left_of(const std::vector<float>& values,
                                    const std::vector<bool>& goes) {
    std::vector<float> left;
    for (size_t i = 0; i < values.size(); ++i) {
      if (!goes[i]) left.push_back(values[i]);
    }
    return left;
  }

  using Chosen = std::map<std::string, std::vector<bool>>;  // numbers of each tensor

  // The pruned model has what does not go of the parent in which some numbers are zero.
  void expect_equal(const DitConfig& config, const Survivors& kept, const Chosen& zeros,
                    const Chosen& goes, const Args& more = {}) {
    Written w{info_of(config)};
    w.moments = w.average = false;
    w.value = [&](const std::string& name, int64_t i) {
      return zeros.at(name)[i] ? 0.0f : value_of(name, i);
    };
    write_checkpoint(at("zeroed.safetensors"), w);
    w.value = value_of;
    write_checkpoint(at("parent.safetensors"), w);
    {
      const SafetensorsReader parent(at("parent.safetensors"));
      write_pruned(at("pruned.safetensors"), parent, read_info(parent), {kept, false});
    }
    write_batch(config, 3);
    for (const char* which : {"zeroed", "pruned"}) {
      succeed(Args{"grad", "--weights", std::string(which) + ".safetensors", "--batch-file",
                   "b.safetensors", "--out", std::string(which) + ".grad"} +
              more);
    }
    const SafetensorsReader zeroed(at("zeroed.grad")), pruned(at("pruned.grad"));
    for (const char* name : {"loss", "output"}) {
      EXPECT_EQ(bits(numbers(pruned, name)), bits(numbers(zeroed, name))) << name;
    }
    size_t compared = 2;
    for (const ParamSpec& spec : parameters(config)) {
      const std::vector<bool>& gone = goes.at(spec.name);
      if (!spec.trained() || std::find(gone.begin(), gone.end(), false) == gone.end()) continue;
      const Belonging place = belonging(spec, config);
      std::string now = spec.name;
      if (place.block) {
        const auto at = std::find_if(kept.begin(), kept.end(), [&](const Survivor& each) {
          return each.block == *place.block;
        });
        now = "blocks." + std::to_string(at - kept.begin()) + "." + place.within;
      }
      const auto wanted = left_of(numbers(zeroed, "grad." + spec.name), gone);
      EXPECT_TRUE(bits(numbers(pruned, "grad." + now)) == bits(wanted)) << spec.name;
      ++compared;
    }
    EXPECT_EQ(compared, pruned.tensors().size());
    EXPECT_GT(compared, 20u);
  }

  void expect_zeroing(const DitConfig& config, const Survivors& kept, const Args& more = {}) {
    Chosen goes;
    for (const ParamSpec& spec : parameters(config)) goes[spec.name] = going(config, kept, spec);
    expect_equal(config, kept, goes, goes, more);
  }

  // Of blocks that keep everything, or nothing of a half: a half is shut by its gate's D rows of
  // adaLN, and goes with all that is its own.
  void expect_shutting(const DitConfig& config, const Survivors& kept) {
    Chosen zeros, goes;
    for (const ParamSpec& spec : parameters(config)) {
      std::vector<bool>& zero = zeros[spec.name];
      std::vector<bool>& gone = goes[spec.name];
      zero.assign(static_cast<size_t>(element_count(spec.shape)), false);
      gone = zero;
      const Belonging place = belonging(spec, config);
      if (!place.block) continue;
      const auto found = std::find_if(kept.begin(), kept.end(), [&](const Survivor& each) {
        return each.block == *place.block;
      });
      const Survivor left = found == kept.end() ? Survivor{*place.block, {}, {}} : *found;
      for (const Structure kind : kStructures) {
        if (!left.of(kind).empty()) continue;
        if (place.half == kind) gone.assign(gone.size(), true);
        if (place.within.find("adaLN") == std::string::npos) continue;
        const auto third = std::ssize(zero) / 6;  // a chunk
        const auto half = (kind == Structure::head ? 0 : 3) * third;
        std::fill_n(gone.begin() + half, 3 * third, true);
        std::fill_n(zero.begin() + half + 2 * third, third, true);  // shift, scale, gate
      }
    }
    expect_equal(config, kept, zeros, goes);
  }

  // Every third head and every other MLP unit, other ones in every block.
  static Survivors thinned(const DitConfig& config, bool heads, bool mlp) {
    Survivors kept = all_of(config);
    for (Survivor& block : kept) {
      const int64_t b = block.block;
      if (heads) std::erase_if(block.heads, [&](int64_t i) { return (i + b) % 3 == 0; });
      if (mlp) std::erase_if(block.mlp, [&](int64_t i) { return (i * 7 + b) % 16 < 8; });
    }
    return kept;
  }
};

TEST_F(CliPruneExact, RemovingMlpUnitsIsZeroingThem) {
  const DitConfig config = prunable_config(3, 4, 64);
  expect_zeroing(config, thinned(config, false, true));
}

TEST_F(CliPruneExact, RemovingHeadsIsZeroingThem) {
  const DitConfig config = prunable_config(3, 4, 64);
  expect_zeroing(config, thinned(config, true, false));
}

// Products that are cut in depth, tiles that are cut in keys, and qk-norm, whose vectors all heads
// share.
TEST_F(CliPruneExact, RemovingIsZeroingInLargeProductsAndWithQkNorm) {
  DitConfig config = prunable_config(2, 6, 240);
  config.image_size = 24;  // 144 tokens
  for (const QkNormKind norm : {QkNormKind::none, QkNormKind::layer}) {
    config.qk_norm = norm;
    expect_zeroing(config, thinned(config, true, true));
  }
}

TEST_F(CliPruneExact, RemovingHalvesIsShuttingTheirGates) {
  DitConfig config = prunable_config(3, 4, 64);
  config.qk_norm = QkNormKind::rms;
  Survivors kept = all_of(config);
  kept[0].mlp.clear();
  kept[1].heads.clear();
  expect_shutting(config, kept);
}

TEST_F(CliPruneExact, RemovingABlockIsShuttingBothItsGates) {
  const DitConfig config = prunable_config(4, 4, 64);
  Survivors kept = all_of(config);
  kept.erase(kept.begin() + 1);
  expect_shutting(config, kept);
}

TEST_F(CliPruneExact, RemovingIsZeroingWithMicroBatchesAndRecomputation) {
  const DitConfig config = prunable_config(3, 4, 64);
  expect_zeroing(config, thinned(config, true, true),
                 {"--micro-batch", "2", "--recompute", "all", "--order", "layer"});
}

}  // namespace
}  // namespace ebb::cli_fixture
