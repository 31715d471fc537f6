#include "formats/idx.h"

#include <unistd.h>
#include <zlib.h>

#include <algorithm>

#include "base/error.h"
#include "base/text.h"
#include "formats/input_file.h"

namespace ebb {
namespace {

constexpr int64_t kMaxValues = int64_t{1} << 40;
constexpr int64_t kMaxDeflateRatio = 1032;  // deflate cannot do better
constexpr int64_t kChunk = int64_t{1} << 20;
constexpr const char* kHint = "download the file again; an IDX file is never partly usable";

}  // namespace

void IdxFile::Close::operator()(gzFile_s* file) const { gzclose_r(file); }

IdxFile::IdxFile(const std::filesystem::path& path, int rank) {
  require(rank >= 1 && rank <= 3, "idx: rank {}", rank);
  const InputFile file(path);
  name_ = file.name();
  const int fd = ::dup(::fileno(file.stream()));
  file_.reset(fd < 0 ? nullptr : gzdopen(fd, "rb"));
  if (!file_) {
    if (fd >= 0) ::close(fd);
    fail(Exit::data, fmt::format("{}: cannot be opened: too many open files or no memory", name_));
  }

  uint8_t magic[4] = {};
  read_exactly(magic, 4, "an IDX header");
  if (magic[0] != 0 || magic[1] != 0 || magic[2] != 0x08 || magic[3] != rank) {
    fail(Exit::data,
         fmt::format("{}: found magic {:02x}{:02x}{:02x}{:02x}, wanted 000008{:02x}: IDX of "
                     "unsigned bytes with {} dimension{}",
                     name_, magic[0], magic[1], magic[2], magic[3], rank, rank,
                     rank == 1 ? "" : "s"),
         "images have the magic 00000803, labels 00000801");
  }
  for (int axis = 0; axis < rank; ++axis) {
    uint8_t bytes[4] = {};
    read_exactly(bytes, 4, "an IDX header");
    dims_[axis] = int64_t{bytes[0]} << 24 | bytes[1] << 16 | bytes[2] << 8 | bytes[3];
    if (dims_[axis] < 1 || dims_[axis] > kMaxValues / count_) {
      fail(Exit::data,
           fmt::format("{}: found dimension {} of {}, wanted at least 1 and {} values in all at "
                       "most",
                       name_, axis, dims_[axis], kMaxValues),
           kHint);
    }
    count_ *= dims_[axis];
  }
  const bool plain = gzdirect(file_.get()) != 0;
  const int64_t most = plain ? file.size() - 4 - 4 * rank : file.size() * kMaxDeflateRatio;
  if (count_ > most || (plain && count_ < most)) {
    fail(Exit::data,
         fmt::format("{}: found {} bytes of {}values, wanted {} as its header says", name_, most,
                     plain ? "" : "possible ", count_),
         kHint);
  }
}

void IdxFile::read(uint8_t* values) {
  read_exactly(values, count_, "its values");
  uint8_t extra = 0;
  // Asking for one byte more also makes zlib compare the checksum.
  const int got = gzread(file_.get(), &extra, 1);
  int status = Z_OK;
  gzerror(file_.get(), &status);
  if (got == 0 && status == Z_OK) return;
  fail(Exit::data,
       got > 0 ? fmt::format("{}: found bytes after the {} values its header says", name_, count_)
               : fmt::format("{}: found a damaged end after {} values", name_, count_),
       kHint);
}

void IdxFile::read_exactly(void* to, int64_t bytes, const char* what) {
  auto* at = static_cast<uint8_t*>(to);
  for (int64_t done = 0; done < bytes;) {
    const auto ask = static_cast<unsigned>(std::min(bytes - done, kChunk));
    const int got = gzread(file_.get(), at + done, ask);
    if (got <= 0) {
      fail(Exit::data,
           fmt::format("{}: {} after {} bytes of {}, wanted {}", name_,
                       got < 0 ? "found damaged gzip data" : "the file ends", done, what, bytes),
           kHint);
    }
    done += got;
  }
}

}  // namespace ebb
