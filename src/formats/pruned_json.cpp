#include "formats/pruned_json.h"

#include <fmt/format.h>

#include <charconv>

#include "base/text.h"
#include "formats/json_reader.h"

namespace ebb {

namespace {

constexpr int64_t kMostIndex = 1 << 24;  // far above any head, MLP unit or block

// Takes a number off the front of the text.
bool take_index(std::string_view& text, int64_t& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || value < 0 || value > kMostIndex) return false;
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  return true;
}

bool take(std::string_view& text, char c) {
  if (text.empty() || text.front() != c) return false;
  text.remove_prefix(1);
  return true;
}

// "0-3,5": ascending, and no two that could be one. Nothing: none are left.
bool parse_ranges(std::string_view text, IndexRanges& ranges) {
  if (text.empty()) return true;
  do {
    IndexRange range{};
    if (!take_index(text, range.first)) return false;
    range.last = range.first;
    if (take(text, '-') && (!take_index(text, range.last) || range.last <= range.first)) {
      return false;
    }
    if (!ranges.empty() && range.first <= ranges.back().last + 1) return false;
    ranges.push_back(range);
  } while (take(text, ','));
  return text.empty();
}

IndexRanges read_ranges(JsonReader& json) {
  const std::string text = json.read_string();
  IndexRanges ranges;
  if (!parse_ranges(text, ranges)) {
    json.refuse("'" + printable(text) + "'", "numbers such as 0-3,5, or nothing for none");
  }
  return ranges;
}

PrunedBlock read_block(JsonReader& json) {
  PrunedBlock block{-1, {}, {}};
  json.begin_object();
  for (std::string key; json.next_key(key);) {
    if (key == "block") {
      block.block = json.read_int();
      if (block.block < 0 || block.block > kMostIndex) {
        json.refuse(fmt::format("{}", block.block), "the number of a block");
      }
    } else if (key == "heads") {
      block.heads = read_ranges(json);
    } else if (key == "mlp") {
      block.mlp = read_ranges(json);
    } else {
      json.skip_value();
    }
  }
  return block;
}

// It describes the model that the file holds.
void check_record(const PrunedRecord& record, const DitConfig& config, JsonReader& json) {
  if (std::ssize(record) != config.depth()) {
    json.refuse(fmt::format("{} blocks", record.size()),
                fmt::format("the model's {}", config.depth()));
  }
  for (size_t i = 0; i < record.size(); ++i) {
    const PrunedBlock& block = record[i];
    const BlockShape& shape = config.blocks[i];
    if (i > 0 && block.block <= record[i - 1].block) {
      json.refuse(fmt::format("block {} after block {}", block.block, record[i - 1].block),
                  "ascending numbers");
    }
    const BlockShape found{index_count(block.heads), index_count(block.mlp)};
    if (block.block < 0 || found.heads != shape.heads || found.mlp != shape.mlp) {
      json.refuse(fmt::format("{} heads and {} MLP units of block {}", found.heads, found.mlp, i),
                  fmt::format("the model's {} and {}", shape.heads, shape.mlp));
    }
  }
}

}  // namespace

int64_t index_count(const IndexRanges& ranges) {
  int64_t count = 0;
  for (const IndexRange& range : ranges) count += range.last - range.first + 1;
  return count;
}

IndexRanges ranges_of(const std::vector<int64_t>& ascending) {
  IndexRanges ranges;
  for (const int64_t index : ascending) {
    if (!ranges.empty() && index == ranges.back().last + 1) {
      ranges.back().last = index;
    } else {
      ranges.push_back({index, index});
    }
  }
  return ranges;
}

std::vector<int64_t> indices_of(const IndexRanges& ranges) {
  std::vector<int64_t> indices;
  indices.reserve(static_cast<size_t>(index_count(ranges)));
  for (const IndexRange& range : ranges) {
    for (int64_t i = range.first; i <= range.last; ++i) indices.push_back(i);
  }
  return indices;
}

std::string ranges_text(const IndexRanges& ranges) {
  std::string text;
  for (const auto& [first, last] : ranges) {
    if (!text.empty()) text += ',';
    text += first == last ? fmt::format("{}", first) : fmt::format("{}-{}", first, last);
  }
  return text;
}

std::string pruned_to_json(const PrunedRecord& record) {
  std::string blocks;
  for (const PrunedBlock& block : record) {
    blocks += fmt::format(R"({}{{"block":{},"heads":"{}","mlp":"{}"}})", blocks.empty() ? "" : ",",
                          block.block, ranges_text(block.heads), ranges_text(block.mlp));
  }
  return fmt::format(R"({{"blocks":[{}]}})", blocks);
}

// Every second of a kind, each with a comma: others are ranges.
int64_t most_pruned_bytes(const DitConfig& config) {
  constexpr int64_t kBlock = 60, kIndex = 6;
  int64_t bytes = 20;
  for (const BlockShape& shape : config.blocks) {
    bytes += kBlock + kIndex * (shape.heads + shape.mlp + 2) / 2;
  }
  return bytes;
}

PrunedRecord pruned_from_json(const std::string& text, const DitConfig& config,
                              const std::string& where, Exit code) {
  JsonReader json(text, where + ": " + kPrunedKey, code, "wanted what `ebb prune` writes");
  PrunedRecord record;
  json.begin_object();
  for (std::string key; json.next_key(key);) {
    if (key != "blocks") {
      json.skip_value();
      continue;
    }
    json.begin_array();
    while (json.next_element()) {
      if (std::ssize(record) == config.depth()) {
        json.refuse("one more block", fmt::format("the model's {}", config.depth()));
      }
      record.push_back(read_block(json));
    }
  }
  json.finish();
  check_record(record, config, json);
  return record;
}

}  // namespace ebb
