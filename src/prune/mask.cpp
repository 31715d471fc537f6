#include "prune/mask.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/text.h"
#include "formats/safetensors.h"

namespace ebb {

namespace {

class Mask {
 public:
  Mask(const std::filesystem::path& path, const DitConfig& config)
      : file_(path, Exit::usage), config_(config) {}

  Survivors survivors() const {
    refuse_other_names();
    Survivors kept;
    const std::vector<bool> blocks = values("blocks", config_.depth());
    for (Survivor& block : all_of(config_)) {
      for (const Structure kind : kStructures) {
        const std::string name = fmt::format("{}.{}", structure_name(kind), block.block);
        const std::vector<bool> stays = values(name, std::ssize(block.of(kind)));
        std::erase_if(block.of(kind), [&](int64_t i) { return !stays[i]; });
      }
      const bool something = !block.heads.empty() || !block.mlp.empty();
      if (blocks[block.block] && something) kept.push_back(std::move(block));
    }
    if (kept.empty()) refuse("all blocks", "nothing that stays", "at least one block");
    if (!has_heads(kept) && has_heads(all_of(config_))) {
      refuse("all blocks", "no head that stays", "at least one: without any no token sees another");
    }
    return kept;
  }

 private:
  static bool has_heads(const Survivors& blocks) {
    return std::any_of(blocks.begin(), blocks.end(),
                       [](const Survivor& block) { return !block.heads.empty(); });
  }

  [[noreturn]] void refuse(const std::string& name, const std::string& found,
                           const std::string& wanted) const {
    fail(Exit::usage,
         fmt::format("--mask {}: {}: found {}, wanted {}", printable(file_.path().string()),
                     printable(name), found, wanted),
         "a mask has blocks, heads.I and mlp.I, of zeros and ones: 1 stays, 0 goes");
  }

  void refuse_other_names() const {
    if (file_.tensors().empty()) refuse("the file", "no tensors", "some to choose by");
    for (const TensorEntry& entry : file_.tensors()) {
      bool known = entry.name == "blocks";
      for (int64_t i = 0; i < config_.depth() && !known; ++i) {
        known = entry.name == fmt::format("heads.{}", i) || entry.name == fmt::format("mlp.{}", i);
      }
      if (!known) {
        refuse(entry.name, "a tensor of that name",
               fmt::format("blocks, heads.I or mlp.I with I up to {}", config_.depth() - 1));
      }
    }
  }

  // All ones where the file does not have it.
  std::vector<bool> values(const std::string& name, int64_t count) const {
    std::vector<bool> stays(static_cast<size_t>(count), true);
    const TensorEntry* entry = file_.find(name);
    if (entry == nullptr) return stays;
    if (entry->shape != std::vector<int64_t>{count}) {
      refuse(name, "shape " + tensor_shape_text(entry->shape), fmt::format("[{}]", count));
    }
    const std::vector<double> read = numbers(*entry);
    for (size_t i = 0; i < read.size(); ++i) {
      if (read[i] != 0 && read[i] != 1) {
        refuse(name, fmt::format("{} at element {}", read[i], i), "0 or 1");
      }
      stays[i] = read[i] == 1;
    }
    return stays;
  }

  std::vector<double> numbers(const TensorEntry& entry) const {
    std::vector<double> values(static_cast<size_t>(entry.count()));
    switch (entry.type) {
      case TensorType::F32:
        file_.read_f64(entry, values.data(), entry.count());
        return values;
      case TensorType::U8:
      case TensorType::BOOL: {
        std::vector<uint8_t> bytes(values.size());
        file_.read(entry, bytes.data(), entry.bytes());
        values.assign(bytes.begin(), bytes.end());
        return values;
      }
      case TensorType::I64: {
        std::vector<int64_t> whole(values.size());
        file_.read_i64(entry, whole.data(), entry.count());
        values.assign(whole.begin(), whole.end());
        return values;
      }
      default:
        refuse(entry.name, fmt::format("type {}", type_name(entry.type)), "U8, BOOL, I64 or F32");
    }
  }

  const SafetensorsReader file_;
  const DitConfig& config_;
};

}  // namespace

Survivors read_mask(const std::filesystem::path& path, const DitConfig& config) {
  return Mask(path, config).survivors();
}

}  // namespace ebb
