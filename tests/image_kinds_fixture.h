// WebP, GIF and BMP as encoders write them, and EXIF as cameras do.
#pragma once

#include <gif_lib.h>
#include <webp/encode.h>

#include "image_fixture.h"

namespace ebb::image_fixture {

inline void append_number(Bytes& bytes, uint32_t value, int count, bool little = true) {
  for (int i = 0; i < count; ++i) {
    bytes.push_back(static_cast<uint8_t>(value >> 8 * (little ? i : count - 1 - i)));
  }
}

inline Bytes joined(Bytes left, const Bytes& right) {
  left.insert(left.end(), right.begin(), right.end());
  return left;
}

inline void make_webp(const fs::path& path, int width, int height, const Bytes& rgba,
                      bool lossless) {
  uint8_t* data = nullptr;
  const size_t size = lossless
                          ? WebPEncodeLosslessRGBA(rgba.data(), width, height, width * 4, &data)
                          : WebPEncodeRGBA(rgba.data(), width, height, width * 4, 95, &data);
  spill(path, Bytes(data, data + size));
  WebPFree(data);
}

// Frames of one picture each on a canvas of 8x6, the first at (2, 4), the second at (0, 0).
inline Bytes webp_animation(const Bytes& first, const Bytes& second) {
  Bytes chunks = {'V', 'P', '8', 'X', 10,  0,   0, 0, 0x12, 0, 0, 0, 7, 0, 0, 5,
                  0,   0,   'A', 'N', 'I', 'M', 6, 0, 0,    0, 0, 0, 0, 0, 0, 0};
  for (const Bytes* frame : {&first, &second}) {
    const Bytes picture(frame->begin() + 12, frame->end());
    chunks.insert(chunks.end(), {'A', 'N', 'M', 'F'});
    append_number(chunks, static_cast<uint32_t>(picture.size() + 16), 4);
    append_number(chunks, frame == &first ? 1 : 0, 3);
    append_number(chunks, frame == &first ? 2 : 0, 3);
    append_number(chunks, 1, 3);
    append_number(chunks, 0, 3);
    append_number(chunks, 100, 4);
    chunks.insert(chunks.end(), picture.begin(), picture.end());
  }
  Bytes file = {'R', 'I', 'F', 'F'};
  append_number(file, static_cast<uint32_t>(chunks.size() + 4), 4);
  file.insert(file.end(), {'W', 'E', 'B', 'P'});
  file.insert(file.end(), chunks.begin(), chunks.end());
  return file;
}

// RGBA out of RGB.
inline Bytes opaque(const Bytes& rgb) {
  Bytes rgba;
  for (size_t i = 0; i < rgb.size(); i += 3) {
    rgba.insert(rgba.end(), {rgb[i], rgb[i + 1], rgb[i + 2], 255});
  }
  return rgba;
}

struct GifFrame {
  int left = 0, top = 0, width = 4, height = 4;
  bool interlaced = false;
  int transparent = NO_TRANSPARENT_COLOR;
};

// Colour i is (i, 2 i, 255 - i).
inline void make_gif(const fs::path& path, int screen, const GifFrame& frame,
                     const Bytes& indices) {
  int error = 0;
  GifFileType* file = EGifOpenFileName(path.c_str(), false, &error);
  ColorMapObject* map = GifMakeMapObject(64, nullptr);
  for (int i = 0; i < 64; ++i) {
    map->Colors[i] = {static_cast<GifByteType>(i), static_cast<GifByteType>(2 * i),
                      static_cast<GifByteType>(255 - i)};
  }
  EGifSetGifVersion(file, true);
  EGifPutScreenDesc(file, screen, screen, 8, 0, map);
  GraphicsControlBlock control = {DISPOSAL_UNSPECIFIED, false, 0, frame.transparent};
  GifByteType block[4];
  EGifGCBToExtension(&control, block);
  EGifPutExtension(file, GRAPHICS_EXT_FUNC_CODE, 4, block);
  EGifPutImageDesc(file, frame.left, frame.top, frame.width, frame.height, frame.interlaced,
                   nullptr);
  Bytes copy = indices;
  const auto line = [&](int y) {
    EGifPutLine(file, copy.data() + size_t{1} * y * frame.width, frame.width);
  };
  if (frame.interlaced) {
    const int first[] = {0, 4, 2, 1}, step[] = {8, 8, 4, 2};
    for (int pass = 0; pass < 4; ++pass) {
      for (int y = first[pass]; y < frame.height; y += step[pass]) line(y);
    }
  } else {
    for (int y = 0; y < frame.height; ++y) line(y);
  }
  EGifCloseFile(file, &error);
  GifFreeMapObject(map);
}

inline Bytes gif_numbers(int count) {
  Bytes indices;
  for (int i = 0; i < count; ++i) indices.push_back(static_cast<uint8_t>(i * 7 % 64));
  return indices;
}

// `more`: what follows a header of 40 bytes up to the pixels: masks or a palette.
inline Bytes bmp_bytes(int width, int height, int bits, uint32_t compression, const Bytes& more,
                       const Bytes& rows, uint32_t header = 40) {
  Bytes bytes = {'B', 'M'};
  const uint32_t pixels = static_cast<uint32_t>(54 + more.size());
  append_number(bytes, pixels + static_cast<uint32_t>(rows.size()), 4);
  append_number(bytes, 0, 4);
  append_number(bytes, pixels, 4);
  append_number(bytes, header, 4);
  append_number(bytes, static_cast<uint32_t>(width), 4);
  append_number(bytes, static_cast<uint32_t>(height), 4);
  append_number(bytes, 1, 2);
  append_number(bytes, static_cast<uint32_t>(bits), 2);
  append_number(bytes, compression, 4);
  for (int i = 0; i < 5; ++i) append_number(bytes, 0, 4);
  bytes.insert(bytes.end(), more.begin(), more.end());
  bytes.insert(bytes.end(), rows.begin(), rows.end());
  return bytes;
}

// A TIFF structure with a tag before the orientation and one after.
inline Bytes tiff(int orientation, bool little) {
  Bytes bytes = little ? Bytes{'I', 'I', '*', 0} : Bytes{'M', 'M', 0, '*'};
  append_number(bytes, 8, 4, little);
  append_number(bytes, 3, 2, little);
  for (const uint32_t tag : {0x010fu, 0x0112u, 0x011au}) {
    append_number(bytes, tag, 2, little);
    append_number(bytes, 3, 2, little);
    append_number(bytes, 1, 4, little);
    append_number(bytes, static_cast<uint32_t>(tag == 0x0112 ? orientation : 7), 2, little);
    append_number(bytes, 0, 2, little);
  }
  append_number(bytes, 0, 4, little);
  return bytes;
}

inline Bytes with_exif_jpeg(const Bytes& jpeg, const Bytes& exif) {
  Bytes out(jpeg.begin(), jpeg.begin() + 2);
  out = joined(out, {0xff, 0xe1, 0, 8, 'h', 't', 't', 'p', ':', 0});  // XMP comes in APP1 too
  out = joined(out, {0xff, 0xe1});
  append_number(out, static_cast<uint32_t>(exif.size() + 8), 2, false);
  out = joined(joined(out, {'E', 'x', 'i', 'f', 0, 0}), exif);
  return joined(out, Bytes(jpeg.begin() + 2, jpeg.end()));
}

inline Bytes with_exif_png(const Bytes& png, const Bytes& exif) {
  Bytes out(png.begin(), png.begin() + 33);  // up to the end of IHDR
  append_number(out, static_cast<uint32_t>(exif.size()), 4, false);
  out = joined(joined(out, {'e', 'X', 'I', 'f'}), exif);
  append_number(out, 0, 4, false);  // a checksum that nobody looks at
  return joined(out, Bytes(png.begin() + 33, png.end()));
}

// Lossless, so that pixels can be compared.
inline Bytes webp_with_exif(const Bytes& rgb, int width, int height, const Bytes& exif) {
  uint8_t* data = nullptr;
  const size_t size = WebPEncodeLosslessRGB(rgb.data(), width, height, width * 3, &data);
  const Bytes picture(data + 12, data + size);
  WebPFree(data);
  Bytes chunks = {'V', 'P', '8', 'X', 10, 0, 0, 0, 8, 0, 0, 0};  // 8: there is EXIF
  append_number(chunks, static_cast<uint32_t>(width - 1), 3, true);
  append_number(chunks, static_cast<uint32_t>(height - 1), 3, true);
  chunks = joined(joined(chunks, picture), {'E', 'X', 'I', 'F'});
  append_number(chunks, static_cast<uint32_t>(exif.size()), 4, true);
  chunks = joined(chunks, exif);
  Bytes file = {'R', 'I', 'F', 'F'};
  append_number(file, static_cast<uint32_t>(chunks.size() + 4), 4, true);
  return joined(joined(file, {'W', 'E', 'B', 'P'}), chunks);
}

}  // namespace ebb::image_fixture
