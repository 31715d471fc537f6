// No bytes whatever crash the image readers.
#include <algorithm>
#include <random>

#include "image_fixture.h"

namespace ebb {
namespace {

using namespace image_fixture;
class HostileImages : public ImageFiles {};

TEST_F(HostileImages, EveryTruncationIsRefused) {
  make_png(at("whole.png"), 24, 24, gradient(24, 24, 3));
  make_png(at("laced.png"), 24, 24, gradient(24, 24, 3), {.interlaced = true});
  make_jpeg(at("whole.jpg"), 24, 24, gradient(24, 24, 3));
  make_jpeg(at("steps.jpg"), 24, 24, gradient(24, 24, 3), {.progressive = true});
  for (const char* name : {"whole.png", "laced.png", "whole.jpg", "steps.jpg"}) {
    const Bytes bytes = slurp(at(name));
    for (size_t length = 0; length < bytes.size(); ++length) {
      spill(at("cut"), Bytes(bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(length)));
      refusal(at("cut"));
    }
  }
}

TEST_F(HostileImages, MutationsNeverCrash) {
  make_png(at("0"), 19, 23, gradient(19, 23, 4), {.colour = PNG_COLOR_TYPE_RGB_ALPHA});
  make_png(at("1"), 19, 23, gradient(19, 23, 3), {.interlaced = true});
  make_png(at("2"), 16, 23, gradient(4, 23, 1), {.colour = PNG_COLOR_TYPE_PALETTE, .depth = 2});
  make_jpeg(at("3"), 19, 23, gradient(19, 23, 3));
  make_jpeg(at("4"), 19, 23, gradient(19, 23, 3), {.progressive = true});
  make_jpeg(at("5"), 19, 23, gradient(19, 23, 4), {.space = JCS_CMYK});
  std::mt19937 random(1234);
  int refused = 0;
  for (int round = 0; round < 3000; ++round) {
    Bytes bytes = slurp(at(std::to_string(round % 6)));
    const int changes = 1 + static_cast<int>(random() % 4);
    for (int i = 0; i < changes; ++i) {
      // Headers are a small part of the file and deserve half of the changes.
      const size_t range = random() % 2 ? bytes.size() : std::min<size_t>(bytes.size(), 200);
      bytes[random() % range] = static_cast<uint8_t>(random());
    }
    spill(at("mutant"), bytes);
    try {
      const ImageInfo info = probe_image(at("mutant"));
      if (info.width * info.height > 1 << 22) continue;
      decoded(at("mutant"));
    } catch (const Error& error) {
      ++refused;
      EXPECT_EQ(error.code(), Exit::data);
    }
  }
  EXPECT_GT(refused, 1000);
}

TEST_F(HostileImages, PngMutationsWithRightChecksumsNeverCrash) {
  // Without this the checksum of a chunk would catch nearly every mutation before the decoder.
  make_png(at("a"), 19, 23, gradient(19, 23, 3));
  make_png(at("b"), 16, 23, gradient(4, 23, 1),
           {.colour = PNG_COLOR_TYPE_PALETTE, .depth = 2, .interlaced = true});
  std::mt19937 random(99);
  for (int round = 0; round < 2000; ++round) {
    Bytes bytes = slurp(at(round % 2 ? "a" : "b"));
    for (int i = 0; i < 2; ++i) bytes[8 + random() % (bytes.size() - 8)] ^= 1 << random() % 8;
    for (size_t at_chunk = 8; at_chunk + 12 <= bytes.size();) {
      const size_t length = size_t{bytes[at_chunk]} << 24 | bytes[at_chunk + 1] << 16 |
                            bytes[at_chunk + 2] << 8 | bytes[at_chunk + 3];
      if (length > bytes.size() - at_chunk - 12) break;
      uint32_t crc = 0xffffffff;
      for (size_t i = at_chunk + 4; i < at_chunk + 8 + length; ++i) {
        crc ^= bytes[i];
        for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (crc & 1 ? 0xedb88320u : 0);
      }
      for (int i = 0; i < 4; ++i) {
        bytes[at_chunk + 8 + length + i] = static_cast<uint8_t>(~crc >> (24 - 8 * i));
      }
      at_chunk += 12 + length;
    }
    spill(at("mutant"), bytes);
    try {
      if (probe_image(at("mutant")).width <= 4096) decoded(at("mutant"));
    } catch (const Error&) {
    }
  }
}

TEST_F(HostileImages, HugeImagesAreRefusedByTheirHeader) {
  make_png(at("a.png"), 4, 4, gradient(4, 4, 3));
  Bytes bytes = slurp(at("a.png"));
  const Bytes header = {0, 1, 0, 0, 0, 1, 0, 0};  // 65536 x 65536, with a wrong checksum
  std::copy(header.begin(), header.end(), bytes.begin() + 16);
  spill(at("a.png"), bytes);
  refusal(at("a.png"));

  make_jpeg(at("a.jpg"), 8, 8, gradient(8, 8, 3));
  bytes = slurp(at("a.jpg"));
  for (size_t i = 0; i + 9 < bytes.size(); ++i) {
    if (bytes[i] == 0xff && bytes[i + 1] == 0xc0) {
      for (size_t j = 5; j < 9; ++j) bytes[i + j] = 0xfd;
    }
  }
  spill(at("a.jpg"), bytes);
  EXPECT_NE(refusal(at("a.jpg")).find("65021x65021"), std::string::npos);
}

TEST_F(HostileImages, AFileThatChangedSinceItWasProbedIsRefused) {
  make_png(at("a.png"), 4, 4, gradient(4, 4, 3));
  const ImageInfo info = probe_image(at("a.png"));
  make_png(at("a.png"), 40, 40, gradient(40, 40, 3));
  Bytes rgb(4 * 4 * 3);
  EXPECT_THROW(decode_image(at("a.png"), info, rgb.data()), Error);
}

TEST_F(HostileImages, WhatIsNoImageIsRefusedByName) {
  spill(at("empty.png"), {});
  EXPECT_NE(refusal(at("empty.png")).find("an empty file"), std::string::npos);
  spill(at("text.png"), {'h', 'e', 'l', 'l', 'o'});
  refusal(at("text.png"));
  refusal(at("missing.png"));
  fs::create_directory(at("folder.png"));
  refusal(at("folder.png"));
}

}  // namespace
}  // namespace ebb
