#include "formats/safetensors.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "safetensors_fixture.h"

namespace ebb {
namespace {

namespace fs = std::filesystem;
using Type = TensorType;

TEST_F(SafetensorsTest, EveryTypeEmptyTensorsAndScalarsComeBack) {
  std::string data(100, '\0');
  std::iota(data.begin(), data.end(), char{1});
  std::vector<TensorData> tensors;
  for (size_t i = 0; i < std::size(kTensorTypes); ++i) {
    tensors.push_back({std::string("t/") + kTensorTypes[i].name, Type(i), {3, 1, 4}, data.data()});
  }
  tensors.push_back({"scalar", Type::F32, {}, data.data()});
  tensors.push_back({"empty", Type::F64, {2, 0, 3}, nullptr});
  tensors.push_back({"\"q\\\n\x01 \xc3\xa9\xf0\x9f\x8c\x8a", Type::U8, {100}, data.data()});
  tensors.push_back({"", Type::U8, {1}, data.data()});
  const std::map<std::string, std::string> metadata{{"", ""}, {"ebb.model", "{\"a\":\"\\\t\"}"}};
  write_safetensors(file_, tensors, metadata, false);

  const SafetensorsReader reader(file_);
  EXPECT_EQ(reader.metadata(), metadata);
  EXPECT_EQ(reader.path(), file_);
  EXPECT_EQ(reader.find("t/nothing"), nullptr);
  ASSERT_EQ(reader.tensors().size(), tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    const TensorEntry& found = reader.tensors()[i];
    EXPECT_EQ(found.name, tensors[i].name);
    EXPECT_EQ(found.type, tensors[i].type);
    EXPECT_EQ(found.shape, tensors[i].shape);
    std::string bytes(static_cast<size_t>(found.bytes()), '\0');
    reader.read(found, bytes.data(), found.bytes());
    EXPECT_EQ(bytes, data.substr(0, bytes.size()));
  }
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, get().data(), sizeof(header_bytes));
  EXPECT_EQ((header_bytes + 8) % 64, 0u);
  EXPECT_TRUE(opens());
}

TEST_F(SafetensorsTest, AFileWithoutTensorsIsLegal) {
  write_safetensors(file_, {}, {}, true);
  EXPECT_TRUE(opens());
  EXPECT_EQ(fs::file_size(file_), 64u);
}

TEST_F(SafetensorsTest, NumbersAreConverted) {
  const double f64[] = {1.5, -2, 0, 1e300};
  const uint16_t f16[] = {0x3e00, 0xc000, 0x0001, 0x7c00};   // 1.5 -2 2^-24 inf
  const uint16_t bf16[] = {0x3fc0, 0xc000, 0x0001, 0xff80};  // 1.5 -2 2^-133 -inf
  const int32_t i32[] = {-7, 8};
  const uint8_t u8[] = {0, 255};
  std::vector<float> f32(40000);  // more than one chunk of the converter
  for (size_t i = 0; i < f32.size(); ++i) f32[i] = static_cast<float>(i);
  write_safetensors(file_,
                    {{"f64", Type::F64, {4}, f64},
                     {"f16", Type::F16, {2, 2}, f16},
                     {"bf16", Type::BF16, {4}, bf16},
                     {"i32", Type::I32, {2}, i32},
                     {"u8", Type::U8, {2}, u8},
                     {"f32", Type::F32, {40000}, f32.data()}},
                    {}, false);
  const SafetensorsReader reader(file_, Exit::data);
  float x[4];
  double d[4];
  int64_t n[2];
  reader.read_f32(*reader.find("f64"), x, 4);
  EXPECT_EQ(std::vector<float>(x, x + 4), (std::vector<float>{1.5, -2, 0, INFINITY}));
  reader.read_f64(*reader.find("f16"), d, 4);
  EXPECT_EQ(std::vector<double>(d, d + 4),
            (std::vector<double>{1.5, -2, std::ldexp(1, -24), INFINITY}));
  reader.read_f32(*reader.find("bf16"), x, 4);
  EXPECT_EQ(std::vector<float>(x, x + 4),
            (std::vector<float>{1.5, -2, std::ldexp(1.f, -133), -INFINITY}));
  reader.read_i64(*reader.find("i32"), n, 2);
  EXPECT_EQ(std::vector<int64_t>(n, n + 2), (std::vector<int64_t>{-7, 8}));
  reader.read_i64(*reader.find("u8"), n, 2);
  EXPECT_EQ(n[1], 255);
  std::vector<double> wide(f32.size());
  reader.read_f64(*reader.find("f32"), wide.data(), 40000);
  EXPECT_EQ(wide, std::vector<double>(f32.begin(), f32.end()));
  std::vector<float> same(f32.size());
  reader.read_f32(*reader.find("f32"), same.data(), 40000);
  EXPECT_EQ(same, f32);
  reader.read_range(*reader.find("f32"), 39999 * 4, x, 4);
  EXPECT_EQ(x[0], 39999);

  EXPECT_THROW(reader.read_f32(*reader.find("i32"), x, 2), Error);
  EXPECT_THROW(reader.read_i64(*reader.find("f32"), nullptr, 40000), Error);
  EXPECT_THROW(reader.read_f32(*reader.find("f32"), x, 4), Error);
  EXPECT_THROW(reader.read(*reader.find("f32"), x, 4), Error);
  EXPECT_THROW(reader.read_range(*reader.find("f32"), 159999, x, 2), Bug);
}

TEST_F(SafetensorsTest, AFlippedByteIsFoundByItsHash) {
  const std::string data(200000, 'a');
  write_safetensors(file_,
                    {{"a", Type::U8, {100}, data.data()},
                     {"none", Type::F32, {0}, nullptr},
                     {"b", Type::F32, {50000}, data.data()}},
                    {{"k", "v"}}, true);
  verify_hashes(SafetensorsReader(file_));
  EXPECT_EQ(SafetensorsReader(file_).metadata().at("xxh3.none"), "2d06800538d394c2");
  const std::string good = get();
  for (const size_t from_end : {size_t{1}, size_t{100000}, size_t{200000}}) {
    std::string bad = good;
    bad[bad.size() - from_end] ^= 0x10;
    put(bad);
    try {
      verify_hashes(SafetensorsReader(file_, Exit::data));
      ADD_FAILURE() << from_end;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Exit::disk);
      EXPECT_NE(std::string(error.what()).find("tensor 'b'"), std::string::npos) << error.what();
    }
  }
  write_safetensors(file_, {{"a", Type::U8, {1}, data.data()}}, {{"xxh3.gone", "0"}}, true);
  EXPECT_THROW(verify_hashes(SafetensorsReader(file_)), Error);
}

}  // namespace
}  // namespace ebb
