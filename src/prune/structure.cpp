#include "prune/structure.h"

#include <fmt/format.h>

#include <charconv>
#include <map>
#include <numeric>

#include "base/error.h"

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
  Belonging found{std::nullopt, std::nullopt, spec.name};
  if (!spec.name.starts_with(kBegin)) return found;
  int64_t block = 0;
  const char* const begin = spec.name.data() + kBegin.size();
  const auto end = std::from_chars(begin, spec.name.data() + spec.name.size(), block).ptr;
  found.block = block;
  found.within = std::string(end + 1);
  const auto member = kMembers.find(found.within);
  if (member == kMembers.end()) return found;
  const auto [kind, columns] = member->second;
  found.member = {kind, columns, kind == Structure::head ? config.head_width : 1};
  return found;
}

Survivors all_of(const DitConfig& config) {
  Survivors all;
  for (int64_t i = 0; i < config.depth(); ++i) {
    Survivor block{i, {}, {}};
    for (const Structure kind : kStructures) {
      block.of(kind).resize(static_cast<size_t>(structure_count(config.blocks[i], kind)));
      std::iota(block.of(kind).begin(), block.of(kind).end(), int64_t{0});
    }
    all.push_back(std::move(block));
  }
  return all;
}

DitConfig pruned_config(const DitConfig& config, const Survivors& kept) {
  DitConfig pruned = config;
  pruned.blocks.clear();
  for (const Survivor& block : kept) {
    pruned.blocks.push_back({std::ssize(block.heads), std::ssize(block.mlp)});
  }
  return pruned;
}

PrunedRecord in_first_parent(const Survivors& kept, const PrunedRecord& record) {
  PrunedRecord made;
  for (const Survivor& block : kept) {
    if (record.empty()) {
      made.push_back({block.block, ranges_of(block.heads), ranges_of(block.mlp)});
      continue;
    }
    const PrunedBlock& before = record.at(static_cast<size_t>(block.block));
    const auto composed = [](const std::vector<int64_t>& chosen, const IndexRanges& from) {
      const std::vector<int64_t> numbers = indices_of(from);
      std::vector<int64_t> originals;
      for (const int64_t i : chosen) originals.push_back(numbers.at(static_cast<size_t>(i)));
      return ranges_of(originals);
    };
    made.push_back(
        {before.block, composed(block.heads, before.heads), composed(block.mlp, before.mlp)});
  }
  return made;
}

}  // namespace ebb
