// Classes by their names, and data that has changed since a run was trained on it.
#include "cli_fixture.h"
#include "formats/image.h"
#include "image_fixture.h"
#include "sample/font.h"
#include "train/resume.h"

namespace ebb::cli_fixture {
namespace {

class CliClasses : public CliTest {
 protected:
  void write_class(const std::string& name, int count = 4) const {
    fs::create_directories(at("pets/" + name));
    for (int i = 0; i < count; ++i) {
      auto pixels = image_fixture::gradient(8, 8, 3);
      pixels[static_cast<size_t>(i)] = static_cast<uint8_t>(name.size());
      image_fixture::make_png(at("pets/" + name + "/" + std::to_string(i) + ".png"), 8, 8, pixels);
    }
  }
  void train_pets() const {
    for (const char* name : {"cat", "dog", "guinea pig"}) write_class(name);
    succeed(training("run", {"--steps", "2"}, "pets"));
  }
  static Args resume(int steps = 3) {
    return {"train", "--resume", "--out", "run", "--steps", std::to_string(steps)};
  }
  static Args draw(const std::string& out, const std::string& classes) {
    return {"sample", "--from", "run", "--count",   "2",    "--steps",
            "1",      "--out",  out,   "--classes", classes};
  }
};

TEST_F(CliClasses, AreDrawnByNameOrNumber) {
  train_pets();
  succeed(draw("names.npy", "dog,guinea pig,0"));
  succeed(draw("numbers.npy", "1,2,0"));
  EXPECT_TRUE(file("names.npy") == file("numbers.npy"));
  const Result typo = run(draw("a.npy", "cat,dgo"));
  expect_refused(typo, 2, {"--classes", "'dgo'", "did you mean dog?"});
  expect_refused(run(draw("a.npy", "3")), 2, {"--classes", "3 classes"});
  EXPECT_FALSE(fs::exists(at("a.npy")));
}

TEST_F(CliClasses, AGridNamesItsRows) {
  train_pets();
  succeed(draw("named.png", "0,2"));
  const ImageInfo info = probe_image(at("named.png"));
  std::vector<uint8_t> rgb(static_cast<size_t>(info.width * info.height * 3));
  decode_image(at("named.png"), info, rgb.data());
  constexpr int64_t kBorder = 2, kSide = 64, kZoom = 2;
  const int64_t margin = info.width - (2 * (kSide + kBorder) + kBorder);
  EXPECT_EQ(margin, 2 * kBorder + 10 * kZoom * (kGlyphWidth + 1));  // "guinea pig"
  std::string_view text = "cat";
  const Glyph& c = next_glyph(text);
  const int64_t top = kBorder + (kSide - kZoom * kGlyphHeight) / 2;
  for (int64_t y = 0; y < kGlyphHeight; ++y) {
    for (int64_t x = 0; x < kGlyphWidth; ++x) {
      const int64_t place = (top + kZoom * y) * info.width + 2 * kBorder + kZoom * x;
      EXPECT_EQ(rgb[static_cast<size_t>(3 * place)], c.is_set(x, y) ? 0 : 255) << x << "," << y;
    }
  }
}

TEST_F(CliClasses, WithoutNamesThereIsNoColumnForThem) {
  write_idx();
  succeed(training("run", {"--steps", "1"}));
  succeed(draw("grid.png", "0,2"));
  EXPECT_EQ(probe_image(at("grid.png")).width, 2 * (64 + 2) + 2);
  expect_refused(run(draw("a.png", "cat")), 2, {"--classes", "'cat'", "without names"});
}

TEST_F(CliClasses, ARenamedClassIsNoticedOnResuming) {
  train_pets();
  fs::rename(at("pets/dog"), at("pets/wolf"));  // sorted after the guinea pig
  const Result refused = run(resume());
  expect_refused(refused, 4, {"step-000000002", "label 1 was 'dog' and is 'guinea pig' now"});
  EXPECT_TRUE(contains(refused.err_line(1), "--data-changed accept")) << refused.story();
  const Result result = succeed(resume() + Args{"--data-changed", "accept"});
  EXPECT_TRUE(contains(result.out, "accepted as changed: label 1 was 'dog'")) << result.story();
  succeed(resume(4));  // now the data is what the newest checkpoint says
  EXPECT_FALSE(contains(file("run/settings.toml"), "data-changed"));
  expect_refused(run(training("new", {"--steps", "1", "--data-changed", "accept"}, "pets")), 2,
                 {"--data-changed"});
}

TEST_F(CliClasses, AChangedDataSetIsNoticedOnResuming) {
  write_idx(32);
  succeed(training("run", {"--steps", "2"}));
  write_idx(20);
  expect_refused(run(resume()), 4, {"32 samples then, 20 now"});
  write_idx(32);
  succeed(resume());
}

TEST(DataChanges, EachIsNamed) {
  const DataRecord then = {"images", 9, "00ff", {"a", "b", "c"}, {3, 3, 3}};
  EXPECT_TRUE(data_differences(then, then).empty());
  EXPECT_TRUE(data_differences({}, then).empty()) << "an older checkpoint says nothing";
  const auto only = [&](auto change) {
    DataRecord now = then;
    change(now);
    const auto found = data_differences(then, now);
    return found.size() == 1 ? found[0] : std::to_string(found.size()) + " of them";
  };
  EXPECT_EQ(only([](DataRecord& r) { r.names[2] = "x"; }), "label 2 was 'c' and is 'x' now");
  EXPECT_EQ(only([](DataRecord& r) { r.names.pop_back(); }), "label 2 ('c') is gone");
  EXPECT_EQ(only([](DataRecord& r) { r.names.emplace_back("d"); }), "label 3 ('d') is new");
  EXPECT_EQ(only([](DataRecord& r) { r.kind = "idx"; }), "it was of kind images and is idx now");
  EXPECT_EQ(only([](DataRecord& r) { r.counts[0] = 4; }), "label 0 had 3 samples and has 4 now");
  EXPECT_TRUE(only([](DataRecord& r) { r.fingerprint = "0100"; }).find("0100") !=
              std::string::npos);
  EXPECT_EQ(only([](DataRecord& r) { r.fingerprint = ""; }), "0 of them");
}

TEST(DataRecords, SurviveTheirJson) {
  DataRecord record = {
      "images", 7, "0123456789abcdef", {"a \"b\"", "b\xc3\xa4r", "c,d"}, {1, 2, 4}};
  DataRecord read = data_from_json(data_to_json(record), "x", Exit::disk);
  EXPECT_TRUE(data_differences(record, read).empty());
  EXPECT_EQ(read.names, record.names);
  EXPECT_EQ(read.counts, record.counts);
  record.names.assign(100000, "a rather long name");
  read = data_from_json(data_to_json(record), "x", Exit::disk);
  EXPECT_TRUE(read.names.empty() && read.counts.empty());
  EXPECT_EQ(read.count, 7);
  for (const char* text : {"", "[]", "{\"count\":-1}", "{\"names\":[1]}", "{\"counts\":[1.5]}",
                           "{\"count\":99999999999999999999}", "{\"names\":\"a\"}"}) {
    EXPECT_THROW(data_from_json(text, "x", Exit::disk), Error) << text;
  }
}

TEST(Font, EveryCharacterHasItsDots) {
  const auto dots = [](std::string_view text) { return next_glyph(text).dots; };
  for (char c = 32; c < 127; ++c) {
    const std::string_view shape = dots(std::string_view(&c, 1));
    ASSERT_EQ(std::ssize(shape), kGlyphHeight * (kGlyphWidth + 1) - 1) << c;
    for (char other = 32; other < c; ++other) {
      EXPECT_NE(shape, dots(std::string_view(&other, 1))) << c << " looks like " << other;
    }
  }
  EXPECT_EQ(dots("\xc3\xa4"), dots("\xff"));
  EXPECT_EQ(glyph_count("b\xc3\xa4r\xff"), 4);
}

}  // namespace
}  // namespace ebb::cli_fixture
