#include <ebb/model.h>

#include <fmt/format.h>

#include <algorithm>

#include "api/defaults.h"
#include "api/resolve.h"
#include "base/error.h"
#include "base/text.h"
#include "formats/model_json.h"

namespace ebb {

namespace {

// A size that the data fixes: what the user gave must agree with it.
void agree(int64_t& given, int64_t found, const char* flag, int64_t unset) {
  if (given != unset && given != found) {
    fail(Exit::usage, fmt::format("{}: found {}, but the data has {}", flag, given, found),
         fmt::format("leave {} out", flag));
  }
  given = found;
}

// The network sees squares.
void check_square(const DataInfo& data, const std::string& where) {
  if (data.height == data.width) return;
  fail(Exit::data,
       fmt::format("{}: found samples of {}x{}x{} (channels, height, width), wanted square ones, "
                   "such as {}x{}x{}",
                   where, data.channels, data.height, data.width, data.channels,
                   std::min(data.height, data.width), std::min(data.height, data.width)),
       data.pixels ? fmt::format("--image-size {} scales the shorter side to that and crops the "
                                 "centre",
                                 std::min(data.height, data.width))
                   : "extract the features from square images");
}

void follow_data(Model& m, const DataInfo& data, const std::string& where) {
  check_square(data, where);
  agree(m.image_size, data.height, "--image-size", 0);
  agree(m.channels, data.channels, "--channels", 0);
  if (m.classes < 0) m.classes = data.classes;
  if (m.classes != 0 && m.classes < data.classes) {
    fail(Exit::usage,
         fmt::format("--classes: found {}, but the data has labels up to {}", m.classes,
                     data.classes - 1),
         "leave --classes out, or --classes 0 to train without labels");
  }
}

void follow_name(Model& m, const std::string& where) {
  if (m.name.empty() && m.width == 0) m.name = kDefaultModel;
  if (m.name.empty()) return;
  const NamedSize size = named_size(m.name, where);
  if (m.width == 0) m.width = size.width;
  if (m.depth == 0) m.depth = size.depth;
  if (m.heads == 0) m.heads = size.heads;
  if (m.patch == 0) m.patch = size.patch;
}

void set_shapes(DitConfig& c, const Model& m) {
  set_blocks(c, m.depth, m.heads);
  if (m.blocks.empty()) return;
  if (std::ssize(m.blocks) != m.depth) {
    fail(Exit::usage,
         fmt::format("--depth: found {}, but --shapes has {} blocks", m.depth, m.blocks.size()),
         "leave --depth out: the shapes say it");
  }
  c.blocks.clear();
  for (const Model::Block& block : m.blocks) c.blocks.push_back({block.heads, block.mlp});
}

}  // namespace

DitConfig resolve(Model& m, const DataInfo* data, const std::string& model_at,
                  const std::string& data_at) {
  if (m.depth == 0) m.depth = std::ssize(m.blocks);
  follow_name(m, model_at);
  if (m.depth == 0 || m.heads == 0 || m.patch == 0) {
    fail(Exit::usage, "--width: without --model, --depth, --heads and --patch are needed too");
  }
  if (data != nullptr) follow_data(m, *data, data_at);
  if (m.image_size == 0) m.image_size = kDefaultImageSize;
  if (m.channels == 0) m.channels = kDefaultChannels;
  if (m.classes < 0) m.classes = kDefaultClasses;
  if (m.objective.empty()) m.objective = kDefaultObjective;
  DitConfig c;
  c.objective = parse_objective(m.objective, "--objective", Exit::usage);
  // Flow has no variance to learn.
  if (c.objective == Objective::flow) m.learn_sigma = false;
  c.learn_sigma = m.learn_sigma;
  c.qk_norm = parse_qk_norm(m.qk_norm, "--qk-norm", Exit::usage);
  c.width = m.width;
  c.patch = m.patch;
  c.image_size = m.image_size;
  c.channels = m.channels;
  c.classes = m.classes;
  set_shapes(c, m);
  if (!(m.density > 0 && m.density <= 1)) {
    fail(Exit::usage, fmt::format("--density: found {}, wanted more than 0, at most 1", m.density));
  }
  validate(c);
  if (m.density < 1) set_density(c, m.density);
  return c;
}

std::string label_of(const Model& m, const DitConfig& c) {
  const double density = density_of(c);
  const std::string sparse = density < 1 ? fmt::format(" at density {:.3g}", density) : "";
  if (!m.name.empty()) {
    const NamedSize size = named_size(m.name, "--model");
    const bool same = size.width == c.width && size.depth == c.depth() && size.patch == c.patch;
    if (same && m.blocks.empty()) return m.name + sparse;
  }
  const std::string label = fmt::format("DiT {}x{}/{}", c.width, c.depth(), c.patch);
  if (m.blocks.empty()) return label + sparse;
  constexpr size_t kShort = 24;
  const std::string shapes = shapes_text(c.blocks);
  return label + (shapes.size() <= kShort ? " of " + shapes : " of several shapes") + sparse;
}

}  // namespace ebb
