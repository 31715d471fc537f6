// BMP: the kinds that are in use, all uncompressed. 1, 4 and 8 bits a pixel look up a palette; 24
// and 32 bits are blue, green, red, and in 32 bits transparency if the header says so.
#include <algorithm>
#include <array>

#include "base/error.h"
#include "formats/image_codecs.h"

namespace ebb {
namespace {

constexpr size_t kFileHeader = 14;
constexpr size_t kOldHeader = 12;   // of OS/2: sizes of 16 bits, a palette of 3 bytes a colour
constexpr size_t kMaxHeader = 124;  // of version 5
constexpr uint32_t kPlain = 0, kMasks = 3;

class BmpReader final : public ImageReader {
 public:
  explicit BmpReader(InputFile file) : file_(std::move(file)) {
    const size_t got = file_.read(header_.data(), header_.size());
    const size_t length = number(kFileHeader, 4);
    if (got < kFileHeader + 4 || (length != kOldHeader && length < 40) || length > kMaxHeader ||
        got < kFileHeader + length) {
      refuse("its header is not of a known size");
    }
    old_ = length == kOldHeader;
    describe();
    if (bits_ <= 8) {
      read_palette(kFileHeader + length);
    } else {
      check_masks(length);
    }
    // The pixels are all there, or none are read.
    const int64_t end = pixels_ + stride_ * info_.height;
    if (end > file_.size()) refuse("the file ends too early");
  }

  void start(std::span<std::byte> scratch) override {
    require(std::ssize(scratch) >= info_.scratch_bytes(), "bmp: scratch too small");
    row_ = {reinterpret_cast<uint8_t*>(scratch.data()), static_cast<size_t>(stride_)};
  }

  void read_row(uint8_t* rgb) override {
    require(!row_.empty() && next_ < info_.height, "bmp: no row {} to read", next_);
    const int64_t stored = bottom_up_ ? info_.height - 1 - next_ : next_;
    ++next_;
    file_.seek(pixels_ + stored * stride_);
    if (file_.read(row_.data(), row_.size()) < row_.size()) refuse("the file ends too early");
    if (bits_ <= 8) {
      look_up(rgb);
      return;
    }
    const int64_t bytes = bits_ / 8;
    for (int64_t x = 0; x < info_.width; ++x) {
      const uint8_t* bgr = row_.data() + x * bytes;
      const uint8_t rgba[4] = {bgr[2], bgr[1], bgr[0], alpha_ ? bgr[3] : uint8_t{255}};
      composite_on_white(rgb + 3 * x, rgba, 1);
    }
  }

 private:
  [[noreturn]] void refuse(const char* reason) const { fail_image(file_.name(), "BMP", reason); }

  uint32_t number(size_t at, size_t bytes) const {
    uint32_t value = 0;
    for (size_t i = bytes; i > 0; --i) value = value << 8 | header_[at + i - 1];
    return value;
  }

  int64_t signed_number(size_t at) const { return static_cast<int32_t>(number(at, 4)); }

  void describe() {
    info_.kind = ImageKind::bmp;
    pixels_ = number(10, 4);
    info_.width = old_ ? int64_t{number(18, 2)} : signed_number(18);
    const int64_t height = old_ ? int64_t{number(20, 2)} : signed_number(22);
    bottom_up_ = height > 0;
    info_.height = bottom_up_ ? height : -height;
    check_image_size(file_.name(), info_.width, info_.height);
    bits_ = number(old_ ? 24 : 28, 2);
    if (bits_ != 1 && bits_ != 4 && bits_ != 8 && bits_ != 24 && bits_ != 32) {
      refuse("its pixels have neither 1, 4, 8, 24 nor 32 bits");
    }
    compression_ = old_ ? kPlain : number(30, 4);
    if (compression_ != kPlain && !(compression_ == kMasks && bits_ == 32)) {
      refuse("its pixels are compressed");
    }
    stride_ = (info_.width * bits_ + 31) / 32 * 4;
    info_.channels = 3;
  }

  void read_palette(size_t at) {
    const size_t given = old_ ? 0 : number(46, 4);
    const size_t most = size_t{1} << bits_;
    const size_t colours = given == 0 ? most : std::min(given, most);
    const size_t bytes = old_ ? 3 : 4;
    std::array<uint8_t, 1024> table = {};
    file_.seek(static_cast<int64_t>(at));
    if (file_.read(table.data(), colours * bytes) < colours * bytes) {
      refuse("the file ends too early");
    }
    bool gray = true;
    for (size_t i = 0; i < colours; ++i) {
      const uint8_t* bgr = table.data() + i * bytes;
      palette_[i] = {bgr[2], bgr[1], bgr[0]};
      gray = gray && bgr[0] == bgr[1] && bgr[1] == bgr[2];
    }
    info_.channels = gray ? 1 : 3;
  }

  // Where bits are given a meaning, it must be the usual one. Only the longer headers can give one
  // to the last eight; elsewhere they are padding.
  void check_masks(size_t header) {
    if (compression_ != kMasks) return;
    const size_t at = kFileHeader + 40;
    if (number(at, 4) != 0xff0000 || number(at + 4, 4) != 0xff00 || number(at + 8, 4) != 0xff) {
      refuse("its colours are in an unusual order");
    }
    alpha_ = header >= 56 && number(at + 12, 4) == 0xff000000;
  }

  // A number beyond the palette is black, as it is to everyone else.
  void look_up(uint8_t* rgb) const {
    for (int64_t x = 0; x < info_.width; ++x) {
      const int64_t bit = x * bits_;
      const int shift = static_cast<int>(8 - bits_ - bit % 8);
      const auto colour = static_cast<size_t>(row_[bit / 8] >> shift & ((1 << bits_) - 1));
      std::copy_n(palette_[colour].begin(), 3, rgb + 3 * x);
    }
  }

  InputFile file_;
  std::array<uint8_t, kFileHeader + kMaxHeader> header_ = {};
  std::array<std::array<uint8_t, 3>, 256> palette_ = {};
  bool old_ = false, bottom_up_ = true, alpha_ = false;
  int64_t bits_ = 0;
  uint32_t compression_ = kPlain;
  int64_t pixels_ = 0;  // where they begin
  int64_t stride_ = 0;  // bytes of a row
  std::span<uint8_t> row_;
  int64_t next_ = 0;
};

}  // namespace

std::unique_ptr<ImageReader> open_bmp(InputFile file) {
  return std::make_unique<BmpReader>(std::move(file));
}

}  // namespace ebb
