#include "model/structure.h"

#include <charconv>
#include <map>
#include <string_view>

namespace ebb {

const char* structure_name(Structure kind) { return kind == Structure::head ? "heads" : "mlp"; }

int64_t structure_count(const BlockShape& shape, Structure kind) {
  return kind == Structure::head ? shape.heads : shape.mlp;
}

int64_t structure_params(const DitConfig& c, Structure kind) {
  if (kind == Structure::mlp) return 2 * c.width + 1;
  return c.head_width * (3 * (c.width + 1) + c.width);
}

Belonging belonging(const ParamSpec& spec, const DitConfig& config) {
  static const std::map<std::string_view, std::pair<Structure, bool>> kMembers = {
      {"attn.qkv.weight", {Structure::head, false}}, {"attn.qkv.bias", {Structure::head, false}},
      {"attn.proj.weight", {Structure::head, true}}, {"mlp.fc1.weight", {Structure::mlp, false}},
      {"mlp.fc1.bias", {Structure::mlp, false}},     {"mlp.fc2.weight", {Structure::mlp, true}}};
  constexpr std::string_view kBegin = "blocks.";
  Belonging found{std::nullopt, std::nullopt, std::nullopt, spec.name};
  if (!spec.name.starts_with(kBegin)) return found;
  int64_t block = 0;
  const char* const begin = spec.name.data() + kBegin.size();
  const auto end = std::from_chars(begin, spec.name.data() + spec.name.size(), block).ptr;
  found.block = block;
  found.within = std::string(end + 1);
  if (found.within.starts_with("attn.")) found.half = Structure::head;
  if (found.within.starts_with("mlp.")) found.half = Structure::mlp;
  const auto member = kMembers.find(found.within);
  if (member == kMembers.end()) return found;
  const auto [kind, columns] = member->second;
  found.member = {kind, columns, kind == Structure::head ? config.head_width : 1};
  return found;
}

bool in_structure(const ParamSpec& spec) { return belonging(spec, DitConfig{}).member.has_value(); }

bool Belonging::modulation() const { return block && within.starts_with("adaLN_modulation."); }

}  // namespace ebb
