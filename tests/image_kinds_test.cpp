// WebP, GIF and BMP as encoders write them, and as nobody should.
#include <random>

#include "formats/image_codecs.h"
#include "image_kinds_fixture.h"

namespace ebb {
namespace {

using namespace image_fixture;

class ImageKinds : public ImageFiles {
 protected:
  void webp(const std::string& name, int width, int height, const Bytes& rgba,
            bool lossless) const {
    make_webp(at(name), width, height, rgba, lossless);
  }
  void gif(const std::string& name, int screen, const GifFrame& frame, const Bytes& indices) const {
    make_gif(at(name), screen, frame, indices);
  }
  static Bytes gif_colours(const Bytes& indices) {
    Bytes rgb;
    for (const uint8_t i : indices) {
      rgb.insert(rgb.end(), {i, static_cast<uint8_t>(2 * i), static_cast<uint8_t>(255 - i)});
    }
    return rgb;
  }
};

TEST_F(ImageKinds, WebpIsReadWithItsTransparencyOnWhite) {
  const Bytes rgb = gradient(33, 17, 3);
  webp("exact.webp", 33, 17, opaque(rgb), true);
  EXPECT_EQ(probe_image(at("exact.webp")).kind, ImageKind::webp_exact);
  EXPECT_EQ(decoded(at("exact.webp")), rgb);
  webp("lossy.webp", 33, 17, opaque(rgb), false);
  EXPECT_EQ(probe_image(at("lossy.webp")).kind, ImageKind::webp);
  expect_near(decoded(at("lossy.webp")), rgb, 24);
  webp("clear.webp", 3, 1, {100, 50, 0, 255, 100, 50, 0, 0, 100, 50, 0, 128}, true);
  EXPECT_EQ(decoded(at("clear.webp")), (Bytes{100, 50, 0, 255, 255, 255, 177, 152, 127}));
  Bytes half = opaque(gradient(40, 40, 3));
  for (size_t i = 3; i < half.size(); i += 4) half[i] = static_cast<uint8_t>(i / 4 % 256);
  webp("half.webp", 40, 40, half, false);
  EXPECT_EQ(probe_image(at("half.webp")).kind, ImageKind::webp_exact);
  EXPECT_EQ(decoded(at("half.webp")).size(), 4800u);
}

TEST_F(ImageKinds, WebpOfEverySizeStaysInItsMemory) {
  std::mt19937 random(3);
  for (const auto& [width, height] :
       std::vector<std::pair<int, int>>{{1, 1}, {1, 700}, {4000, 3}, {300, 300}, {640, 480}}) {
    Bytes noise(static_cast<size_t>(width * height * 4));
    for (size_t i = 0; i < noise.size(); ++i) {  // noise on patches: many sets of codes
      noise[i] = static_cast<uint8_t>(random() % (1 + (i / 64 * 37) % 256));
    }
    for (const bool lossless : {false, true}) {
      webp("a.webp", width, height, noise, lossless);
      EXPECT_NO_THROW(decoded(at("a.webp"))) << width << "x" << height << " " << lossless;
    }
  }
}

TEST_F(ImageKinds, TheFirstFrameOfAnAnimatedWebpIsReadOnItsCanvas) {
  webp("one", 2, 1, {10, 20, 30, 255, 40, 50, 60, 0}, true);
  webp("two", 2, 1, {1, 1, 1, 255, 1, 1, 1, 255}, true);
  spill(at("a.webp"), webp_animation(slurp(at("one")), slurp(at("two"))));
  Bytes wanted(8 * 6 * 3, 255);
  const Bytes pixel = {10, 20, 30};
  std::copy(pixel.begin(), pixel.end(), wanted.begin() + (4 * 8 + 2) * 3);
  EXPECT_EQ(decoded(at("a.webp")), wanted);
}

// libwebp calls the allocator that image_webp.cpp puts in the place of its own.
TEST_F(ImageKinds, WhatLibwebpTakesIsCounted) {
  const WebpHeap heap(1000);
  EXPECT_EQ(WebPMalloc(2000), nullptr);
  void* block = WebPMalloc(600);
  EXPECT_NE(block, nullptr);
  EXPECT_EQ(WebPMalloc(600), nullptr);
  WebPFree(block);
  void* again = WebPMalloc(600);
  EXPECT_NE(again, nullptr);
  WebPFree(again);
}

TEST_F(ImageKinds, TheFirstFrameOfAGifIsReadOnItsScreen) {
  const Bytes indices = gif_numbers(81);
  for (const bool interlaced : {false, true}) {
    gif("a.gif", 9, {.width = 9, .height = 9, .interlaced = interlaced}, indices);
    EXPECT_EQ(probe_image(at("a.gif")).whole, interlaced);
    EXPECT_EQ(probe_image(at("a.gif")).channels, 3);
    EXPECT_EQ(decoded(at("a.gif")), gif_colours(indices));
  }
  gif("small.gif", 4, {.left = 1, .top = 2, .width = 2, .height = 1, .transparent = 9}, {8, 9});
  Bytes wanted(48, 255);
  const Bytes colour = gif_colours({8});
  std::copy(colour.begin(), colour.end(), wanted.begin() + (2 * 4 + 1) * 3);
  EXPECT_EQ(decoded(at("small.gif")), wanted);
  gif("large.gif", 2, {.width = 4, .height = 4}, gif_numbers(16));
  EXPECT_EQ(decoded(at("large.gif")), gif_colours(gif_numbers(16)));
}

TEST_F(ImageKinds, BmpOfTheCommonSortsIsRead) {
  // 2x2, blue green red, rows of 6 bytes padded to 8, the lower row first.
  const Bytes rows = {1, 2, 3, 4, 5, 6, 0, 0, 7, 8, 9, 10, 11, 12, 0, 0};
  const Bytes upper = {9, 8, 7, 12, 11, 10}, lower = {3, 2, 1, 6, 5, 4};
  Bytes both = upper, turned = lower;
  both.insert(both.end(), lower.begin(), lower.end());
  turned.insert(turned.end(), upper.begin(), upper.end());
  spill(at("a.bmp"), bmp_bytes(2, 2, 24, 0, {}, rows));
  EXPECT_EQ(decoded(at("a.bmp")), both);
  spill(at("down.bmp"), bmp_bytes(2, -2, 24, 0, {}, rows));
  EXPECT_EQ(decoded(at("down.bmp")), turned);

  const Bytes quads = {1, 2, 3, 0, 10, 20, 30, 128};
  spill(at("c.bmp"), bmp_bytes(2, 1, 32, 0, {}, quads));
  EXPECT_EQ(decoded(at("c.bmp")), (Bytes{3, 2, 1, 30, 20, 10}));  // the fourth byte is padding
  Bytes masks;
  for (const uint32_t mask : {0xff0000u, 0xff00u, 0xffu, 0xff000000u})
    append_number(masks, mask, 4);
  spill(at("d.bmp"), bmp_bytes(2, 1, 32, 3, masks, quads, 56));
  EXPECT_EQ(decoded(at("d.bmp")), (Bytes{255, 255, 255, 142, 137, 132}));

  const Bytes palette = {0, 0, 0, 0, 9, 8, 7, 0};
  Bytes all = palette;
  all.resize(1024);
  spill(at("e.bmp"), bmp_bytes(3, 1, 8, 0, all, {1, 0, 1, 0}));
  EXPECT_EQ(decoded(at("e.bmp")), (Bytes{7, 8, 9, 0, 0, 0, 7, 8, 9}));
  EXPECT_EQ(probe_image(at("e.bmp")).channels, 3);
  spill(at("f.bmp"), bmp_bytes(3, 1, 1, 0, palette, {0b10100000, 0, 0, 0}));
  EXPECT_EQ(decoded(at("f.bmp")), (Bytes{7, 8, 9, 0, 0, 0, 7, 8, 9}));
  Bytes gray;
  for (int i = 0; i < 256; ++i) append_number(gray, static_cast<uint32_t>(i * 0x010101), 4);
  spill(at("g.bmp"), bmp_bytes(2, 1, 8, 0, gray, {40, 41, 0, 0}));
  EXPECT_EQ(probe_image(at("g.bmp")).channels, 1);
  spill(at("h.bmp"), bmp_bytes(2, 1, 8, 1, gray, {40, 41, 0, 0}));
  EXPECT_NE(refusal(at("h.bmp")).find("compressed"), std::string::npos);
}

TEST_F(ImageKinds, EveryTruncationIsRefused) {
  webp("a.webp", 24, 24, opaque(gradient(24, 24, 3)), true);
  webp("b.webp", 24, 24, opaque(gradient(24, 24, 3)), false);
  gif("c.gif", 9, {.width = 9, .height = 9}, gif_numbers(81));
  gif("d.gif", 9, {.width = 9, .height = 9, .interlaced = true}, gif_numbers(81));
  spill(at("e.bmp"), bmp_bytes(8, 8, 24, 0, {}, gradient(8, 8, 3)));
  webp("one", 2, 1, {10, 20, 30, 255, 40, 50, 60, 0}, true);
  spill(at("f.webp"), webp_animation(slurp(at("one")), slurp(at("one"))));
  for (const char* name : {"a.webp", "b.webp", "f.webp", "c.gif", "d.gif", "e.bmp"}) {
    const Bytes bytes = slurp(at(name));
    for (size_t length = 0; length < bytes.size(); ++length) {
      SCOPED_TRACE(fmt::format("{} cut to {} of {}", name, length, bytes.size()));
      spill(at("cut"), Bytes(bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(length)));
      refusal(at("cut"));
    }
  }
}

TEST_F(ImageKinds, MutationsNeverCrash) {
  webp("0", 19, 23, opaque(gradient(19, 23, 3)), true);
  webp("1", 19, 23, opaque(gradient(19, 23, 3)), false);
  gif("2", 19, {.left = 2, .top = 1, .width = 16, .height = 18, .transparent = 3},
      gif_numbers(288));
  gif("3", 9, {.width = 9, .height = 9, .interlaced = true}, gif_numbers(81));
  Bytes palette(1024, 77);
  spill(at("4"), bmp_bytes(16, 8, 8, 0, palette, gradient(16, 8, 1)));
  spill(at("5"), bmp_bytes(8, 8, 32, 0, {}, gradient(8, 8, 4)));
  webp("one", 2, 1, {10, 20, 30, 255, 40, 50, 60, 0}, true);
  spill(at("6"), webp_animation(slurp(at("one")), slurp(at("one"))));
  std::mt19937 random(4321);
  int refused = 0;
  for (int round = 0; round < 7000; ++round) {
    Bytes bytes = slurp(at(std::to_string(round % 7)));
    const int changes = 1 + static_cast<int>(random() % 4);
    for (int i = 0; i < changes; ++i) {
      const size_t range = random() % 2 ? bytes.size() : std::min<size_t>(bytes.size(), 60);
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

}  // namespace
}  // namespace ebb
