// What survives a surgery: every number where it belongs, and the record of where it came from.
#include "prune/surgery.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <numeric>

#include "prune/scores.h"
#include "prune_fixture.h"
#include "temp_folder.h"

namespace ebb {
namespace {

namespace fs = std::filesystem;

const Survivors kSome = {{0, {0, 1, 2, 3}, {0, 1, 2, 7, 8, 127}}, {2, {1, 3}, {5, 64, 65, 100}}};

std::string slurp(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

class PruneSurgery : public testing::Test {
 protected:
  void write(const std::string& name, const Written& w) const { write_checkpoint(at(name), w); }
  void prune(const std::string& name, const std::string& to, const Survivors& kept,
             bool fresh = false) const {
    const SafetensorsReader file(at(name));
    const CheckpointInfo info = read_info(file);
    check_tensors(file, info);
    write_pruned(at(to), file, info, {kept, fresh});
  }
  fs::path at(const std::string& name) const { return temp_.path() / name; }

  // Numbers of a tensor of the parent, its chosen rows and columns; an empty list: all.
  static std::vector<float> chosen(const std::string& name, int64_t rows, int64_t columns,
                                   const std::vector<int64_t>& kept_rows,
                                   const std::vector<int64_t>& kept_columns) {
    std::vector<float> values;
    const auto in = [](const std::vector<int64_t>& list, int64_t i) {
      return list.empty() || std::find(list.begin(), list.end(), i) != list.end();
    };
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < columns; ++c) {
        if (in(kept_rows, r) && in(kept_columns, c))
          values.push_back(value_of(name, r * columns + c));
      }
    }
    return values;
  }

  TempFolder temp_;
};

// Heads of width 8 in blocks of 4: rows of q, k and v, columns of proj.
TEST_F(PruneSurgery, EveryTensorOfTheStateIsCutByTheSameIndices) {
  const DitConfig config = prunable_config();
  write("a", {info_of(config)});
  prune("a", "b", kSome);
  const SafetensorsReader file(at("b"));
  verify_hashes(file);
  const std::vector<int64_t> inner = {8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31};
  std::vector<int64_t> qkv;
  for (const int64_t part : {0, 32, 64}) {
    for (const int64_t i : inner) qkv.push_back(part + i);
  }
  const std::vector<int64_t>& units = kSome[1].mlp;
  for (const std::string prefix : {"", "m.", "v.", "ema."}) {
    const std::string old = prefix + "blocks.2.", now = prefix + "blocks.1.";
    const auto expect = [&](const char* name, int64_t rows, int64_t columns,
                            const std::vector<int64_t>& r, const std::vector<int64_t>& c) {
      EXPECT_EQ(numbers(file, now + name), chosen(old + name, rows, columns, r, c)) << now << name;
    };
    expect("attn.qkv.weight", 96, 32, qkv, {});
    expect("attn.qkv.bias", 96, 1, qkv, {});
    expect("attn.proj.weight", 32, 32, {}, inner);
    expect("attn.proj.bias", 32, 1, {}, {});
    expect("mlp.fc1.weight", 128, 32, units, {});
    expect("mlp.fc1.bias", 128, 1, units, {});
    expect("mlp.fc2.weight", 32, 128, {}, units);
    expect("mlp.fc2.bias", 32, 1, {}, {});
    expect("adaLN_modulation.1.weight", 192, 32, {}, {});
    EXPECT_EQ(numbers(file, prefix + "final_layer.linear.weight"),
              chosen(prefix + "final_layer.linear.weight", 8, 32, {}, {}));
    EXPECT_EQ(file.find(prefix + "blocks.2.mlp.fc1.bias"), nullptr);
  }
  EXPECT_EQ(numbers(file, "pos_embed"), chosen("pos_embed", 16, 32, {}, {}));
}

// What belongs to a half goes with the last of its structures: also its bias, qk-norm, and its
// three chunks of adaLN, of which attention's come first.
TEST_F(PruneSurgery, AHalfGoesWithAllThatIsItsOwn) {
  for (const Optimizer optimizer : {Optimizer::adamw, Optimizer::adafactor}) {
    DitConfig config = prunable_config();
    config.qk_norm = QkNormKind::layer;
    write("a", {info_of(config, optimizer)});
    Survivors kept = all_of(config);
    kept[0].mlp.clear();
    kept[1].heads.clear();
    prune("a", "b", kept);
    const SafetensorsReader file(at("b"));
    verify_hashes(file);
    const CheckpointInfo info = read_info(file);
    check_tensors(file, info);  // there is nothing that such a model does not have
    EXPECT_EQ(info.config.blocks, (std::vector<BlockShape>{{4, 0}, {0, 128}, {4, 128}}));
    std::vector<int64_t> first(96), second(96);
    std::iota(first.begin(), first.end(), 0);
    std::iota(second.begin(), second.end(), 96);
    const bool factored = optimizer == Optimizer::adafactor;
    for (const std::string prefix : {"", "ema.", factored ? "v_row." : "v."}) {
      const auto expect = [&](const char* name, int64_t columns, const std::vector<int64_t>& rows) {
        const std::string whole = prefix + name;
        const int64_t across = prefix == "v_row." ? 1 : columns;
        EXPECT_EQ(numbers(file, whole), chosen(whole, 192, across, rows, {})) << whole;
      };
      expect("blocks.0.adaLN_modulation.1.weight", 32, first);
      expect("blocks.1.adaLN_modulation.1.weight", 32, second);
      expect("blocks.2.adaLN_modulation.1.weight", 32, {});
      if (prefix != "v_row.") expect("blocks.1.adaLN_modulation.1.bias", 1, second);
    }
    if (factored) {
      EXPECT_EQ(numbers(file, "v_col.blocks.1.adaLN_modulation.1.weight"),
                chosen("v_col.blocks.1.adaLN_modulation.1.weight", 32, 1, {}, {}));
    }
    // And again: the half that is left can be thinned, and the record knows its numbers.
    kept = all_of(info.config);
    std::erase_if(kept[1].mlp, [](int64_t i) { return i % 2 == 0; });
    kept.erase(kept.begin());
    prune("b", "c", kept);
    Survivors at_once = all_of(config);
    at_once[1].heads.clear();
    at_once[1].mlp = kept[0].mlp;
    at_once.erase(at_once.begin());
    prune("a", "d", at_once);
    EXPECT_EQ(slurp(at("c")), slurp(at("d")));
  }
}

TEST_F(PruneSurgery, TheInformationGoesOn) {
  Written w{info_of(prunable_config())};
  w.besides = {{"whose", "mine"}};
  write("a", w);
  prune("a", "b", kSome);
  const SafetensorsReader file(at("b"));
  const CheckpointInfo info = read_info(file);
  EXPECT_EQ(info.config, pruned_config(prunable_config(), kSome));
  EXPECT_EQ(info.step, 12);
  EXPECT_EQ(info.samples, 48);
  EXPECT_EQ(info.seed, 7u);
  EXPECT_EQ(info.updates, 11);
  EXPECT_EQ(info.loss_scale, 1024);
  EXPECT_EQ(info.clean_steps, 3);
  EXPECT_EQ(info.average_start, 0.25);
  EXPECT_EQ(info.data.names, w.info.data.names);
  EXPECT_EQ(info.settings, "# a run\nwidth = 32\ndepth = 2\nshapes = \"4:6,2:4\"\nlr = 0.1\n");
  EXPECT_EQ(file.metadata().at("whose"), "mine");
  EXPECT_EQ(info.pruned, R"({"blocks":[{"block":0,"heads":"0-3","mlp":"0-2,7-8,127"},)"
                         R"({"block":2,"heads":"1,3","mlp":"5,64-65,100"}]})");
}

TEST_F(PruneSurgery, AFreshOptimizerHasMomentsOfZeroAndTheSameAverage) {
  write("a", {info_of(prunable_config())});
  prune("a", "b", kSome);
  prune("a", "c", kSome, true);
  const SafetensorsReader kept(at("b")), fresh(at("c"));
  ASSERT_EQ(kept.tensors().size(), fresh.tensors().size());
  for (const TensorEntry& entry : fresh.tensors()) {
    const bool moment = entry.name.starts_with("m.") || entry.name.starts_with("v.");
    std::vector<float> wanted = numbers(kept, entry.name);
    if (moment) std::fill(wanted.begin(), wanted.end(), 0.0f);
    EXPECT_EQ(numbers(fresh, entry.name), wanted) << entry.name;
  }
  EXPECT_EQ(read_info(fresh).updates, 0);
  EXPECT_EQ(read_info(fresh).step, 12);
}

TEST_F(PruneSurgery, LionsMomentAndAdafactorsRowsAndColumnsAreCutToo) {
  write("lion", {info_of(prunable_config(), Optimizer::lion)});
  prune("lion", "b", kSome);
  const SafetensorsReader lion(at("b"));
  EXPECT_EQ(numbers(lion, "m.blocks.1.mlp.fc1.bias"),
            chosen("m.blocks.2.mlp.fc1.bias", 128, 1, kSome[1].mlp, {}));
  write("ada", {info_of(prunable_config(), Optimizer::adafactor)});
  prune("ada", "c", kSome);
  const SafetensorsReader ada(at("c"));
  const auto& units = kSome[1].mlp;
  EXPECT_EQ(numbers(ada, "v_row.blocks.1.mlp.fc1.weight"),
            chosen("v_row.blocks.2.mlp.fc1.weight", 128, 1, units, {}));
  EXPECT_EQ(numbers(ada, "v_col.blocks.1.mlp.fc1.weight"),
            chosen("v_col.blocks.2.mlp.fc1.weight", 32, 1, {}, {}));
  EXPECT_EQ(numbers(ada, "v_row.blocks.1.mlp.fc2.weight"),
            chosen("v_row.blocks.2.mlp.fc2.weight", 32, 1, {}, {}));
  EXPECT_EQ(numbers(ada, "v_col.blocks.1.mlp.fc2.weight"),
            chosen("v_col.blocks.2.mlp.fc2.weight", 128, 1, units, {}));
  EXPECT_EQ(ada.find("v_row.blocks.1.attn.qkv.weight")->shape, Shape{48});
  EXPECT_EQ(ada.find("v_col.blocks.1.attn.proj.weight")->shape, Shape{16});
}

TEST_F(PruneSurgery, TwoPruningsAreOneByTheUnionOfWhatTheyRemove) {
  write("a", {info_of(prunable_config(4))});
  const Survivors first = {
      {0, {0, 2, 3}, {1, 2, 3, 50, 51, 90}}, {1, {1}, {7, 8}}, {3, {0, 1, 2, 3}, {10, 20, 30, 40}}};
  const Survivors second = {{0, {0, 2}, {0, 2, 3, 5}}, {2, {3}, {1, 2}}};  // counted in the first
  prune("a", "b", first);
  prune("b", "c", second);
  prune("a", "d", {{0, {0, 3}, {1, 3, 50, 90}}, {3, {3}, {20, 30}}});
  EXPECT_EQ(slurp(at("c")), slurp(at("d")));
}

// 300 kB of one tensor, in parts that end within rows, are what they were.
TEST_F(PruneSurgery, PartsEndAnywhere) {
  DitConfig config = prunable_config(1, 4, 516);
  config.blocks[0].mlp = 2200;
  static_assert(516 * 2200 * 4 > kSurgeryPart);
  write("a", {info_of(config)});
  Survivors kept = all_of(config);
  std::erase_if(kept[0].mlp, [](int64_t i) { return i % 3 == 1; });
  prune("a", "b", kept);
  const SafetensorsReader parent(at("a")), file(at("b"));
  const std::vector<float> before = numbers(parent, "m.blocks.0.mlp.fc2.weight");
  const std::vector<float> after = numbers(file, "m.blocks.0.mlp.fc2.weight");
  const size_t width = kept[0].mlp.size();
  ASSERT_EQ(after.size(), 516 * width);
  for (size_t i = 0; i < after.size(); ++i) {
    ASSERT_EQ(after[i], before[i / width * 2200 + kept[0].mlp[i % width]]) << i;
  }
}

TEST_F(PruneSurgery, ADamagedByteAnywhereLeavesNothing) {
  write("a", {info_of(prunable_config())});
  const std::string good = slurp(at("a"));
  const size_t data = 8 + *reinterpret_cast<const uint64_t*>(good.data());
  for (const double place : {0.0, 0.3, 0.6, 0.9999}) {
    std::string bad = good;
    bad[data + static_cast<size_t>(place * static_cast<double>(good.size() - data))] ^= 1;
    std::ofstream(at("bad"), std::ios::binary) << bad;
    try {
      prune("bad", "out", kSome);
      ADD_FAILURE() << "not noticed";
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), Exit::disk);
      EXPECT_NE(std::string(e.what()).find("hash"), std::string::npos) << e.what();
    }
    EXPECT_FALSE(fs::exists(at("out")));
  }
}

TEST_F(PruneSurgery, ScoresAreNormsOfWholeStructures) {
  const DitConfig config = prunable_config();
  write("a", {info_of(config)});
  const SafetensorsReader file(at("a"));
  const auto sum = [&](const std::vector<std::string>& prefixes, auto of, Structure kind,
                       int64_t block, int64_t number) {
    double total = 0;
    for (const ParamSpec& spec : parameters(config)) {
      const Belonging place = belonging(spec, config);
      if (place.block != block || !place.member || place.member->kind != kind) continue;
      const int64_t columns = spec.shape.size() > 1 ? spec.shape[1] : 1;
      const int64_t of_kind = structure_count(config.blocks[block], kind);
      for (int64_t i = 0; i < element_count(spec.shape); ++i) {
        const int64_t along = place.member->columns ? i % columns : i / columns;
        if (along / place.member->width % of_kind != number) continue;
        total += of(value_of(prefixes[0] + spec.name, i), value_of(prefixes[1] + spec.name, i));
      }
    }
    return total;
  };
  const std::vector<std::string> prefixes = {"", "v."};
  const auto l1 = [](double w, double) { return std::abs(w); };
  const auto l2 = [](double w, double) { return w * w; };
  const auto fisher = [](double w, double v) { return w * w * v; };
  const Scored all{true, true, true};
  const Scores by_l1 = checkpoint_scores(file, config, ScoreBy::l1, all);
  const Scores by_l2 = checkpoint_scores(file, config, ScoreBy::l2, all);
  const Scores by_fisher = checkpoint_scores(file, config, ScoreBy::fisher, all);
  EXPECT_FALSE(by_l2.comparable);
  EXPECT_TRUE(by_fisher.comparable);
  for (const Structure kind : kStructures) {
    for (const int64_t number : {0, 3}) {
      const auto near = [](double found, double wanted) {
        EXPECT_NEAR(found, wanted, 1e-12 * std::abs(wanted));
      };
      near(by_l1.blocks[1].of(kind)[number], sum(prefixes, l1, kind, 1, number));
      near(by_l2.blocks[1].of(kind)[number], std::sqrt(sum(prefixes, l2, kind, 1, number)));
      near(by_fisher.blocks[1].of(kind)[number], sum(prefixes, fisher, kind, 1, number));
    }
  }
  double block = 0;
  for (const ParamSpec& spec : parameters(config)) {
    if (belonging(spec, config).block != 1) continue;
    for (int64_t i = 0; i < element_count(spec.shape); ++i) {
      block += std::abs(static_cast<double>(value_of(spec.name, i)));
    }
  }
  EXPECT_NEAR(by_l1.blocks[1].block, block, 1e-12 * block);
}

TEST_F(PruneSurgery, FisherOfFactoredMomentsIsThatOfTheirProduct) {
  const DitConfig config = prunable_config(1);
  write("a", {info_of(config, Optimizer::adafactor)});
  const SafetensorsReader file(at("a"));
  const Scores scores = checkpoint_scores(file, config, ScoreBy::fisher, {false, true, false});
  double wanted = 0;
  const auto factored = [&](const std::string& name, int64_t rows, int64_t r, int64_t c) {
    double mean = 0;
    for (int64_t i = 0; i < rows; ++i)
      mean += value_of("v_row." + name, i) / static_cast<double>(rows);
    return value_of("v_row." + name, r) * static_cast<double>(value_of("v_col." + name, c)) / mean;
  };
  const std::string fc1 = "blocks.0.mlp.fc1.weight", fc2 = "blocks.0.mlp.fc2.weight";
  for (int64_t i = 0; i < 32; ++i) {
    wanted += std::pow(value_of(fc1, 9 * 32 + i), 2) * factored(fc1, 128, 9, i);
    wanted += std::pow(value_of(fc2, i * 128 + 9), 2) * factored(fc2, 32, i, 9);
  }
  wanted +=
      std::pow(value_of("blocks.0.mlp.fc1.bias", 9), 2) * value_of("v.blocks.0.mlp.fc1.bias", 9);
  EXPECT_NEAR(scores.blocks[0].mlp[9], wanted, 1e-6 * wanted);
}

TEST_F(PruneSurgery, FisherWithoutMomentsOrWithNoneMadeIsRefused) {
  const auto refused = [&](const Written& w) -> std::string {
    write("a", w);
    try {
      checkpoint_scores(SafetensorsReader(at("a")), w.info.config, ScoreBy::fisher,
                        {true, true, true});
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), Exit::disk);
      return e.what();
    }
    return "";
  };
  Written without{info_of(prunable_config())};
  without.moments = false;
  EXPECT_NE(refused(without).find("no second moments"), std::string::npos);
  EXPECT_NE(refused({info_of(prunable_config(), Optimizer::lion)}).find("no second moments"),
            std::string::npos);
  Written zero{info_of(prunable_config())};
  zero.value = [](const std::string& name, int64_t i) {
    return name.starts_with("v.") ? 0.0f : value_of(name, i);
  };
  EXPECT_NE(refused(zero).find("all zero"), std::string::npos);
}

TEST_F(PruneSurgery, AWeightThatIsNotFiniteIsNamed) {
  Written w{info_of(prunable_config())};
  w.value = [](const std::string& name, int64_t i) {
    return name == "blocks.1.mlp.fc2.weight" && i == 77 ? NAN : value_of(name, i);
  };
  write("a", w);
  try {
    checkpoint_scores(SafetensorsReader(at("a")), w.info.config, ScoreBy::l2, {true, true, false});
    ADD_FAILURE();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), Exit::numbers);
    EXPECT_NE(std::string(e.what()).find("blocks.1.mlp.fc2.weight"), std::string::npos);
  }
}

}  // namespace
}  // namespace ebb
