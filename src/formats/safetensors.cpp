// Opening a file: the header is read, parsed and checked.
#include "formats/safetensors.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>

#include "base/text.h"
#include "formats/json_reader.h"

namespace ebb {

static_assert(std::endian::native == std::endian::little, "tensors are stored little-endian");

namespace {

constexpr const char* kHint = "the file is damaged or not safetensors: fetch or write it again";

std::optional<TensorType> type_named(std::string_view name) {
  for (size_t i = 0; i < std::size(kTensorTypes); ++i) {
    if (kTensorTypes[i].name == name) return static_cast<TensorType>(i);
  }
  return std::nullopt;
}

}  // namespace

std::optional<int64_t> tensor_bytes(TensorType type, const std::vector<int64_t>& shape) {
  int64_t bytes = item_size(type);
  for (const int64_t extent : shape) {
    if (extent < 0 || __builtin_mul_overflow(bytes, extent, &bytes)) return std::nullopt;
  }
  return bytes;
}

std::string tensor_shape_text(const std::vector<int64_t>& shape) {
  std::string text;
  for (const int64_t extent : shape) {
    text += text.empty() ? '[' : ',';
    text += std::to_string(extent);
  }
  return text.empty() ? "[]" : text + "]";
}

SafetensorsReader::Descriptor::~Descriptor() {
  if (fd >= 0) ::close(fd);
}

SafetensorsReader::SafetensorsReader(std::filesystem::path path, Exit code, int64_t max_header)
    : path_(std::move(path)), code_(code) {
  parse_header(open_header(max_header));
  check_layout();
}

void SafetensorsReader::refuse(const std::string& what) const {
  fail(code_, fmt::format("{}: {}", printable(path_.string()), what), kHint);
}

std::string SafetensorsReader::open_header(int64_t max_header) {
  // O_NONBLOCK: opening a pipe must not wait for a writer before it can be refused.
  file_.fd = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file_.fd < 0) {
    fail(code_, fmt::format("{}: open: {}", printable(path_.string()), std::strerror(errno)),
         "check the path");
  }
  struct stat status;
  if (::fstat(file_.fd, &status) != 0 || !S_ISREG(status.st_mode)) {
    fail(code_,
         fmt::format("{}: found something else, wanted a safetensors file",
                     printable(path_.string())),
         "check the path");
  }
  const auto file_bytes = static_cast<uint64_t>(status.st_size);
  uint64_t header_bytes = 0;
  if (file_bytes < sizeof(header_bytes)) {
    refuse(fmt::format("found {} bytes, wanted at least the 8 of the header's length", file_bytes));
  }
  read_file(0, &header_bytes, sizeof(header_bytes));
  const uint64_t limit = static_cast<uint64_t>(std::clamp<int64_t>(max_header, 0, kMaxHeaderBytes));
  const uint64_t rest = file_bytes - sizeof(header_bytes);
  if (header_bytes > limit || header_bytes > rest) {
    refuse(fmt::format("found a header of {} bytes, wanted at most {}", header_bytes,
                       std::min(limit, rest)));
  }
  data_begin_ = sizeof(header_bytes) + header_bytes;
  data_bytes_ = rest - header_bytes;
  char first = '\0';
  if (header_bytes > 0) read_file(sizeof(header_bytes), &first, 1);
  if (first != '{') refuse("the header does not begin with '{'");
  std::string text(header_bytes, '\0');
  read_file(sizeof(header_bytes), text.data(), header_bytes);
  return text;
}

void SafetensorsReader::parse_header(const std::string& text) {
  JsonReader json(text, printable(path_.string()) + ": header", code_, kHint);
  json.begin_object();
  for (std::string name; json.next_key(name);) {
    if (name == kMetadataKey) {
      parse_metadata(json);
    } else {
      tensors_.push_back(parse_entry(json, name));
    }
  }
  json.finish();
}

void SafetensorsReader::parse_metadata(JsonReader& json) {
  json.begin_object();
  for (std::string key; json.next_key(key);) {
    if (metadata_.size() == kMaxMetadata) {
      json.refuse("one more metadata entry", fmt::format("at most {}", kMaxMetadata));
    }
    metadata_[key] = json.read_string();
  }
}

TensorEntry SafetensorsReader::parse_entry(JsonReader& json, std::string name) const {
  std::optional<TensorType> type;
  std::array<int64_t, kMaxRank> shape;
  std::array<int64_t, 2> offsets{};
  size_t rank = 0, ends = 0, fields = 0;
  const auto read_extents = [&](auto& out, size_t& used, const char* wanted) {
    json.begin_array();
    for (used = 0; json.next_element(); ++used) {
      if (used == out.size()) json.refuse("one more number", wanted);
      out[used] = json.read_int();
      if (out[used] < 0) json.refuse(fmt::format("{}", out[used]), "no negative number");
    }
  };
  json.begin_object();
  for (std::string key; json.next_key(key); ++fields) {
    if (key == "dtype") {
      const std::string found = json.read_string();
      type = type_named(found);
      if (!type) {
        json.refuse(fmt::format("type '{}' of tensor '{}'", printable(found), printable(name)),
                    "one of BOOL, U8 to U64, I8 to I64, F8_*, F16, BF16, F32, F64, C64");
      }
    } else if (key == "shape") {
      read_extents(shape, rank, "at most 64 dimensions");
    } else if (key == "data_offsets") {
      read_extents(offsets, ends, "two offsets");
    } else {
      json.refuse(fmt::format("'{}' in tensor '{}'", printable(key), printable(name)),
                  "dtype, shape and data_offsets");
    }
  }
  // Keys are distinct and known: three of them are all of them.
  if (fields != 3 || ends != 2) {
    json.refuse(fmt::format("an incomplete tensor '{}'", printable(name)),
                "dtype, shape and two data_offsets");
  }
  return {std::move(name),
          *type,
          {shape.begin(), shape.begin() + rank},
          static_cast<uint64_t>(offsets[0]),
          static_cast<uint64_t>(offsets[1])};
}

// Each tensor begins where the one before ends, the first at 0 and the last at the file's end.
void SafetensorsReader::check_layout() {
  by_name_.resize(tensors_.size());
  std::iota(by_name_.begin(), by_name_.end(), 0u);
  std::sort(by_name_.begin(), by_name_.end(), [&](uint32_t a, uint32_t b) {
    return std::pair(tensors_[a].begin, tensors_[a].end) <
           std::pair(tensors_[b].begin, tensors_[b].end);
  });
  uint64_t end = 0;
  for (const uint32_t index : by_name_) {
    const TensorEntry& entry = tensors_[index];
    const auto complain = [&](const std::string& what) {
      refuse(fmt::format("tensor '{}' of type {}: {}", printable(entry.name), type_name(entry.type),
                         what));
    };
    if (entry.begin != end || entry.end < entry.begin || entry.end > data_bytes_) {
      complain(fmt::format("found offsets {} to {}, wanted them to begin at {} and end by {}",
                           entry.begin, entry.end, end, data_bytes_));
    }
    const std::optional<int64_t> bytes = tensor_bytes(entry.type, entry.shape);
    if (!bytes || *bytes != entry.bytes()) {
      complain(fmt::format("shape {} does not take the {} bytes between its offsets",
                           tensor_shape_text(entry.shape), entry.bytes()));
    }
    end = entry.end;
  }
  if (end != data_bytes_) {
    refuse(fmt::format("found {} bytes of data, wanted the tensors' {}", data_bytes_, end));
  }
  std::sort(by_name_.begin(), by_name_.end(),
            [&](uint32_t a, uint32_t b) { return tensors_[a].name < tensors_[b].name; });
}

}  // namespace ebb
