// Writing a file, and the hashes that tell later whether it is still what was written.
#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <memory>
#include <set>

#include "base/text.h"
#include "formats/atomic_file.h"
#include "formats/json_reader.h"
#include "formats/safetensors.h"

namespace ebb {

namespace {

constexpr std::string_view kHashPrefix = "xxh3.";
constexpr std::string_view kOwnPrefix = "ebb.";
constexpr const char* kMetadataHashKey = "ebb.xxh3";
constexpr const char* kDamaged = "the file is damaged: use another copy or an earlier checkpoint";
constexpr uint64_t kDataAlignment = 64;
constexpr int64_t kChunkBytes = kTensorPart;

class Hash {
 public:
  Hash() { XXH3_64bits_reset(state_.get()); }
  void add(const void* data, size_t bytes) { XXH3_64bits_update(state_.get(), data, bytes); }
  std::string text() const { return fmt::format("{:016x}", XXH3_64bits_digest(state_.get())); }

 private:
  std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> state_{XXH3_createState(),
                                                                  XXH3_freeState};
};

// Of every ebb.* entry but the hash itself. As they are written: what is not UTF-8 is replaced.
std::string metadata_hash(const std::map<std::string, std::string>& metadata) {
  Hash hash;
  for (const auto& [key, value] : metadata) {
    if (!key.starts_with(kOwnPrefix) || key == kMetadataHashKey) continue;
    const std::string entry = json_quote(key) + ":" + json_quote(value) + ",";
    hash.add(entry.data(), entry.size());
  }
  return hash.text();
}

// take(data, bytes) for the whole tensor where it lies, or for one part after the other.
template <typename Take>
void each_part(const TensorData& tensor, Take take) {
  const int64_t bytes = tensor_bytes(tensor.type, tensor.shape).value_or(0);
  if (!tensor.read) return take(tensor.data, static_cast<size_t>(bytes));
  std::array<char, kTensorPart> part;
  for (int64_t done = 0; done < bytes; done += kTensorPart) {
    const int64_t count = std::min(kTensorPart, bytes - done);
    tensor.read(done, part.data(), count);
    take(part.data(), static_cast<size_t>(count));
  }
}

// The JSON of a file that is about to be written, padded so that the data is aligned.
std::string make_header(const std::string& where, const std::vector<TensorData>& tensors,
                        const std::map<std::string, std::string>& metadata) {
  std::string header = "{";
  const auto comma = [&] { return header.back() == '{' ? "" : ","; };
  if (!metadata.empty()) {
    header += json_quote(SafetensorsReader::kMetadataKey) + ":{";
    for (const auto& [key, value] : metadata) {
      require(is_utf8(key), "{}: metadata key {} is not UTF-8", where, printable(key));
      header += fmt::format("{}{}:{}", comma(), json_quote(key), json_quote(value));
    }
    header += "}";
  }
  std::set<std::string_view> names{SafetensorsReader::kMetadataKey};
  int64_t end = 0;
  for (const TensorData& tensor : tensors) {
    const auto bytes = tensor_bytes(tensor.type, tensor.shape);
    require(bytes && tensor.shape.size() <= SafetensorsReader::kMaxRank && is_utf8(tensor.name) &&
                names.insert(tensor.name).second,
            "{}: tensor {} has a shape or name that cannot be written", where, tensor.name);
    header += fmt::format("{}{}:{{\"dtype\":\"{}\",\"shape\":{},\"data_offsets\":[{},{}]}}",
                          comma(), json_quote(tensor.name), type_name(tensor.type),
                          tensor_shape_text(tensor.shape), end, end + *bytes);
    end += *bytes;
  }
  header += "}";
  header.append((0 - header.size() - sizeof(uint64_t)) % kDataAlignment, ' ');
  require(header.size() <= SafetensorsReader::kMaxHeaderBytes &&
              metadata.size() <= SafetensorsReader::kMaxMetadata,
          "{}: a header of {} bytes is past the format's limits", where, header.size());
  return header;
}

}  // namespace

void write_safetensors(const std::filesystem::path& path, const std::vector<TensorData>& tensors,
                       std::map<std::string, std::string> metadata, bool hash_tensors) {
  for (const TensorData& tensor : tensors) {
    if (!hash_tensors) break;
    Hash hash;
    each_part(tensor, [&](const void* data, size_t bytes) { hash.add(data, bytes); });
    metadata[std::string(kHashPrefix) + tensor.name] = hash.text();
  }
  const auto own = metadata.lower_bound(std::string(kOwnPrefix));
  if (hash_tensors && own != metadata.end() && own->first.starts_with(kOwnPrefix)) {
    metadata[kMetadataHashKey] = metadata_hash(metadata);
  }
  const std::string header = make_header(path.string(), tensors, metadata);
  const uint64_t header_bytes = header.size();
  AtomicFile file(path);
  file.write(&header_bytes, sizeof(header_bytes));
  file.write(header);
  for (const TensorData& tensor : tensors) {
    each_part(tensor, [&](const void* data, size_t bytes) { file.write(data, bytes); });
  }
  file.commit();
}

void verify_metadata(const SafetensorsReader& reader) {
  const auto hash = reader.metadata().find(kMetadataHashKey);
  if (hash == reader.metadata().end()) return;
  const std::string found = metadata_hash(reader.metadata());
  if (found == hash->second) return;
  fail(Exit::disk,
       fmt::format("{}: metadata: found {}, wanted the hash {}", printable(reader.path().string()),
                   found, printable(hash->second)),
       kDamaged);
}

void verify_hashes(const SafetensorsReader& reader) {
  verify_metadata(reader);
  const auto complain = [&](std::string_view name, std::string_view found, std::string_view hash) {
    fail(Exit::disk,
         fmt::format("{}: tensor '{}': found {}, wanted the hash {}",
                     printable(reader.path().string()), printable(name), found, printable(hash)),
         kDamaged);
  };
  std::array<char, kChunkBytes> chunk;
  for (const auto& [key, hash] : reader.metadata()) {
    if (!key.starts_with(kHashPrefix)) continue;
    const TensorEntry* entry = reader.find(std::string_view(key).substr(kHashPrefix.size()));
    if (!entry) complain(key.substr(kHashPrefix.size()), "no such tensor", hash);
    Hash computed;
    for (int64_t done = 0; done < entry->bytes();) {
      const int64_t bytes = std::min(kChunkBytes, entry->bytes() - done);
      reader.read_range(*entry, done, chunk.data(), bytes);
      computed.add(chunk.data(), static_cast<size_t>(bytes));
      done += bytes;
    }
    const std::string found = computed.text();
    if (found != hash) complain(entry->name, found, hash);
  }
}

}  // namespace ebb
