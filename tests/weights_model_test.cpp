// Which model a weights file holds, told by its metadata or by the shapes of its tensors.
#include "state/weights_model.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "formats/model_json.h"
#include "model_fixture.h"
#include "temp_folder.h"

namespace ebb {
namespace {

class WeightsModel : public testing::Test {
 protected:
  // A file with the tensors of a model, all zero, and perhaps another one.
  SafetensorsReader file_of(const DitConfig& config, const std::string& another = "",
                            std::map<std::string, std::string> metadata = {}) const {
    std::vector<float> zeros(1 << 20);
    std::vector<TensorData> tensors;
    for (const ParamSpec& spec : parameters(config)) {
      tensors.push_back({spec.name, TensorType::F32, spec.stored(), zeros.data()});
      if (!spec.sparse()) continue;
      const Shape bits = {spec.rows(), mask_bytes(spec.columns())};
      tensors.push_back({kMask + spec.name, TensorType::U8, bits, zeros.data()});
    }
    if (!another.empty()) tensors.push_back({another, TensorType::F32, {2}, zeros.data()});
    write_safetensors(temp_.path() / "w.safetensors", tensors, std::move(metadata), false);
    return SafetensorsReader(temp_.path() / "w.safetensors");
  }
  static BesideTensors beside(const DitConfig& config) {
    return {config.width / config.head_width, config.image_size, config.objective};
  }
  template <typename Run>
  static std::string refusal(Run run) {
    try {
      run();
    } catch (const Error& e) {
      return e.what();
    }
    return "";
  }

  TempFolder temp_;
};

TEST_F(WeightsModel, ShapesTellEveryKindOfModel) {
  for (const ModelCase& each : model_cases()) {
    SCOPED_TRACE(each.name);
    if (density_of(each.config) < 1) continue;
    EXPECT_EQ(model_of(file_of(each.config), beside(each.config)), each.config);
  }
}

TEST_F(WeightsModel, ShapesTellBlocksOfUnevenSizes) {
  for (const QkNormKind kind : {QkNormKind::none, QkNormKind::layer, QkNormKind::rms}) {
    const DitConfig config = uneven_config(Objective::flow, kind);
    EXPECT_EQ(model_of(file_of(config), beside(config)), config);
  }
}

// What is left of a matrix is one row of numbers: how wide it was is in the metadata alone.
TEST_F(WeightsModel, SparseOnesAreToldByTheirMetadataAlone) {
  const DitConfig config = sparse_config();
  const std::string text = refusal([&] { model_of(file_of(config), beside(config)); });
  EXPECT_NE(text.find("mask.t_embedder."), std::string::npos) << text;
  EXPECT_EQ(model_of(file_of(config, "", {{kModelKey, model_to_json(config)}}), {}), config);
}

TEST_F(WeightsModel, NormsOfQueriesTellTheNumberOfHeads) {
  DitConfig config = small_config();
  config.qk_norm = QkNormKind::rms;
  EXPECT_EQ(model_of(file_of(config), {}), config);
}

// Heads are in no shape: only a model of a named width and depth is taken for one of that name.
TEST_F(WeightsModel, HeadsAreNotGuessedForSizesWithoutAName) {
  DitConfig config = small_config();
  config.width = 384;
  set_blocks(config, 1, 4);
  EXPECT_NE(refusal([&] { model_of(file_of(config), {}); }).find("heads"), std::string::npos);
}

TEST_F(WeightsModel, MetadataWinOverWhatIsSaidBesides) {
  const DitConfig config = small_config();
  const auto file = file_of(config, "", {{kModelKey, model_to_json(config)}});
  EXPECT_EQ(model_of(file, {4, 99, Objective::flow}), config);
}

TEST_F(WeightsModel, ATensorOfNoUseIsRefusedByName) {
  const DitConfig config = small_config();
  for (const char* name : {"blocks.2.attn.qkv.weight", "blocks.0.attn.q_norm.weight",
                           "ema.pos_embed", "m.nothing", "y_embedder.embedding_table.bias"}) {
    const std::string what =
        refusal([&] { refuse_unknown_tensors(file_of(config, name), config); });
    EXPECT_NE(what.find(name), std::string::npos) << what;
  }
  for (const char* kind : {"ema.", "m.", "v."}) {
    const std::string name = kind + std::string("blocks.1.mlp.fc1.bias");
    EXPECT_EQ(refusal([&] { refuse_unknown_tensors(file_of(config, name), config); }), "");
  }
}

}  // namespace
}  // namespace ebb
