// The metadata key `ebb.data`: which data a run was trained on, as a JSON object.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/error.h"

namespace ebb {

inline constexpr const char* kDataKey = "ebb.data";

struct DataRecord {
  std::string kind;  // "idx", "images", "features"; empty: nothing is known of the data
  int64_t count = 0;
  std::string fingerprint;           // empty: not known
  std::vector<std::string> names;    // of classes, in the order of labels; empty: not known
  std::vector<int64_t> counts = {};  // of samples of each class; empty: not known
};

// Names and counts are left out together where they would take more than kMostRecordBytes: a
// checkpoint's header is no place for a data base.
inline constexpr size_t kMostRecordBytes = 512 << 10;
std::string data_to_json(const DataRecord& record);

// Fails with `code` on anything else than what data_to_json writes and later versions may add to;
// `where` names the file.
DataRecord data_from_json(const std::string& text, const std::string& where, Exit code);

}  // namespace ebb
