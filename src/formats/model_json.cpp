#include "formats/model_json.h"

#include <fmt/ranges.h>

#include <map>

#include "base/text.h"
#include "formats/json_reader.h"

namespace ebb {

namespace {

constexpr const char* kObjectives[] = {"ddpm", "flow"};
constexpr const char* kQkNorms[] = {"none", "layer", "rms"};

template <size_t kCount>
int parse_word(const char* const (&words)[kCount], const std::string& word,
               const std::string& where, Exit code) {
  std::string wanted;
  for (size_t i = 0; i < kCount; ++i) {
    if (word == words[i]) return static_cast<int>(i);
    wanted += fmt::format("{}{}", i ? ", " : "", words[i]);
  }
  fail(code, fmt::format("{}: found '{}', wanted one of {}", where, printable(word), wanted));
}

}  // namespace

const char* objective_name(Objective objective) { return kObjectives[static_cast<int>(objective)]; }

Objective parse_objective(const std::string& word, const std::string& where, Exit code) {
  return static_cast<Objective>(parse_word(kObjectives, word, where, code));
}

const char* qk_norm_name(QkNormKind kind) { return kQkNorms[static_cast<int>(kind)]; }

QkNormKind parse_qk_norm(const std::string& word, const std::string& where, Exit code) {
  return static_cast<QkNormKind>(parse_word(kQkNorms, word, where, code));
}

std::string model_to_json(const DitConfig& c) {
  std::string blocks;
  for (const BlockShape& shape : c.blocks) {
    blocks += fmt::format("{}[{},{}", blocks.empty() ? "" : ",", shape.heads, shape.mlp);
    if (shape.left != BlockShape{}.left) blocks += fmt::format(",{}", fmt::join(shape.left, ","));
    blocks += "]";
  }
  std::string left;
  if (c.left != DitConfig{}.left) left = fmt::format(R"(,"left":[{}])", fmt::join(c.left, ","));
  return fmt::format(
      R"({{"width":{},"depth":{},"heads":{},"patch":{},"image_size":{},"channels":{},"classes":{},)"
      R"("learn_sigma":{},"objective":"{}","qk_norm":"{}","blocks":[{}]{}}})",
      c.width, c.depth(), c.width / c.head_width, c.patch, c.image_size, c.channels, c.classes,
      c.learn_sigma, objective_name(c.objective), qk_norm_name(c.qk_norm), blocks, left);
}

namespace {

// What any model can have: so bounded, no sum or product of them can overflow before validate().
constexpr int64_t kMostBlocks = 1024, kMostOfAny = 1 << 24;

int64_t read_size(JsonReader& json) {
  const int64_t value = json.read_int();
  if (value < 0 || value > kMostOfAny) {
    json.refuse(fmt::format("{}", value), fmt::format("a size from 0 to {}", kMostOfAny));
  }
  return value;
}

// Weights that are left of one matrix.
int64_t read_left(JsonReader& json) {
  constexpr int64_t kMost = int64_t{1} << 44;
  const int64_t value = json.read_int();
  if (value < 0 || value > kMost) {
    json.refuse(fmt::format("{}", value), fmt::format("a number of weights from 0 to {}", kMost));
  }
  return value;
}

// [heads, mlp], and of a block with sparse matrices what is left of each.
BlockShape read_block(JsonReader& json) {
  constexpr const char* kWanted = "a block's heads and MLP width, or these and 5 more";
  BlockShape shape{0, 0};
  size_t count = 0;
  json.begin_array();
  while (json.next_element()) {
    if (count == 2 + shape.left.size()) json.refuse("one more number", kWanted);
    if (count < 2) {
      (count == 0 ? shape.heads : shape.mlp) = read_size(json);
    } else {
      shape.left[count - 2] = read_left(json);
    }
    ++count;
  }
  if (count != 2 && count != 2 + shape.left.size()) json.refuse("a shorter list", kWanted);
  return shape;
}

std::array<int64_t, DitConfig::kMatrices> read_left_of_model(JsonReader& json) {
  std::array<int64_t, DitConfig::kMatrices> left{};
  size_t count = 0;
  json.begin_array();
  while (json.next_element()) {
    if (count == left.size()) json.refuse("one more number", "three");
    left[count++] = read_left(json);
  }
  if (count != left.size()) json.refuse("a shorter list", "three numbers");
  return left;
}

std::vector<BlockShape> read_blocks(JsonReader& json) {
  std::vector<BlockShape> blocks;
  json.begin_array();
  while (json.next_element()) {
    if (std::ssize(blocks) == kMostBlocks) {
      json.refuse("one more block", fmt::format("at most {}", kMostBlocks));
    }
    blocks.push_back(read_block(json));
  }
  return blocks;
}

}  // namespace

DitConfig model_from_json(const std::string& text, const std::string& where, Exit code) {
  JsonReader json(text, where + ": " + kModelKey, code, "wanted what `ebb train` writes");
  DitConfig c;
  int64_t depth = 0;
  int64_t heads = 0;
  std::vector<BlockShape> blocks;
  const std::map<std::string, int64_t*> sizes = {
      {"width", &c.width},           {"depth", &depth},         {"heads", &heads},
      {"patch", &c.patch},           {"channels", &c.channels}, {"classes", &c.classes},
      {"image_size", &c.image_size},
  };
  json.begin_object();
  for (std::string key; json.next_key(key);) {
    if (const auto size = sizes.find(key); size != sizes.end()) {
      *size->second = read_size(json);
    } else if (key == "learn_sigma") {
      c.learn_sigma = json.read_bool();
    } else if (key == "objective") {
      c.objective = parse_objective(json.read_string(), where + ": objective", code);
    } else if (key == "qk_norm") {
      c.qk_norm = parse_qk_norm(json.read_string(), where + ": qk_norm", code);
    } else if (key == "blocks") {
      blocks = read_blocks(json);
    } else if (key == "left") {
      c.left = read_left_of_model(json);
    } else {
      json.skip_value();
    }
  }
  json.finish();
  if (!blocks.empty() && std::ssize(blocks) != depth) {
    fail(code,
         fmt::format("{}: {}: found {} blocks at a depth of {}", where, kModelKey, blocks.size(),
                     depth),
         "wanted what `ebb train` writes");
  }
  try {
    set_blocks(c, depth, heads);
    if (!blocks.empty()) c.blocks = blocks;
    validate(c);
  } catch (const Error& e) {
    fail(code, fmt::format("{}: {} is not a model: {}", where, kModelKey, e.what()), e.hint());
  }
  return c;
}

}  // namespace ebb
