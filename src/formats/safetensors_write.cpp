// Writing a file, and the hashes that tell later whether it is still what was written.
#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <memory>
#include <set>

#include "base/text.h"
#include "formats/json_reader.h"
#include "formats/safetensors_stream.h"

namespace ebb {

struct TensorHash::State {
  std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> xxh3{XXH3_createState(), XXH3_freeState};
};

TensorHash::TensorHash() : state_(std::make_unique<State>()) { restart(); }
TensorHash::~TensorHash() = default;
void TensorHash::restart() { XXH3_64bits_reset(state_->xxh3.get()); }
void TensorHash::add(const void* data, size_t bytes) {
  XXH3_64bits_update(state_->xxh3.get(), data, bytes);
}
std::string TensorHash::text() const {
  return fmt::format("{:016x}", XXH3_64bits_digest(state_->xxh3.get()));
}

namespace {

constexpr std::string_view kHashPrefix = "xxh3.";
constexpr std::string_view kOwnPrefix = "ebb.";
constexpr const char* kMetadataHashKey = "ebb.xxh3";
constexpr const char* kDamaged = "the file is damaged: use another copy or an earlier checkpoint";
constexpr const char* kUnknownHash = "0000000000000000";  // until it is known; as long
constexpr uint64_t kDataAlignment = 64;

// Of every ebb.* entry but the hash itself. As they are written: what is not UTF-8 is replaced.
std::string metadata_hash(const std::map<std::string, std::string>& metadata) {
  TensorHash hash;
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
  if (!tensor.read) return take(tensor.data, bytes);
  std::array<char, kTensorPart> part;
  for (int64_t done = 0; done < bytes; done += kTensorPart) {
    const int64_t count = std::min(kTensorPart, bytes - done);
    tensor.read(done, part.data(), count);
    take(part.data(), count);
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

SafetensorsWriter::SafetensorsWriter(const std::filesystem::path& path,
                                     const std::vector<TensorData>& tensors,
                                     std::map<std::string, std::string> metadata, bool hash_tensors)
    : tensors_(tensors),
      metadata_(std::move(metadata)),
      hashes_(hash_tensors),
      where_(path.string()),
      file_(path) {
  if (hashes_) {
    const auto own = metadata_.lower_bound(std::string(kOwnPrefix));
    if (own != metadata_.end() && own->first.starts_with(kOwnPrefix)) {
      metadata_[kMetadataHashKey] = metadata_hash(metadata_);
    }
    for (const TensorData& tensor : tensors_) {
      metadata_[std::string(kHashPrefix) + tensor.name] = kUnknownHash;
    }
  }
  const std::string header = make_header(where_, tensors_, metadata_);
  header_bytes_ = header.size();
  file_.write(&header_bytes_, sizeof(header_bytes_));
  file_.write(header);
  next_tensor();
}

// The first that has bytes, from at_ on. Those without have their hash too.
void SafetensorsWriter::next_tensor() {
  for (; at_ < tensors_.size(); ++at_) {
    left_ = tensor_bytes(tensors_[at_].type, tensors_[at_].shape).value_or(0);
    hash_.restart();
    if (left_ > 0) return;
    if (hashes_) metadata_[std::string(kHashPrefix) + tensors_[at_].name] = hash_.text();
  }
}

void SafetensorsWriter::write(const void* data, int64_t bytes) {
  if (bytes == 0) return;
  require(at_ < tensors_.size() && bytes <= left_, "{}: {} bytes more than its tensor {} has",
          where_, bytes - left_, at_);
  if (hashes_) hash_.add(data, static_cast<size_t>(bytes));
  file_.write(data, static_cast<size_t>(bytes));
  left_ -= bytes;
  if (left_ > 0) return;
  if (hashes_) metadata_[std::string(kHashPrefix) + tensors_[at_].name] = hash_.text();
  ++at_;
  next_tensor();
}

void SafetensorsWriter::commit() {
  require(at_ == tensors_.size(), "{}: {} of its {} tensors are written", where_, at_,
          tensors_.size());
  if (hashes_) {
    const std::string header = make_header(where_, tensors_, metadata_);
    require(header.size() == header_bytes_, "{}: hashes have changed the header's size", where_);
    file_.rewrite(sizeof(header_bytes_), header);
  }
  file_.commit();
}

void write_safetensors(const std::filesystem::path& path, const std::vector<TensorData>& tensors,
                       std::map<std::string, std::string> metadata, bool hash_tensors) {
  SafetensorsWriter writer(path, tensors, std::move(metadata), hash_tensors);
  for (const TensorData& tensor : tensors) {
    each_part(tensor, [&](const void* data, int64_t bytes) { writer.write(data, bytes); });
  }
  writer.commit();
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

namespace {

[[noreturn]] void refuse_hash(const SafetensorsReader& file, std::string_view name,
                              std::string_view found, std::string_view hash) {
  fail(Exit::disk,
       fmt::format("{}: tensor '{}': found {}, wanted the hash {}", printable(file.path().string()),
                   printable(name), found, printable(hash)),
       kDamaged);
}

}  // namespace

TensorStream::TensorStream(const SafetensorsReader& file, const TensorEntry& entry)
    : file_(file), entry_(entry) {
  if (left() == 0) check();
}

void TensorStream::read(void* out, int64_t bytes) {
  file_.read_range(entry_, done_, out, bytes);
  hash_.add(out, static_cast<size_t>(bytes));
  done_ += bytes;
  if (left() == 0 && bytes > 0) check();
}

void TensorStream::check() const {
  const auto hash = file_.metadata().find(std::string(kHashPrefix) + entry_.name);
  if (hash == file_.metadata().end()) return;
  const std::string found = hash_.text();
  if (found != hash->second) refuse_hash(file_, entry_.name, found, hash->second);
}

void verify_hashed_names(const SafetensorsReader& reader) {
  for (const auto& [key, hash] : reader.metadata()) {
    if (!key.starts_with(kHashPrefix)) continue;
    const std::string_view name = std::string_view(key).substr(kHashPrefix.size());
    if (reader.find(name) == nullptr) refuse_hash(reader, name, "no such tensor", hash);
  }
}

void verify_hashes(const SafetensorsReader& reader,
                   const std::function<bool(const std::string& name)>& wanted) {
  verify_metadata(reader);
  verify_hashed_names(reader);
  std::array<char, kTensorPart> part;
  for (const auto& [key, hash] : reader.metadata()) {
    if (!key.starts_with(kHashPrefix)) continue;
    const TensorEntry& entry = *reader.find(std::string_view(key).substr(kHashPrefix.size()));
    if (wanted && !wanted(entry.name)) continue;
    TensorStream stream(reader, entry);
    while (stream.left() > 0) stream.read(part.data(), std::min(kTensorPart, stream.left()));
  }
}

}  // namespace ebb
