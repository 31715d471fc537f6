// What a source says of its classes, and the fingerprint that tells one data set from another.
#include "base/text.h"
#include "data_fixture.h"
#include "formats/image.h"
#include "formats/npy.h"

namespace ebb {
namespace {

using namespace data_fixture;

class Identity : public DataFolder {
 protected:
  void image(const std::string& name, uint8_t value = 99) const {
    fs::create_directories((folder_ / name).parent_path());
    const Bytes pixels(8 * 8 * 3, value);
    write_png(folder_ / name, pixels.data(), 8, 8, 3);
  }
  std::string print(const std::string& below = "") const {
    return open_source(folder_ / below)->info().fingerprint;
  }
  void features(int count) const {
    for (int i = 0; i < count; ++i) feature(i, static_cast<float>(i), i % 3);
  }
  void feature(int i, float value, int64_t label) const {
    const int64_t shape[] = {1, 2, 4, 4};
    const std::vector<float> x(32, value);
    fs::create_directories(folder_ / "toy_features");
    write_npy(folder_ / "toy_features" / fmt::format("{}.npy", i), x.data(), shape);
    write(fmt::format("toy_labels/{}.npy", i),
          make_npy_header("<i8", std::vector<int64_t>{1}) +
              std::string(reinterpret_cast<const char*>(&label), 8));
  }
  void idx(const std::string& pixels, const std::string& labels) const {
    std::string head("\0\0\x08\x03\0\0\0\0\0\0\0\x02\0\0\0\x02", 16);
    head[7] = static_cast<char>(labels.size());
    write("train-images-idx3-ubyte", head + pixels);
    write("train-labels-idx1-ubyte",
          std::string("\0\0\x08\x01\0\0\0", 7) + static_cast<char>(labels.size()) + labels);
  }
};

TEST_F(Identity, ClassNamesKeepTheirUtf8) {
  image("Übergröße/a.png");
  image("\xe7\x8c\xab/a.png");
  image("\xe7\x8c\xab/b.png");
  image("bad\xff\x1b[31m\xc2\x9b/a.png");
  const DataInfo info = open_source(folder_)->info();
  EXPECT_EQ(info.class_names,
            (std::vector<std::string>{"bad\\xff\\x1b[31m\\xc2\\x9b", "Übergröße", "\xe7\x8c\xab"}));
  EXPECT_EQ(info.class_counts, (std::vector<int64_t>{1, 1, 2}));
}

TEST_F(Identity, EveryKindCountsItsClasses) {
  idx(std::string(16, 'x'), std::string("\0\2\2\0", 4));
  EXPECT_EQ(open_source(folder_)->info().class_counts, (std::vector<int64_t>{2, 0, 2}));
  fs::remove(folder_ / "train-labels-idx1-ubyte");
  EXPECT_TRUE(open_source(folder_)->info().class_counts.empty());
  fs::remove(folder_ / "train-images-idx3-ubyte");
  features(7);
  EXPECT_EQ(open_source(folder_)->info().class_counts, (std::vector<int64_t>{3, 2, 2}));
}

TEST_F(Identity, TheFingerprintOfImagesFollowsNamesLabelsAndSizes) {
  image("d/cat/a.png");
  image("d/cat/b.png");
  image("d/dog/a.png");
  const std::string first = print("d");
  EXPECT_EQ(first.size(), 16u);
  EXPECT_EQ(first, print("d"));
  fs::rename(folder_ / "d", folder_ / "elsewhere");
  EXPECT_EQ(print("elsewhere"), first);
  fs::rename(folder_ / "elsewhere", folder_ / "d");
  std::vector<std::string> seen = {first};
  const auto differs = [&](const char* what) {
    EXPECT_EQ(std::find(seen.begin(), seen.end(), print("d")), seen.end()) << what;
    seen.push_back(print("d"));
  };
  image("d/dog/c.png");
  differs("added");
  fs::remove(folder_ / "d/cat/a.png");
  differs("removed");
  fs::rename(folder_ / "d/cat/b.png", folder_ / "d/cat/z.png");
  differs("renamed");
  fs::rename(folder_ / "d/dog/c.png", folder_ / "d/cat/c.png");
  differs("relabelled");
  fs::rename(folder_ / "d/dog", folder_ / "d/hound");
  differs("class renamed");
  Bytes noise(8 * 8 * 3);
  for (size_t i = 0; i < noise.size(); ++i) noise[i] = static_cast<uint8_t>(i * i * 31);
  write_png(folder_ / "d/cat/z.png", noise.data(), 8, 8, 3);
  differs("of another size");
}

TEST_F(Identity, TheFingerprintOfFeaturesFollowsValuesAndLabels) {
  features(6);
  const std::string first = print();
  feature(4, 99, 1);
  EXPECT_NE(print(), first);
  feature(4, 4, 2);
  EXPECT_NE(print(), first);
  feature(4, 4, 1);
  EXPECT_EQ(print(), first);
  feature(6, 6, 0);
  EXPECT_NE(print(), first);
}

TEST_F(Identity, TheFingerprintOfIdxFollowsPixelsAndLabels) {
  std::string pixels = "0123456789abcdef";
  idx(pixels, std::string("\0\1\2\3", 4));
  const std::string first = print();
  idx(pixels, std::string("\0\1\3\3", 4));
  EXPECT_NE(print(), first);
  pixels[15] = '!';
  idx(pixels, std::string("\0\1\2\3", 4));
  EXPECT_NE(print(), first);
}

TEST(Text, ValidUtf8StaysAndAllElseIsEscaped) {
  EXPECT_EQ(clean_utf8("a\xc3\xbc\xe2\x82\xac\xf0\x9f\x98\x80z"),
            "a\xc3\xbc\xe2\x82\xac\xf0\x9f\x98\x80z");
  for (const auto& [bad, shown] : std::vector<std::pair<std::string, std::string>>{
           {"\n", "\\x0a"},
           {"\x7f", "\\x7f"},
           {"\x80", "\\x80"},
           {"\xc0\x80", "\\xc0\\x80"},                    // too long a form of 0
           {"\xe0\x9f\xbf", "\\xe0\\x9f\\xbf"},           // and of U+07FF
           {"\xed\xa0\x80", "\\xed\\xa0\\x80"},           // half of a pair
           {"\xf4\x90\x80\x80", "\\xf4\\x90\\x80\\x80"},  // beyond the last
           {"\xe2\x82", "\\xe2\\x82"},                    // cut short
           {"\xe2\x80\xae", "\\xe2\\x80\\xae"},           // right to left from here
           {"\xc2\x9b", "\\xc2\\x9b"}}) {                 // C1: CSI
    EXPECT_EQ(clean_utf8(bad), shown);
  }
  std::string wide;
  for (int i = 0; i < 100; ++i) wide += "\xe2\x82\xac";
  EXPECT_EQ(printable(wide), wide.substr(0, 198) + "...");
}

}  // namespace
}  // namespace ebb
