// GIF through libgif, a line at a time: the first frame, on its screen. What the frame leaves free
// and what it declares transparent is white, as in the other formats.
#include <gif_lib.h>

#include <algorithm>

#include "base/error.h"
#include "formats/image_codecs.h"

namespace ebb {
namespace {

// Lines of an interlaced frame come in four passes.
constexpr int64_t kFirstLine[] = {0, 4, 2, 1};
constexpr int64_t kLineStep[] = {8, 8, 4, 2};

class GifReader final : public ImageReader {
 public:
  explicit GifReader(InputFile file) : file_(std::move(file)) {
    int error = 0;
    gif_ = DGifOpen(this, read_bytes, &error);
    if (gif_ == nullptr) refuse(error);
    try {
      find_frame();
      describe();
    } catch (...) {
      DGifCloseFile(gif_, nullptr);
      throw;
    }
  }
  ~GifReader() override { DGifCloseFile(gif_, nullptr); }
  GifReader(const GifReader&) = delete;
  GifReader& operator=(const GifReader&) = delete;

  void start(std::span<std::byte> scratch) override {
    require(std::ssize(scratch) >= info_.scratch_bytes(), "gif: scratch too small");
    lines_ = reinterpret_cast<uint8_t*>(scratch.data());
    if (!info_.whole) return;
    for (int pass = 0; pass < 4; ++pass) {
      for (int64_t y = kFirstLine[pass]; y < frame().Height; y += kLineStep[pass]) {
        read_line(lines_ + y * frame().Width);
      }
    }
  }

  void read_row(uint8_t* rgb) override {
    require(lines_ != nullptr && row_ < info_.height, "gif: no row {} to read", row_);
    std::fill_n(rgb, info_.width * 3, uint8_t{255});
    const int64_t y = row_ - frame().Top;
    if (y >= 0 && y < frame().Height) {
      if (!info_.whole) read_line(lines_);
      paint(rgb + 3 * frame().Left, lines_ + (info_.whole ? y * frame().Width : 0));
    }
    if (++row_ == info_.height) check_end();
  }

 private:
  const GifImageDesc& frame() const { return gif_->Image; }
  const ColorMapObject* colours() const {
    return frame().ColorMap != nullptr ? frame().ColorMap : gif_->SColorMap;
  }

  [[noreturn]] void refuse(int error) const {
    const char* text = GifErrorString(error);
    fail_image(file_.name(), "GIF", text != nullptr ? text : "the file ends too early");
  }
  void check(int result) const {
    if (result == GIF_ERROR) refuse(gif_->Error);
  }

  static int read_bytes(GifFileType* gif, GifByteType* to, int bytes) {
    auto* self = static_cast<GifReader*>(gif->UserData);
    return static_cast<int>(std::fread(to, 1, static_cast<size_t>(bytes), self->file_.stream()));
  }

  // Goes to the first frame's pixels, past comments and the like.
  void find_frame() {
    while (true) {
      GifRecordType type = UNDEFINED_RECORD_TYPE;
      check(DGifGetRecordType(gif_, &type));
      if (type == IMAGE_DESC_RECORD_TYPE) {
        check(DGifGetImageDesc(gif_));
        return;
      }
      if (type != EXTENSION_RECORD_TYPE) fail_image(file_.name(), "GIF", "it has no picture");
      int code = 0;
      GifByteType* block = nullptr;
      check(DGifGetExtension(gif_, &code, &block));
      while (block != nullptr) {
        GraphicsControlBlock control;
        if (code == GRAPHICS_EXT_FUNC_CODE &&
            DGifExtensionToGCB(block[0], block + 1, &control) == GIF_OK) {
          transparent_ = control.TransparentColor;
        }
        check(DGifGetExtensionNext(gif_, &block));
      }
    }
  }

  void describe() {
    info_.kind = ImageKind::gif;
    // Some writers leave the screen at 0 or too small; everyone then shows the whole frame.
    info_.width = std::max<int64_t>(gif_->SWidth, int64_t{frame().Left} + frame().Width);
    info_.height = std::max<int64_t>(gif_->SHeight, int64_t{frame().Top} + frame().Height);
    check_image_size(file_.name(), info_.width, info_.height);
    if (frame().Width < 1 || frame().Height < 1 || colours() == nullptr) {
      fail_image(file_.name(), "GIF", "it has no picture or no colours");
    }
    info_.whole = frame().Interlace;
    const GifColorType* colour = colours()->Colors;
    const bool gray = std::all_of(colour, colour + colours()->ColorCount, [](const auto& c) {
      return c.Red == c.Green && c.Green == c.Blue;
    });
    info_.channels = gray ? 1 : 3;
  }

  void read_line(uint8_t* line) { check(DGifGetLine(gif_, line, frame().Width)); }

  void paint(uint8_t* rgb, const uint8_t* line) const {
    for (int64_t x = 0; x < frame().Width; ++x) {
      const int index = line[x];
      if (index == transparent_ || index >= colours()->ColorCount) continue;
      const GifColorType& colour = colours()->Colors[index];
      rgb[3 * x] = colour.Red;
      rgb[3 * x + 1] = colour.Green;
      rgb[3 * x + 2] = colour.Blue;
    }
  }

  // Another frame, a comment or the end follows.
  void check_end() {
    GifRecordType type = UNDEFINED_RECORD_TYPE;
    check(DGifGetRecordType(gif_, &type));
  }

  InputFile file_;
  GifFileType* gif_ = nullptr;
  int transparent_ = NO_TRANSPARENT_COLOR;
  uint8_t* lines_ = nullptr;  // one line of the frame, or all if they are interlaced
  int64_t row_ = 0;
};

}  // namespace

std::unique_ptr<ImageReader> open_gif(InputFile file) {
  return std::make_unique<GifReader>(std::move(file));
}

}  // namespace ebb
