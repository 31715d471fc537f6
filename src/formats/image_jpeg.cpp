// JPEG through libjpeg. Its errors are longjmps and are handled as in image_png.cpp. Damage that
// libjpeg would only warn about and paint over is an error here: nobody wants to train on it.
#include <algorithm>
#include <csetjmp>
#include <cstdio>  // jpeglib.h needs FILE before it
#include <cstdlib>

#include <jpeglib.h>
// jerror.h needs jpeglib.h before it
#include <jerror.h>

#include "base/error.h"
#include "formats/image_codecs.h"

namespace ebb {
namespace {

constexpr int kMaxScans = 200;  // real files have about ten; each costs a pass over all pixels

class JpegReader final : public ImageReader {
 public:
  explicit JpegReader(InputFile file) : file_(std::move(file)) {
    jpeg_.err = jpeg_std_error(&errors_);
    jpeg_.client_data = this;
    errors_.error_exit = on_error;
    errors_.emit_message = on_message;
    errors_.output_message = [](j_common_ptr) {};
    try {
      run(read_header);
      describe();
    } catch (...) {
      jpeg_destroy_decompress(&jpeg_);
      throw;
    }
  }
  ~JpegReader() override { jpeg_destroy_decompress(&jpeg_); }
  JpegReader(const JpegReader&) = delete;
  JpegReader& operator=(const JpegReader&) = delete;

  void start(std::span<std::byte> scratch) override {
    require(std::ssize(scratch) >= info_.scratch_bytes(), "jpeg: scratch too small");
    scratch_ = reinterpret_cast<uint8_t*>(scratch.data());
    run(start_decoding);
  }

  void read_row(uint8_t* rgb) override {
    require(scratch_ != nullptr && row_ < info_.height, "jpeg: no row {} to read", row_);
    run(read_one_row);
    if (++row_ == info_.height) run(read_end);
    convert(rgb);
  }

 private:
  using Step = void (*)(JpegReader&);

  static bool guarded(JpegReader& self, Step step) {
    if (setjmp(self.jump_)) return false;
    step(self);
    return true;
  }
  void run(Step step) {
    if (!guarded(*this, step)) fail_image(file_.name(), "JPEG", message_);
  }

  static void read_header(JpegReader& self) {
    jpeg_create_decompress(&self.jpeg_);
    self.progress_.progress_monitor = on_progress;
    self.jpeg_.progress = &self.progress_;
    jpeg_stdio_src(&self.jpeg_, self.file_.stream());
    jpeg_read_header(&self.jpeg_, TRUE);
  }

  void describe() {
    info_.kind = ImageKind::jpeg;
    info_.width = jpeg_.image_width;
    info_.height = jpeg_.image_height;
    check_image_size(file_.name(), info_.width, info_.height);
    switch (jpeg_.jpeg_color_space) {
      case JCS_GRAYSCALE:
        jpeg_.out_color_space = JCS_GRAYSCALE;
        break;
      case JCS_YCbCr:
      case JCS_RGB:
        jpeg_.out_color_space = JCS_RGB;
        break;
      case JCS_CMYK:
      case JCS_YCCK:
        jpeg_.out_color_space = JCS_CMYK;
        break;
      default:
        fail_image(file_.name(), "JPEG", "it is not gray, RGB, YCbCr, CMYK or YCCK");
    }
    info_.channels = jpeg_.out_color_space == JCS_GRAYSCALE ? 1 : 3;
    info_.whole = jpeg_has_multiple_scans(&jpeg_);
    jpeg_.do_block_smoothing = FALSE;
    jpeg_.mem->max_memory_to_use = info_.heap_bytes();
  }

  static void start_decoding(JpegReader& self) { jpeg_start_decompress(&self.jpeg_); }
  static void read_one_row(JpegReader& self) {
    JSAMPROW row = self.scratch_;
    if (jpeg_read_scanlines(&self.jpeg_, &row, 1) != 1) ERREXIT(&self.jpeg_, JERR_INPUT_EOF);
  }
  static void read_end(JpegReader& self) { jpeg_finish_decompress(&self.jpeg_); }

  void convert(uint8_t* rgb) const {
    if (jpeg_.out_color_space == JCS_RGB) {
      std::copy_n(scratch_, info_.width * 3, rgb);
    } else if (jpeg_.out_color_space == JCS_GRAYSCALE) {
      for (int64_t x = 0; x < info_.width; ++x) {
        rgb[3 * x] = rgb[3 * x + 1] = rgb[3 * x + 2] = scratch_[x];
      }
    } else {
      // Adobe writes the ink that is missing, everyone else the ink that is there.
      const int flip = jpeg_.saw_Adobe_marker ? 0 : 255;
      for (int64_t x = 0; x < info_.width; ++x) {
        const int key = scratch_[4 * x + 3] ^ flip;
        for (int c = 0; c < 3; ++c) {
          rgb[3 * x + c] = static_cast<uint8_t>(((scratch_[4 * x + c] ^ flip) * key + 127) / 255);
        }
      }
    }
  }

  static void on_error(j_common_ptr jpeg) {
    auto* self = static_cast<JpegReader*>(jpeg->client_data);
    jpeg->err->format_message(jpeg, self->message_);
    std::longjmp(self->jump_, 1);
  }
  static void on_message(j_common_ptr jpeg, int level) {
    if (level >= 0) return;
    switch (jpeg->err->msg_code) {
      case JWRN_JPEG_EOF:
      case JWRN_HIT_MARKER:
      case JWRN_HUFF_BAD_CODE:
      case JWRN_ARITH_BAD_CODE:
      case JWRN_MUST_RESYNC:
      case JWRN_BOGUS_PROGRESSION:
      case JWRN_NOT_SEQUENTIAL:
        on_error(jpeg);
        break;
      default:
        break;  // stray bytes between segments and the like: the pixels are all there
    }
  }
  static void on_progress(j_common_ptr jpeg) {
    const auto* decompress = reinterpret_cast<j_decompress_ptr>(jpeg);
    if (decompress->input_scan_number <= kMaxScans) return;
    auto* self = static_cast<JpegReader*>(jpeg->client_data);
    std::snprintf(self->message_, sizeof(self->message_), "it has more than %d scans", kMaxScans);
    std::longjmp(self->jump_, 1);
  }

  InputFile file_;
  jpeg_decompress_struct jpeg_ = {};
  jpeg_error_mgr errors_ = {};
  jpeg_progress_mgr progress_ = {};
  std::jmp_buf jump_ = {};
  uint8_t* scratch_ = nullptr;
  int64_t row_ = 0;
  char message_[JMSG_LENGTH_MAX] = {};
};

}  // namespace

std::unique_ptr<ImageReader> open_jpeg(InputFile file) {
  return std::make_unique<JpegReader>(std::move(file));
}

}  // namespace ebb
