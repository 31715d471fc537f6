#include "formats/model_json.h"

#include <fmt/format.h>

#include <optional>

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
    blocks += fmt::format("{}[{},{}]", blocks.empty() ? "" : ",", shape.heads, shape.mlp);
  }
  return fmt::format(
      R"({{"width":{},"depth":{},"heads":{},"patch":{},"image_size":{},"channels":{},"classes":{},)"
      R"("learn_sigma":{},"objective":"{}","qk_norm":"{}","blocks":[{}]}})",
      c.width, c.depth(), c.width / c.head_width, c.patch, c.image_size, c.channels, c.classes,
      c.learn_sigma, objective_name(c.objective), qk_norm_name(c.qk_norm), blocks);
}

DitConfig model_from_json(const std::string& text, const std::string& where, Exit code) {
  JsonReader json(text, where + ": " + kModelKey, code, "wanted what `ebb train` writes");
  DitConfig c;
  int64_t depth = 0;
  int64_t heads = 0;
  std::vector<BlockShape> blocks;
  json.begin_object();
  for (std::string key; json.next_key(key);) {
    if (key == "width") {
      c.width = json.read_int();
    } else if (key == "depth") {
      depth = json.read_int();
    } else if (key == "heads") {
      heads = json.read_int();
    } else if (key == "patch") {
      c.patch = json.read_int();
    } else if (key == "image_size") {
      c.image_size = json.read_int();
    } else if (key == "channels") {
      c.channels = json.read_int();
    } else if (key == "classes") {
      c.classes = json.read_int();
    } else if (key == "learn_sigma") {
      c.learn_sigma = json.read_bool();
    } else if (key == "objective") {
      c.objective = parse_objective(json.read_string(), where + ": objective", code);
    } else if (key == "qk_norm") {
      c.qk_norm = parse_qk_norm(json.read_string(), where + ": qk_norm", code);
    } else if (key == "blocks") {
      json.begin_array();
      while (json.next_element()) {
        BlockShape shape{0, 0};
        json.begin_array();
        for (int64_t* part : {&shape.heads, &shape.mlp}) {
          if (!json.next_element()) json.refuse("a block of fewer", "two numbers, heads and MLP");
          *part = json.read_int();
        }
        if (json.next_element()) json.refuse("a block of more", "two numbers, heads and MLP");
        blocks.push_back(shape);
      }
    } else {
      json.skip_value();
    }
  }
  json.finish();
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
