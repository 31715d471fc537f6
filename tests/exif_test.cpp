// Pictures from a camera that was held sideways, and hostile EXIF.
#include "formats/exif.h"

#include <random>

#include "data/source.h"
#include "image_kinds_fixture.h"

namespace ebb {
namespace {

using namespace image_fixture;

TEST(Exif, BothByteOrdersAreRead) {
  for (const bool little : {false, true}) {
    for (int o = 1; o <= 8; ++o) EXPECT_EQ(tiff_orientation(tiff(o, little)), o);
    for (const int o : {0, 9, 255, 65535}) EXPECT_EQ(tiff_orientation(tiff(o, little)), 1);
  }
}

TEST(Exif, CutOrMutatedStructuresNeverCrash) {
  const Bytes whole = tiff(6, true);
  for (size_t length = 0; length <= whole.size(); ++length) {
    const Bytes cut(whole.begin(), whole.begin() + static_cast<ptrdiff_t>(length));
    const int o = tiff_orientation(cut);
    EXPECT_TRUE(o == 1 || o == 6);
  }
  std::mt19937 random(5);
  for (int round = 0; round < 20000; ++round) {
    Bytes bytes = tiff(8, round % 2 == 0);
    for (int i = 0; i < 3; ++i) bytes[random() % bytes.size()] = static_cast<uint8_t>(random());
    const int o = tiff_orientation(bytes);
    EXPECT_GE(o, 1);
    EXPECT_LE(o, 8);
  }
}

class Upside : public ImageFiles {
 protected:
  // A picture of 4x4 numbers, each its own.
  static uint8_t value(int y, int x) { return static_cast<uint8_t>(10 + 60 * y + 12 * x); }

  // What a viewer shows of it, as the standard words it: row 0 and column 0 of the stored picture
  // are the shown picture's ...
  static uint8_t shown(int orientation, int y, int x) {
    const int last = 3;
    switch (orientation) {
      case 2:
        return value(y, last - x);  // top, right
      case 3:
        return value(last - y, last - x);  // bottom, right
      case 4:
        return value(last - y, x);  // bottom, left
      case 5:
        return value(x, y);  // left, top
      case 6:
        return value(last - x, y);  // right, top
      case 7:
        return value(last - x, last - y);  // right, bottom
      case 8:
        return value(x, last - y);  // left, bottom
      default:
        return value(y, x);
    }
  }
  Bytes pixels() const {
    Bytes rgb;
    for (int i = 0; i < 16; ++i) rgb.insert(rgb.end(), 3, value(i / 4, i % 4));
    return rgb;
  }
  static Bytes loaded(const Source& source, int64_t index) {
    Bytes pixels(static_cast<size_t>(source.sample_bytes()));
    std::vector<std::byte> scratch(static_cast<size_t>(source.scratch_bytes()));
    int32_t label = 0;
    source.load(reinterpret_cast<std::byte*>(pixels.data()), &label, index, scratch);
    return pixels;
  }
  // The only image of the folder as the network sees it.
  void expect_shown(int orientation, int tolerance) const {
    const auto source = open_source(folder_);
    const Bytes pixels = loaded(*source, 0);
    for (int i = 0; i < 16; ++i) {
      ASSERT_NEAR(pixels[static_cast<size_t>(i)], shown(orientation, i / 4, i % 4), tolerance)
          << "orientation " << orientation << " at " << i;
    }
  }
};

TEST_F(Upside, JpegIsTurnedUpright) {
  Bytes gray;
  for (int i = 0; i < 16; ++i) gray.push_back(value(i / 4, i % 4));
  for (int o = 1; o <= 8; ++o) {
    make_jpeg(at("a.jpg"), 4, 4, gray, {.space = JCS_GRAYSCALE});
    spill(at("a.jpg"), with_exif_jpeg(slurp(at("a.jpg")), tiff(o, o % 2 == 0)));
    EXPECT_EQ(probe_image(at("a.jpg")).orientation, o);
    expect_shown(o, 4);
  }
}

TEST_F(Upside, PngIsTurnedUpright) {
  for (int o = 1; o <= 8; ++o) {
    make_png(at("a.png"), 4, 4, pixels());
    spill(at("a.png"), with_exif_png(slurp(at("a.png")), tiff(o, o % 2 == 0)));
    expect_shown(o, 0);
  }
}

TEST_F(Upside, WebpIsTurnedUpright) {
  for (int o = 1; o <= 8; ++o) {
    spill(at("a.webp"), webp_with_exif(pixels(), 4, 4, tiff(o, o % 2 == 0)));
    expect_shown(o, 0);
    const Bytes prefixed = joined({'E', 'x', 'i', 'f', 0, 0}, tiff(o, true));
    spill(at("a.webp"), webp_with_exif(pixels(), 4, 4, prefixed));
    expect_shown(o, 0);
  }
}

// Wide and tall pictures are scaled and cut as if they had been stored upright.
TEST_F(Upside, TurningComesAfterScalingAndIsTheSame) {
  for (int o = 1; o <= 8; ++o) {
    const bool swap = o >= 5;
    const int width = 23, height = 37;  // as stored
    const Bytes stored = gradient(width, height, 3);
    make_png(at("a.png"), width, height, stored);
    spill(at("a.png"), with_exif_png(slurp(at("a.png")), tiff(o, true)));
    // The same pixels stored upright.
    const Upright to = upright(o);
    const int w = swap ? height : width, h = swap ? width : height;
    Bytes turned(stored.size());
    for (int y = 0; y < h; ++y) {
      for (int x = 0; x < w; ++x) {
        const int ty = to.mirror_y ? h - 1 - y : y, tx = to.mirror_x ? w - 1 - x : x;
        const int sy = swap ? tx : ty, sx = swap ? ty : tx;
        for (int c = 0; c < 3; ++c) turned[(y * w + x) * 3 + c] = stored[(sy * width + sx) * 3 + c];
      }
    }
    make_png(at("b.png"), w, h, turned);
    const auto source = open_source(folder_, {.image_size = 9});
    const Bytes a = loaded(*source, 0), b = loaded(*source, 1);
    ASSERT_EQ(a.size(), 243u);
    // Sums in another order may round to the neighbour.
    for (size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(a[i], b[i], 1) << o << " at " << i;
  }
}

TEST_F(Upside, ASizeIsThatOfTheUprightPicture) {
  make_png(at("a.png"), 4, 8, gradient(4, 8, 3));
  spill(at("a.png"), with_exif_png(slurp(at("a.png")), tiff(6, true)));
  try {
    open_source(folder_);
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("8x4"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace ebb
