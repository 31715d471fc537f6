// What real encoders write is read to the pixel.
#include "image_fixture.h"

namespace ebb {
namespace {

using namespace image_fixture;

TEST_F(ImageFiles, WhatWritePngWritesIsReadBack) {
  for (const int channels : {1, 3}) {
    const Bytes pixels = gradient(13, 7, channels);
    write_png(at("a.png"), pixels.data(), 13, 7, channels);
    const ImageInfo info = probe_image(at("a.png"));
    EXPECT_EQ(info.width, 13);
    EXPECT_EQ(info.height, 7);
    EXPECT_EQ(info.channels, channels);
    const Bytes rgb = decoded(at("a.png"));
    for (size_t i = 0; i < rgb.size(); ++i) {
      ASSERT_EQ(rgb[i], channels == 3 ? pixels[i] : pixels[i / 3]);
    }
  }
}

TEST_F(ImageFiles, WritingWhereThereIsNoFolderIsADiskError) {
  const uint8_t pixel = 0;
  try {
    write_png(at("none/a.png"), &pixel, 1, 1, 1);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Exit::disk);
  }
}

TEST_F(ImageFiles, InterlacedPngIsTheSameAsPlain) {
  for (const int size : {1, 2, 3, 5, 8, 17}) {
    const Bytes pixels = gradient(size, size + 1, 3);
    make_png(at("a.png"), size, size + 1, pixels, {.interlaced = true});
    EXPECT_TRUE(probe_image(at("a.png")).whole);
    EXPECT_EQ(decoded(at("a.png")), pixels);
  }
}

TEST_F(ImageFiles, AlphaIsCompositedOnWhite) {
  const Bytes rgba = {100, 50, 0, 255, 100, 50, 0, 0, 100, 50, 0, 128};
  for (const bool interlaced : {false, true}) {
    make_png(at("a.png"), 3, 1, rgba,
             {.colour = PNG_COLOR_TYPE_RGB_ALPHA, .interlaced = interlaced});
    EXPECT_EQ(decoded(at("a.png")), (Bytes{100, 50, 0, 255, 255, 255, 177, 152, 127}));
  }
  make_png(at("b.png"), 2, 1, {40, 255, 40, 0}, {.colour = PNG_COLOR_TYPE_GRAY_ALPHA});
  EXPECT_EQ(decoded(at("b.png")), (Bytes{40, 40, 40, 255, 255, 255}));
  EXPECT_EQ(probe_image(at("b.png")).channels, 1);
}

TEST_F(ImageFiles, PaletteAndSmallDepthsAreExpanded) {
  make_png(at("a.png"), 4, 1, {0b00011011}, {.colour = PNG_COLOR_TYPE_PALETTE, .depth = 2});
  EXPECT_EQ(decoded(at("a.png")), (Bytes{10, 20, 30, 200, 0, 0, 0, 200, 0, 0, 0, 200}));
  make_png(at("b.png"), 2, 1, {0b00010000},
           {.colour = PNG_COLOR_TYPE_PALETTE, .depth = 2, .transparent_first = true});
  EXPECT_EQ(decoded(at("b.png")), (Bytes{255, 255, 255, 200, 0, 0}));
  make_png(at("c.png"), 3, 1, {0b10100000}, {.colour = PNG_COLOR_TYPE_GRAY, .depth = 1});
  EXPECT_EQ(decoded(at("c.png")), (Bytes{255, 255, 255, 0, 0, 0, 255, 255, 255}));
}

TEST_F(ImageFiles, SixteenBitsAreRoundedToEight) {
  make_png(at("a.png"), 2, 1, {0x80, 0x00, 0xff, 0xff},
           {.colour = PNG_COLOR_TYPE_GRAY, .depth = 16});
  EXPECT_EQ(decoded(at("a.png")), (Bytes{128, 128, 128, 255, 255, 255}));
  make_png(at("b.png"), 1, 1, {0x12, 0x12, 0xff, 0xff, 0, 0, 0xff, 0xff},
           {.colour = PNG_COLOR_TYPE_RGB_ALPHA, .depth = 16});
  EXPECT_EQ(decoded(at("b.png")), (Bytes{0x12, 255, 0}));
}

TEST_F(ImageFiles, JpegOfEverySortIsRead) {
  const Bytes rgb = gradient(33, 17, 3);
  make_jpeg(at("a.jpg"), 33, 17, rgb);
  EXPECT_FALSE(probe_image(at("a.jpg")).whole);
  expect_near(decoded(at("a.jpg")), rgb, 24);  // half-resolution chroma
  make_jpeg(at("p.jpg"), 33, 17, rgb, {.progressive = true});
  EXPECT_TRUE(probe_image(at("p.jpg")).whole);
  expect_near(decoded(at("p.jpg")), rgb, 24);

  const Bytes gray = gradient(20, 20, 1);
  make_jpeg(at("g.jpg"), 20, 20, gray, {.space = JCS_GRAYSCALE});
  EXPECT_EQ(probe_image(at("g.jpg")).channels, 1);
  const Bytes read = decoded(at("g.jpg"));
  for (size_t i = 0; i < read.size(); ++i) ASSERT_NEAR(read[i], gray[i / 3], 3);
}

TEST_F(ImageFiles, CmykJpegBecomesRgb) {
  Bytes cmyk;  // libjpeg writes an Adobe marker: values are missing ink
  for (int i = 0; i < 16 * 16; ++i) cmyk.insert(cmyk.end(), {200, 100, 50, 255});
  make_jpeg(at("c.jpg"), 16, 16, cmyk, {.space = JCS_CMYK});
  EXPECT_EQ(probe_image(at("c.jpg")).channels, 3);
  const Bytes rgb = decoded(at("c.jpg"));
  for (size_t i = 0; i < rgb.size(); ++i)
    ASSERT_NEAR(rgb[i], (i % 3 == 0) ? 200 : (i % 3 == 1) ? 100 : 50, 3);
}

TEST_F(ImageFiles, TheKindIsInTheBytesNotInTheName) {
  const Bytes pixels = gradient(4, 4, 3);
  make_png(at("really_png.jpg"), 4, 4, pixels);
  EXPECT_EQ(decoded(at("really_png.jpg")), pixels);
}

}  // namespace
}  // namespace ebb
