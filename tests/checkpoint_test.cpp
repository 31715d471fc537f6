// What a checkpoint says of itself, whatever it says.
#include "state/checkpoint.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "formats/model_json.h"
#include "kernels/cpu/device.h"
#include "plan/plan.h"
#include "sample/draw.h"
#include "temp_folder.h"

namespace ebb {
namespace {

using Metadata = std::map<std::string, std::string>;

DitConfig small_model() {
  DitConfig c;
  c.width = 16;
  c.patch = 4;
  c.image_size = 8;
  c.channels = 1;
  c.classes = 4;
  set_blocks(c, 2, 2);
  return c;
}

Metadata good() {
  return {{"ebb.format", "1"},
          {"ebb.model", model_to_json(small_model())},
          {"ebb.step", "10"},
          {"ebb.samples", "40"},
          {"ebb.seed", "0"},
          {"ebb.pixels", "true"},
          {"ebb.settings", "ema = 0.9\nema-ramp = false\n"},
          {"ebb.storage", "fp32"},
          {"ebb.updates", "10"},
          {"ebb.loss_scale", "0"},
          {"ebb.clean_steps", "0"},
          {"ebb.average_start", "0.5"},
          {"ebb.data", R"({"kind":"idx","count":32,"fingerprint":"","names":[],"counts":[]})"}};
}

class CheckpointInfoTest : public testing::Test {
 protected:
  CheckpointInfo read(const Metadata& metadata) const {
    write_safetensors(file_, {}, metadata, false);
    return read_info(SafetensorsReader(file_));
  }
  // Reads it, and plans drawing with what it says; only Errors may come of it.
  void use(const Metadata& metadata, const std::string& what) const {
    try {
      const CheckpointInfo info = read(metadata);
      validate(info.config);
      SamplerSpec spec;
      spec.kind = info.config.objective == Objective::flow ? SamplerKind::euler : SamplerKind::ddim;
      make_plans(sampler_programs(info.config, spec, cpu_device()));
    } catch (const Error& e) {
      EXPECT_TRUE(e.code() == Exit::disk) << what << ": " << e.what();
    } catch (const std::exception& e) {
      ADD_FAILURE() << what << ": " << e.what();
    }
  }

  TempFolder temp_;
  std::filesystem::path file_ = std::filesystem::path(temp_.path()) / "a.safetensors";
};

TEST_F(CheckpointInfoTest, AGoodOneIsRead) {
  const CheckpointInfo info = read(good());
  EXPECT_EQ(info.step, 10);
  EXPECT_EQ(info.samples, 40);
  EXPECT_EQ(info.config, small_model());
  EXPECT_EQ(info.data.count, 32);
  EXPECT_EQ(info.average_start, 0.5);
}

TEST_F(CheckpointInfoTest, AnOlderOneIsReadToo) {
  Metadata older = good();
  for (const char* key : {"ebb.storage", "ebb.updates", "ebb.loss_scale", "ebb.clean_steps",
                          "ebb.average_start", "ebb.data"}) {
    older.erase(key);
  }
  const CheckpointInfo info = read(older);
  EXPECT_EQ(info.updates, 10);
  EXPECT_TRUE(info.data.kind.empty());
  EXPECT_NEAR(info.average_start, std::pow(0.9, 10), 1e-12);
}

TEST_F(CheckpointInfoTest, NumbersOutOfBoundsAreRefused) {
  const std::vector<std::pair<const char*, const char*>> kBad = {
      {"ebb.step", "4611686018427387904"},
      {"ebb.step", "-1"},
      {"ebb.step", "11"},
      {"ebb.step", "0"},
      {"ebb.samples", "41"},
      {"ebb.samples", "4611686018427387904"},
      {"ebb.samples", "0"},
      {"ebb.updates", "11"},
      {"ebb.updates", "-3"},
      {"ebb.clean_steps", "11"},
      {"ebb.loss_scale", "3"},
      {"ebb.loss_scale", "nan"},
      {"ebb.loss_scale", "-1"},
      {"ebb.average_start", "1.5"},
      {"ebb.average_start", "nan"},
      {"ebb.average_start", "-0.1"},
      {"ebb.seed", "-1"},
      {"ebb.seed", "99999999999999999999"},
      {"ebb.format", "2"},
      {"ebb.data", "7"},
  };
  for (const auto& [key, value] : kBad) {
    Metadata metadata = good();
    metadata[key] = value;
    try {
      read(metadata);
      ADD_FAILURE() << key << " = " << value << " was accepted";
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), Exit::disk) << key << " = " << value << ": " << e.what();
    }
  }
}

TEST_F(CheckpointInfoTest, NoMetadataIsMistakenForABug) {
  const std::vector<std::string> kValues = {"",
                                            "0",
                                            "1",
                                            "-1",
                                            "9",
                                            "9223372036854775807",
                                            "-9223372036854775808",
                                            "1e999",
                                            "nan",
                                            "true",
                                            "{}",
                                            "[]",
                                            "[[]]",
                                            "{\"width\":16}",
                                            "\"",
                                            std::string(3, '\0'),
                                            "null"};
  for (const auto& [key, unused] : good()) {
    for (const std::string& value : kValues) {
      Metadata metadata = good();
      metadata[key] = value;
      use(metadata, key + " = " + value);
    }
    Metadata metadata = good();
    metadata.erase(key);
    use(metadata, "without " + key);
  }
}

TEST_F(CheckpointInfoTest, NoModelIsMistakenForABug) {
  const std::string model = good().at("ebb.model");
  const std::vector<std::string> kNumbers = {"0",
                                             "1",
                                             "-1",
                                             "3",
                                             "16.5",
                                             "[2]",
                                             "64",
                                             "65536",
                                             "1e3",
                                             "1048576",
                                             "null",
                                             "\"a\"",
                                             "{}",
                                             "2048",
                                             "16384",
                                             "4294967296",
                                             "9223372036854775807"};
  // Every number of the text in turn becomes each of those.
  for (size_t at = 0; at < model.size();) {
    const size_t begin = model.find_first_of("0123456789", at);
    if (begin == std::string::npos) break;
    at = std::min(model.find_first_not_of("0123456789", begin), model.size());
    for (const std::string& number : kNumbers) {
      Metadata metadata = good();
      metadata["ebb.model"] = model.substr(0, begin) + number + model.substr(at);
      use(metadata, metadata["ebb.model"]);
    }
  }
  // And the text loses each of its bytes, or all from there on.
  for (size_t i = 0; i < model.size(); ++i) {
    Metadata metadata = good();
    metadata["ebb.model"] = model.substr(0, i) + model.substr(i + 1);
    use(metadata, metadata["ebb.model"]);
    metadata["ebb.model"] = model.substr(0, i);
    use(metadata, metadata["ebb.model"]);
  }
}

TEST_F(CheckpointInfoTest, UnevenBlocksAreReadOrRefused) {
  const std::string model = good().at("ebb.model");
  const size_t blocks = model.find("\"blocks\"");
  const auto with = [&](const std::string& list) {
    Metadata metadata = good();
    metadata["ebb.model"] = model.substr(0, blocks) + "\"blocks\":" + list + "}";
    return metadata;
  };
  EXPECT_EQ(read(with("[[1,24],[2,64]]")).config.blocks[0].mlp, 24);
  EXPECT_EQ(read(with("[[0,24],[2,0]]")).config.blocks[0].heads, 0);
  for (const char* list :
       {"[[2],[2,128]]", "[[2,64]]", "[[],[]]", "[[2,64,1],[2,64]]", "[2,64]", "[[2,64],[0,0]]",
        "[[2,64],[-1,64]]", "[[2,64],[2,-1]]", "[[2,64],[2,64],[2,64]]"}) {
    EXPECT_THROW(read(with(list)), Error) << list;
    use(with(list), list);
  }
}

TEST_F(CheckpointInfoTest, AChangeToTheMetadataIsFound) {
  const std::vector<float> values = {1, 2, 3};
  write_safetensors(file_, {{"a", TensorType::F32, {3}, values.data()}}, good(), true);
  read_info(SafetensorsReader(file_));
  verify_hashes(SafetensorsReader(file_));
  Metadata changed = SafetensorsReader(file_).metadata();
  changed["ebb.step"] = "20";
  changed["ebb.samples"] = "80";
  write_safetensors(file_, {{"a", TensorType::F32, {3}, values.data()}}, changed, false);
  EXPECT_THROW(read_info(SafetensorsReader(file_)), Error);
  EXPECT_THROW(verify_hashes(SafetensorsReader(file_)), Error);
  changed["ebb.step"] = "10";
  changed["ebb.samples"] = "40";
  changed["of.others"] = "may be added";
  write_safetensors(file_, {{"a", TensorType::F32, {3}, values.data()}}, changed, false);
  read_info(SafetensorsReader(file_));
}

TEST(Models, ThatNoMachineCouldHoldAreRefused) {
  DitConfig c = small_model();
  c.image_size = 16384;
  c.patch = 1;
  c.width = 65536;
  set_blocks(c, 1024, 2);
  EXPECT_THROW(validate(c), Error);
}

}  // namespace
}  // namespace ebb
