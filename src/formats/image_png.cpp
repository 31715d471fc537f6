// PNG through libpng. libpng reports errors by longjmp, so every call into it is made from a step:
// a function without locals that need a destructor, run by guarded(), which returns false when
// libpng jumped. C++ exceptions start only after it returned, and none crosses a frame of libpng.
#include <png.h>

#include <csetjmp>
#include <cstdlib>
#include <cstring>
#include <exception>

#include "base/error.h"
#include "base/text.h"
#include "formats/atomic_file.h"
#include "formats/image_codecs.h"

namespace ebb {
namespace {

constexpr int64_t kHeaderHeapBytes = int64_t{192} << 10;

// In front of every allocation that libpng or its zlib makes: its size, padded to keep alignment.
union BlockHead {
  size_t bytes;
  std::max_align_t align;
};

class PngReader final : public ImageReader {
 public:
  explicit PngReader(InputFile file) : file_(std::move(file)) {
    png_ = png_create_read_struct_2(PNG_LIBPNG_VER_STRING, this, on_error, on_warning, this,
                                    allocate, release);
    if (png_ == nullptr) fail_image(file_.name(), "PNG", message_);
    try {
      run(read_header);
      describe();
    } catch (...) {
      png_destroy_read_struct(&png_, &png_info_, nullptr);
      throw;
    }
  }
  ~PngReader() override { png_destroy_read_struct(&png_, &png_info_, nullptr); }
  PngReader(const PngReader&) = delete;
  PngReader& operator=(const PngReader&) = delete;

  void start(std::span<std::byte> scratch) override {
    require(std::ssize(scratch) >= info_.scratch_bytes(), "png: scratch too small");
    scratch_ = reinterpret_cast<uint8_t*>(scratch.data());
    run(prepare);
    if (info_.whole) run(read_passes);
  }

  void read_row(uint8_t* rgb) override {
    require(scratch_ != nullptr && row_ < info_.height, "png: no row {} to read", row_);
    if (!info_.whole) run(read_one_row);
    const uint8_t* rgba = scratch_ + (info_.whole ? row_ * info_.width * 4 : 0);
    if (++row_ == info_.height) run(read_end);
    composite_on_white(rgb, rgba, info_.width);
  }

 private:
  using Step = void (*)(PngReader&);

  static bool guarded(PngReader& self, Step step) {
    if (setjmp(png_jmpbuf(self.png_))) return false;
    step(self);
    return true;
  }
  void run(Step step) {
    if (!guarded(*this, step)) fail_image(file_.name(), "PNG", message_);
  }

  static void read_header(PngReader& self) {
    self.png_info_ = png_create_info_struct(self.png_);
    if (self.png_info_ == nullptr) png_error(self.png_, "out of memory");
    // Chunks that do not change pixels are skipped unread: less to attack, less to hold.
    static const png_byte kSkipped[] =
        "iCCP\0tEXt\0zTXt\0iTXt\0sPLT\0eXIf\0hIST\0pCAL\0sCAL\0tIME\0oFFs\0cHRM\0gAMA\0sRGB\0sBIT\0"
        "pHYs\0bKGD";
    png_set_keep_unknown_chunks(self.png_, PNG_HANDLE_CHUNK_NEVER, kSkipped, sizeof(kSkipped) / 5);
    png_set_user_limits(self.png_, kMaxImageSide, kMaxImageSide);
    png_set_read_fn(self.png_, &self, read_bytes);
    png_read_info(self.png_, self.png_info_);
  }

  void describe() {
    info_.kind = ImageKind::png;
    info_.width = png_get_image_width(png_, png_info_);
    info_.height = png_get_image_height(png_, png_info_);
    check_image_size(file_.name(), info_.width, info_.height);
    info_.channels = png_get_color_type(png_, png_info_) & PNG_COLOR_MASK_COLOR ? 3 : 1;
    info_.whole = png_get_interlace_type(png_, png_info_) != PNG_INTERLACE_NONE;
    heap_limit_ = info_.heap_bytes();
  }

  static void prepare(PngReader& self) {
    png_set_expand(self.png_);  // palettes, fewer than 8 bits, a transparent colour
    png_set_scale_16(self.png_);
    png_set_gray_to_rgb(self.png_);
    png_set_add_alpha(self.png_, 0xff, PNG_FILLER_AFTER);
    self.passes_ = png_set_interlace_handling(self.png_);
    png_read_update_info(self.png_, self.png_info_);
    if (png_get_rowbytes(self.png_, self.png_info_) != static_cast<size_t>(self.info_.width) * 4) {
      png_error(self.png_, "its pixels cannot be made RGBA");
    }
  }
  static void read_passes(PngReader& self) {
    for (int pass = 0; pass < self.passes_; ++pass) {
      for (int64_t y = 0; y < self.info_.height; ++y) {
        png_read_row(self.png_, self.scratch_ + y * self.info_.width * 4, nullptr);
      }
    }
  }
  static void read_one_row(PngReader& self) { png_read_row(self.png_, self.scratch_, nullptr); }
  static void read_end(PngReader& self) { png_read_end(self.png_, nullptr); }

  static void read_bytes(png_structp png, png_bytep to, size_t bytes) {
    auto* self = static_cast<PngReader*>(png_get_io_ptr(png));
    if (std::fread(to, 1, bytes, self->file_.stream()) != bytes) {
      png_error(png, "the file ends too early");
    }
  }
  static void on_error(png_structp png, png_const_charp message) {
    auto* self = static_cast<PngReader*>(png_get_error_ptr(png));
    std::snprintf(self->message_, sizeof(self->message_), "%s", message);
    png_longjmp(png, 1);
  }
  static void on_warning(png_structp, png_const_charp) {}

  static void* allocate(png_structp png, size_t bytes) {
    auto* self = static_cast<PngReader*>(png_get_mem_ptr(png));
    const size_t total = bytes + sizeof(BlockHead);
    if (total < bytes || self->heap_used_ + static_cast<int64_t>(total) > self->heap_limit_) {
      return nullptr;  // libpng makes an error of it
    }
    auto* head = static_cast<BlockHead*>(std::malloc(total));
    if (head == nullptr) return nullptr;
    head->bytes = total;
    self->heap_used_ += static_cast<int64_t>(total);
    return head + 1;
  }
  static void release(png_structp png, void* block) {
    if (block == nullptr) return;
    auto* self = static_cast<PngReader*>(png_get_mem_ptr(png));
    BlockHead* head = static_cast<BlockHead*>(block) - 1;
    self->heap_used_ -= static_cast<int64_t>(head->bytes);
    std::free(head);
  }

  InputFile file_;
  png_structp png_ = nullptr;
  png_infop png_info_ = nullptr;
  uint8_t* scratch_ = nullptr;
  int64_t row_ = 0;
  int passes_ = 1;
  int64_t heap_used_ = 0;
  int64_t heap_limit_ = kHeaderHeapBytes;
  char message_[128] = "out of memory";
};

// What the steps of writing share. An exception of AtomicFile waits here until libpng has returned.
struct PngWriting {
  AtomicFile file;
  const uint8_t* pixels;
  int64_t width, height;
  int channels;
  png_structp png = nullptr;
  png_infop info = nullptr;
  std::exception_ptr thrown = nullptr;
  char message[128] = "out of memory";

  static bool put(PngWriting& self, const void* bytes, size_t count) noexcept {
    try {
      self.file.write(bytes, count);
      return true;
    } catch (...) {
      self.thrown = std::current_exception();
      return false;
    }
  }
  static void write_bytes(png_structp png, png_bytep bytes, size_t count) {
    if (!put(*static_cast<PngWriting*>(png_get_io_ptr(png)), bytes, count)) {
      png_error(png, "cannot write");
    }
  }
  static void flush(png_structp) {}
  static void on_error(png_structp png, png_const_charp message) {
    auto* self = static_cast<PngWriting*>(png_get_error_ptr(png));
    std::snprintf(self->message, sizeof(self->message), "%s", message);
    png_longjmp(png, 1);
  }
  static void on_warning(png_structp, png_const_charp) {}

  static bool encode(PngWriting& self) {
    if (setjmp(png_jmpbuf(self.png))) return false;
    self.info = png_create_info_struct(self.png);
    if (self.info == nullptr) png_error(self.png, "out of memory");
    png_set_write_fn(self.png, &self, write_bytes, flush);
    png_set_IHDR(self.png, self.info, static_cast<png_uint_32>(self.width),
                 static_cast<png_uint_32>(self.height), 8,
                 self.channels == 1 ? PNG_COLOR_TYPE_GRAY : PNG_COLOR_TYPE_RGB, PNG_INTERLACE_NONE,
                 PNG_COMPRESSION_TYPE_DEFAULT, PNG_FILTER_TYPE_DEFAULT);
    png_write_info(self.png, self.info);
    for (int64_t y = 0; y < self.height; ++y) {
      png_write_row(self.png, self.pixels + y * self.width * self.channels);
    }
    png_write_end(self.png, self.info);
    return true;
  }
};

}  // namespace

std::unique_ptr<ImageReader> open_png(InputFile file) {
  return std::make_unique<PngReader>(std::move(file));
}

void write_png(const std::filesystem::path& path, const uint8_t* pixels, int64_t width,
               int64_t height, int channels) {
  require(channels == 1 || channels == 3, "write_png: channels {}, wanted 1 or 3", channels);
  require(width > 0 && height > 0, "write_png: an image of {}x{}", width, height);
  PngWriting writing{AtomicFile(path), pixels, width, height, channels};
  writing.png = png_create_write_struct(PNG_LIBPNG_VER_STRING, &writing, PngWriting::on_error,
                                        PngWriting::on_warning);
  const bool done = writing.png != nullptr && PngWriting::encode(writing);
  png_destroy_write_struct(&writing.png, &writing.info);
  if (writing.thrown) std::rethrow_exception(writing.thrown);
  if (!done) {
    fail(Exit::disk, fmt::format("{}: cannot be written: {}", printable(path.string()),
                                 printable(writing.message)));
  }
  writing.file.commit();
}

}  // namespace ebb
