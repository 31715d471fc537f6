// IDX files and folders of images, good and bad.
#include <zlib.h>

#include "data/kinds.h"
#include "data_fixture.h"
#include "formats/image.h"

namespace ebb {
namespace {

using namespace data_fixture;

class PixelData : public DataFolder {
 protected:
  void write_gz(const std::string& name, const Bytes& bytes) const {
    gzFile file = gzopen((folder_ / name).c_str(), "wb");
    gzwrite(file, bytes.data(), static_cast<unsigned>(bytes.size()));
    gzclose(file);
  }
  void image(const std::string& name, int width, int height, uint8_t value,
             int channels = 3) const {
    fs::create_directories((folder_ / name).parent_path());
    const Bytes pixels(static_cast<size_t>(width * height * channels), value);
    write_png(folder_ / name, pixels.data(), width, height, channels);
  }
};

Bytes idx_images(int count, int height, int width) {
  Bytes bytes = {0, 0, 8, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0};
  bytes[7] = static_cast<uint8_t>(count);
  bytes[11] = static_cast<uint8_t>(height);
  bytes[15] = static_cast<uint8_t>(width);
  for (int i = 0; i < count * height * width; ++i) bytes.push_back(static_cast<uint8_t>(7 * i));
  return bytes;
}

Bytes idx_labels(const Bytes& labels) {
  Bytes bytes = {0, 0, 8, 1, 0, 0, 0, static_cast<uint8_t>(labels.size())};
  for (const uint8_t label : labels) bytes.push_back(label);
  return bytes;
}

std::string text_of(const Bytes& bytes) { return {bytes.begin(), bytes.end()}; }

TEST_F(PixelData, IdxIsReadPlainAndCompressed) {
  for (const bool packed : {false, true}) {
    const auto put = [&](const std::string& name, const Bytes& bytes) {
      packed ? write_gz(name + ".gz", bytes) : write(name, text_of(bytes));
    };
    put("train-images-idx3-ubyte", idx_images(3, 2, 4));
    put("train-labels-idx1-ubyte", idx_labels({1, 0, 4}));
    put("t10k-images-idx3-ubyte", idx_images(1, 2, 4));
    put("t10k-labels-idx1-ubyte", idx_labels({0}));
    const auto source = open_source(folder_);
    EXPECT_EQ(source->info().kind, "idx");
    EXPECT_EQ(source->info().count, 3);
    EXPECT_EQ(source->info().channels, 1);
    EXPECT_EQ(source->info().height, 2);
    EXPECT_EQ(source->info().width, 4);
    EXPECT_EQ(source->info().classes, 5);
    EXPECT_TRUE(source->info().pixels);
    EXPECT_EQ(source->info().type, DType::u8);
    const Sample plain = load(*source, 2);
    EXPECT_EQ(plain.label, 4);
    for (int i = 0; i < 8; ++i) {
      EXPECT_EQ(plain.x[i], static_cast<float>(static_cast<uint8_t>(7 * (16 + i))) / 127.5f - 1);
    }
    const std::string images = std::string("t10k-images-idx3-ubyte") + (packed ? ".gz" : "");
    EXPECT_EQ(open_source(folder_ / images)->info().count, 1);
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
}

TEST_F(PixelData, IdxCanBeScaledAndRepeatedInColour) {
  write("train-images-idx3-ubyte", text_of(idx_images(3, 4, 4)));
  write("train-labels-idx1-ubyte", text_of(idx_labels({1, 0, 4})));
  const auto source = open_source(folder_, {.image_size = 2, .channels = 3});
  const Sample sample = load(*source, 0);
  ASSERT_EQ(sample.x.size(), 12u);
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(sample.x[i], sample.x[i + 4]);
    EXPECT_EQ(sample.x[i], sample.x[i + 8]);
  }
}

TEST_F(PixelData, BadIdxIsRefused) {
  write("train-images-idx3-ubyte", text_of(idx_images(3, 2, 4)));
  write("train-labels-idx1-ubyte", text_of(idx_labels({1, 0})));
  expect_contains(refusal(folder_), "found 2 labels, wanted 3");
  expect_contains(refusal(folder_, {.memory_limit = 20}), "wanted at most 20");
  fs::remove(folder_ / "train-labels-idx1-ubyte");
  const auto unlabelled = open_source(folder_);
  EXPECT_EQ(unlabelled->info().classes, 0);
  EXPECT_EQ(unlabelled->info().notes.size(), 1u);
  EXPECT_EQ(load(*unlabelled, 1).label, 0);
}

TEST_F(PixelData, FashionMnistOfDebianIsRead) {
  const fs::path package = "/usr/share/datasets/fashion-mnist";
  if (!fs::exists(package)) GTEST_SKIP() << "dataset-fashion-mnist is not installed";
  const auto source = open_source(package);
  EXPECT_EQ(source->info().count, 60000);
  EXPECT_EQ(source->info().height, 28);
  EXPECT_EQ(source->info().width, 28);
  EXPECT_EQ(source->info().classes, 10);
  EXPECT_EQ(load(*source, 0).label, 9);  // an ankle boot
  EXPECT_EQ(load(*source, 59999).label, 5);
}

TEST_F(PixelData, SubFoldersAreClassesSortedByName) {
  image("dog/1.png", 8, 8, 10);
  image("cat/b.PNG", 8, 8, 200);
  image("cat/a.png", 8, 8, 100);
  image("cat/deeper/c.png", 8, 8, 50);
  image("loose.png", 8, 8, 0);
  write("cat/readme.txt", "hello");
  write("cat/.hidden.png", "not an image");
  write(".git/x.png", "not an image");
  fs::create_directory(folder_ / "empty");
  const auto source = open_source(folder_);
  const DataInfo& info = source->info();
  EXPECT_EQ(info.kind, "images");
  EXPECT_EQ(info.count, 4);
  EXPECT_EQ(info.classes, 2);
  EXPECT_EQ(info.class_names, (std::vector<std::string>{"cat", "dog"}));
  EXPECT_EQ(info.height, 8);
  ASSERT_EQ(info.notes.size(), 3u);
  expect_contains(info.notes[0], "ignored 1 image");
  expect_contains(info.notes[1], "ignored 1 folder");
  expect_contains(info.notes[2], "ignored 1 file of kinds that Ebb does not read: readme.txt");
  const int values[] = {100, 200, 50, 10}, labels[] = {0, 0, 0, 1};
  for (int i = 0; i < 4; ++i) {
    const Sample sample = load(*source, i);
    EXPECT_EQ(sample.label, labels[i]);
    for (const float x : sample.x) ASSERT_EQ(x, static_cast<float>(values[i]) / 127.5f - 1);
  }
}

TEST_F(PixelData, AFlatFolderHasNoClasses) {
  image("a.png", 8, 8, 10, 1);
  image("b.png", 8, 8, 20, 1);
  const auto source = open_source(folder_ / ".");
  EXPECT_EQ(source->info().classes, 0);
  EXPECT_EQ(source->info().channels, 1);  // all are gray
  EXPECT_EQ(load(*source, 1).label, 0);
  EXPECT_EQ(open_source(folder_, {.channels = 3})->info().channels, 3);
  image("c.png", 8, 8, 20, 3);
  EXPECT_EQ(open_source(folder_)->info().channels, 3);
}

TEST_F(PixelData, ImagesOfSeveralSizesNeedAnImageSize) {
  image("a.png", 8, 8, 10);
  image("b.png", 12, 8, 20);
  const std::string text = refusal(folder_);
  expect_contains(text, "8x8, 12x8");
  expect_contains(text, "--image-size");
  const auto source = open_source(folder_, {.image_size = 5});
  EXPECT_EQ(source->info().width, 5);
  for (const float x : load(*source, 1).x) ASSERT_NEAR(x, 20 / 127.5f - 1, 1e-6);
}

TEST_F(PixelData, DamagedImagesAreLeftOutIfTheyAreFew) {
  for (int i = 0; i < 50; ++i) image(fmt::format("{}.png", 1000 + i), 4, 4, 99);
  write("0500.png", "damaged");
  const auto source = open_source(folder_);
  EXPECT_EQ(source->info().count, 50);
  EXPECT_EQ(source->info().skipped, 1);
  ASSERT_EQ(source->info().notes.size(), 1u);
  expect_contains(source->info().notes[0], "0500.png");
  EXPECT_EQ(load(*source, 0).x[0], 99 / 127.5f - 1);
  EXPECT_EQ(source->most_bad(), 2);  // two more may be met in training
  for (int i = 1; i < 4; ++i) write(fmt::format("050{}.png", i), "damaged");
  const std::string text = refusal(folder_);
  expect_contains(text, "4 of 54 images");
  for (int i = 0; i < 4; ++i) expect_contains(text, fmt::format("/050{}.png", i));
}

TEST_F(PixelData, OneInAHundredMayBeBadAndOfAFewAtMostATenth) {
  EXPECT_EQ(most_bad_images(9), 0);
  EXPECT_EQ(most_bad_images(10), 1);
  EXPECT_EQ(most_bad_images(51), 3);
  EXPECT_EQ(most_bad_images(399), 3);
  EXPECT_EQ(most_bad_images(1000), 10);
}

TEST_F(PixelData, DamageBehindAGoodHeaderIsFoundOnOpening) {
  for (int i = 0; i < 3; ++i) image(fmt::format("{}.png", i), 64, 64, 99);
  fs::resize_file(folder_ / "1.png", fs::file_size(folder_ / "1.png") - 20);
  expect_contains(refusal(folder_), "1.png");
  const auto source = open_source(folder_, {.verify = false});
  EXPECT_EQ(source->info().count, 3);
  EXPECT_NO_THROW(load(*source, 0));
  EXPECT_THROW(load(*source, 1), Error);
  image("0.png", 65, 64, 99);
  EXPECT_THROW(load(*source, 0), Error);  // it changed
}

TEST_F(PixelData, LinksThatGoRoundMultiplyNothing) {
  image("cat/a.png", 8, 8, 10);
  image("cat/deep/b.png", 8, 8, 20);
  image("dog/c.png", 8, 8, 30);
  fs::create_directory_symlink("..", folder_ / "cat/deep/up");
  fs::create_directory_symlink(folder_, folder_ / "cat/again");
  fs::create_directory_symlink(folder_ / "dog", folder_ / "cat/a_dog");
  fs::create_directory_symlink("cat", folder_ / "aaa");
  const auto source = open_source(folder_);
  const DataInfo& info = source->info();
  EXPECT_EQ(info.count, 3);
  EXPECT_EQ(info.class_names, (std::vector<std::string>{"cat", "dog"}));
  EXPECT_EQ(info.class_counts, (std::vector<int64_t>{2, 1}));
  ASSERT_EQ(info.notes.size(), 2u);
  expect_contains(info.notes[1], "ignored 4 links to folders that are read already: a_dog, aaa");
}

TEST_F(PixelData, LinksToFoldersElsewhereAreFollowedOnce) {
  image("store/x/a.png", 8, 8, 10);
  image("store/y/b.png", 8, 8, 20);
  fs::create_directories(folder_ / "data/more");
  fs::create_directory_symlink("../store/x", folder_ / "data/one");
  fs::create_directory_symlink("../store/y", folder_ / "data/two");
  fs::create_directory_symlink("../../store/y", folder_ / "data/more/y");
  const auto source = open_source(folder_ / "data");
  EXPECT_EQ(source->info().class_names, (std::vector<std::string>{"more", "one"}));
  EXPECT_EQ(source->info().count, 2);
}

TEST_F(PixelData, FilesThatAreNotReadAreCountedAndNamed) {
  image("a.png", 8, 8, 10);
  for (const char* name : {"d.heic", "b.txt", "c.svg", "e.avif"}) write(name, "x");
  const auto source = open_source(folder_);
  EXPECT_EQ(source->info().count, 1);
  ASSERT_EQ(source->info().notes.size(), 1u);
  expect_contains(source->info().notes[0], "ignored 4 files of kinds");
  expect_contains(source->info().notes[0], "b.txt, c.svg, d.heic and others");
}

TEST_F(PixelData, AWholeDataSetInsteadOfItsTrainingPartIsRefused) {
  image("train/cat/a.png", 8, 8, 10);
  image("val/cat/a.png", 8, 8, 10);
  expect_contains(refusal(folder_), "/train");
}

TEST_F(PixelData, AnImageTooLargeForTheMemoryAllowedIsRefused) {
  image("a.png", 256, 256, 10);
  expect_contains(refusal(folder_, {.memory_limit = 100000}), "256x256");
}

TEST_F(PixelData, WhatIsNoDataIsRefusedWithTheLayouts) {
  expect_contains(refusal(folder_ / "missing"), "train-images-idx3-ubyte");
  expect_contains(refusal(folder_), "train-images-idx3-ubyte");
  write("notes.txt", "hello");
  expect_contains(refusal(folder_), "1 other file");
  expect_contains(refusal(folder_ / "notes.txt"), "_features");
  try {
    open_source(folder_, {.image_size = -1});
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Exit::usage);
  }
}

}  // namespace
}  // namespace ebb
