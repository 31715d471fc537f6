#include "formats/npz.h"

#include <zlib.h>

#include "base/error.h"
#include "formats/npy.h"

namespace ebb {
namespace {

// What is common to a member's local and central record (PKWARE APPNOTE 4.3.7 and 4.3.12).
constexpr uint16_t kVersion = 45;    // 4.5: 64-bit sizes
constexpr uint16_t kFlags = 1 << 3;  // checksum and sizes follow the data
constexpr uint16_t kStored = 0;
constexpr uint16_t kDate = 1 << 5 | 1;   // 1980-01-01: the same samples give the same bytes
constexpr uint32_t kSee64 = 0xffffffff;  // the value is in the 64-bit field
constexpr uint16_t kExtra64 = 1;

// Little-endian fields, one after the other.
class Record {
 public:
  Record& u16(uint64_t value) { return bytes(value, 2); }
  Record& u32(uint64_t value) { return bytes(value, 4); }
  Record& u64(uint64_t value) { return bytes(value, 8); }
  Record& text(const std::string& value) {
    out_ += value;
    return *this;
  }
  const std::string& str() const { return out_; }

 private:
  Record& bytes(uint64_t value, int count) {
    for (int i = 0; i < count; ++i) out_ += static_cast<char>(value >> (8 * i) & 0xff);
    return *this;
  }
  std::string out_;
};

}  // namespace

NpzSamplesWriter::NpzSamplesWriter(const std::filesystem::path& path, int64_t count, int64_t height,
                                   int64_t width, int64_t channels)
    : file_(path), count_(count), image_bytes_(height * width * channels) {
  const int64_t shape[] = {count, height, width, channels};
  begin("arr_0.npy", make_npy_header("|u1", shape), count * image_bytes_);
}

void NpzSamplesWriter::add(const uint8_t* images, int64_t n) {
  require(added_ + n <= count_, "npz: {} images added to a set of {}", added_ + n, count_);
  add_data(images, n * image_bytes_);
  added_ += n;
}

void NpzSamplesWriter::finish(const int64_t* labels) {
  require(added_ == count_, "npz: {} of {} images added", added_, count_);
  end();
  const int64_t shape[] = {count_};
  const int64_t label_bytes = count_ * static_cast<int64_t>(sizeof(int64_t));
  begin("arr_1.npy", make_npy_header("<i8", shape), label_bytes);
  add_data(labels, label_bytes);
  end();
  write_directory();
  file_.commit();
}

void NpzSamplesWriter::put(const std::string& bytes) {
  file_.write(bytes.data(), bytes.size());
  written_ += static_cast<int64_t>(bytes.size());
}

void NpzSamplesWriter::begin(const std::string& name, const std::string& npy_header,
                             int64_t data_bytes) {
  Member& m = members_.emplace_back();
  m.name = name;
  m.offset = written_;
  m.bytes = static_cast<int64_t>(npy_header.size()) + data_bytes;
  // A line is a group of fields of the specification.
  // clang-format off
  put(Record().u32(0x04034b50).u16(kVersion).u16(kFlags).u16(kStored).u16(0).u16(kDate)
          .u32(0).u32(kSee64).u32(kSee64).u16(name.size()).u16(20).text(name)
          .u16(kExtra64).u16(16).u64(0).u64(0)  // they follow the data, with the checksum
          .str());
  // clang-format on
  add_data(npy_header.data(), static_cast<int64_t>(npy_header.size()));
}

void NpzSamplesWriter::add_data(const void* bytes, int64_t count) {
  Member& m = members_.back();
  m.crc = static_cast<uint32_t>(
      crc32_z(m.crc, static_cast<const Bytef*>(bytes), static_cast<size_t>(count)));
  file_.write(bytes, static_cast<size_t>(count));
  written_ += count;
}

void NpzSamplesWriter::end() {
  const Member& m = members_.back();
  put(Record().u32(0x08074b50).u32(m.crc).u64(m.bytes).u64(m.bytes).str());
}

void NpzSamplesWriter::write_directory() {
  // clang-format off
  const int64_t start = written_;
  for (const Member& m : members_) {
    put(Record().u32(0x02014b50).u16(kVersion).u16(kVersion).u16(kFlags).u16(kStored)
            .u16(0).u16(kDate).u32(m.crc).u32(kSee64).u32(kSee64)
            .u16(m.name.size()).u16(28).u16(0).u16(0).u16(0).u32(0).u32(kSee64).text(m.name)
            .u16(kExtra64).u16(24).u64(m.bytes).u64(m.bytes).u64(m.offset)
            .str());
  }
  const int64_t end = written_;
  const size_t n = members_.size();
  // The 64-bit end record, its locator, and the end record that points to them.
  put(Record().u32(0x06064b50).u64(44).u16(kVersion).u16(kVersion).u32(0).u32(0).u64(n).u64(n)
          .u64(end - start).u64(start)
          .u32(0x07064b50).u32(0).u64(end).u32(1)
          .u32(0x06054b50).u16(0).u16(0).u16(n).u16(n).u32(kSee64).u32(kSee64).u16(0)
          .str());
  // clang-format on
}

void write_npz_samples(const std::filesystem::path& path, const uint8_t* images,
                       const int64_t* labels, int64_t count, int64_t height, int64_t width,
                       int64_t channels) {
  NpzSamplesWriter writer(path, count, height, width, channels);
  writer.add(images, count);
  writer.finish(labels);
}

}  // namespace ebb
