// No file, whatever its bytes, crashes the reader or makes it use much memory.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <random>

#include "safetensors_fixture.h"

namespace ebb {
namespace {

namespace fs = std::filesystem;
using Type = TensorType;

std::string entry(const std::string& name, const std::string& type, const std::string& shape,
                  const std::string& offsets) {
  return "\"" + name + "\":{\"dtype\":\"" + type + "\",\"shape\":" + shape +
         ",\"data_offsets\":" + offsets + "}";
}

TEST_F(SafetensorsTest, EveryTruncationIsRefused) {
  const float data[] = {1, 2, 3};
  write_safetensors(file_, {{"a", Type::F32, {3}, data}, {"b", Type::F32, {}, data}}, {}, false);
  const std::string good = get();
  for (size_t size = 0; size < good.size(); ++size) {
    put(good.substr(0, size));
    EXPECT_FALSE(opens(Exit::data)) << size;
  }
}

TEST_F(SafetensorsTest, WhatIsNotAFileIsRefused) {
  EXPECT_FALSE(opens());
  ASSERT_EQ(::mkfifo(file_.c_str(), 0600), 0);
  EXPECT_FALSE(opens());
  fs::remove(file_);
  fs::create_directory(file_);
  EXPECT_FALSE(opens());
}

TEST_F(SafetensorsTest, LegalHeadersOpen) {
  const std::string a = entry("a", "F32", "[]", "[0,4]");
  for (const std::string& header :
       {"{" + a + "}", "{" + a + "}   \n", "{ \t" + a + "\r\n}", "{\"__metadata__\":{}," + a + "}",
        "{\"__metadata__\":{\"\\u00e9\\ud83c\\udf0a\\u0000\":\"\\/\"}," + a + "}",
        // Empty tensors may lie on any border, and the header's order is free.
        "{" + entry("z", "I8", "[0]", "[4,4]") + "," + entry("y", "I8", "[2]", "[2,4]") + "," +
            entry("x", "I8", "[2,1]", "[0,2]") + "," + entry("w", "F64", "[3,0]", "[2,2]") + "}"}) {
    put(with_header(header, 4));
    EXPECT_TRUE(opens()) << header << "\n" << message_;
  }
}

TEST_F(SafetensorsTest, BadTensorsAreRefused) {
  const std::string k2to62 = "4611686018427387904", k2to64 = "18446744073709551616";
  std::string rank65 = "[1";
  for (int i = 0; i < 64; ++i) rank65 += ",1";
  // clang-format off
  const std::string rows[][3] = {
      {"F32", "[1]", "[0,8]"}, {"F32", "[2]", "[0,8]"},  // past the end of the file
      {"I8", "[3]", "[0,3]"}, {"I8", "[3]", "[1,4]"},    // bytes after or before it
      {"F32", "[1]", "[4,0]"}, {"F32", "[1]", "[0]"}, {"F32", "[1]", "[0,4,4]"},
      {"F32", "[1]", "[-4,0]"}, {"F32", "[-1]", "[0,4]"}, {"F32", "[-1,-1]", "[0,4]"},
      {"F32", "[2]", "[0,4]"}, {"F32", "[0]", "[0,4]"}, {"F32", "[" + k2to62 + ",4]", "[0,4]"},
      {"F32", "[4611686018427387905]", "[0,4]"}, {"I8", "[" + k2to64 + "]", "[0,4]"},
      {"F32", "[1]", "[0,18446744073709551620]"}, {"F32", "[1]", "[0,9223372036854775807]"},
      {"F32", "[1.0]", "[0,4]"}, {"F32", "[1e0]", "[0,4]"}, {"F32", "[01]", "[0,4]"},
      {"F32", "[+1]", "[0,4]"}, {"F32", "[1,]", "[0,4]"}, {"F32", "[\"1\"]", "[0,4]"},
      {"F32", "[[1]]", "[0,4]"}, {"F32", "1", "[0,4]"}, {"F32", rank65 + "]", "[0,4]"},
      {"Q4", "[1]", "[0,4]"}, {"f32", "[1]", "[0,4]"}, {"F4", "[8]", "[0,4]"},
      {"", "[1]", "[0,4]"}, {"F32", "[1", "[0,4]"}, {"F32", std::string(100000, '['), "[0,4]"}};
  // clang-format on
  for (const auto& row : rows) {
    put(with_header("{" + entry("a", row[0], row[1], row[2]) + "}", 4));
    EXPECT_FALSE(opens()) << row[0] << row[1].substr(0, 300) << row[2];
  }
  const std::string a = entry("a", "F32", "[1]", "[0,4]"), a3 = entry("a", "I8", "[3]", "[0,3]");
  for (const std::string& pair :
       {a + "," + entry("b", "F32", "[1]", "[0,4]"), a + "," + entry("b", "I8", "[0]", "[2,2]"),
        a3 + "," + entry("b", "I8", "[2]", "[2,4]"), a3 + "," + entry("b", "I8", "[0]", "[4,4]"),
        a + "," + entry("b", "I8", "[" + k2to62 + ",4]", "[0,0]"),
        a + "," + entry("b", "I8", "[" + k2to62 + ",4,0]", "[4,4]")}) {
    put(with_header("{" + pair + "}", 4));
    EXPECT_FALSE(opens()) << pair;
  }
  put(with_header("{" + entry("a\\u001b[31m", "Q4_K", "[1]", "[0,4]") + "}", 4));
  EXPECT_FALSE(opens());
  EXPECT_NE(message_.find("type 'Q4_K' of tensor 'a\\x1b[31m'"), std::string::npos) << message_;
}

TEST_F(SafetensorsTest, BadJsonIsRefused) {
  const std::string a = entry("a", "F32", "[1]", "[0,4]"), meta = "{\"__metadata__\":";
  // clang-format off
  for (const std::string& header : std::vector<std::string>{
           "", " ", " {" + a + "}", "[]", "{", "{}", "{" + a, "{" + a + ",}", "{," + a + "}",
           "{" + a + "}x", "{" + a + "}{}", "{" + a + "}" + std::string(1, '\0'), "{\"a\"}",
           "{" + a + "," + a + "}", "{" + a + ",\"\\u0061\":" + a.substr(4) + "}", "{\"a\":null}",
           "{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", "{\"a\":{}}", "{\"\\u00", "{\"\\",
           "{\"a\":{\"dtype\":\"F32\",\"dtype\":\"F32\",\"data_offsets\":[0,4]}}",
           "{\"a\":{\"x\":0,\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}",
           meta + "null," + a + "}", meta + "{\"k\":1}," + a + "}", meta + "{\"k\":{}}," + a + "}",
           meta + "\"k\"," + a + "}", meta + "{\"k\":\"\",\"k\":\"\"}," + a + "}",
           meta + "{},\"__metadata__\":{}," + a + "}"}) {
    put(with_header(header, 4));
    EXPECT_FALSE(opens()) << header;
  }
  for (const std::string& name : std::vector<std::string>{
           {'a', '\0'}, "\n", "\xff", "\xc0\x80", "\xe0\x80\x80", "\xed\xa0\x80", "\xe2\x82",
           "\xf0\x80\x80\x80", "\xf4\x90\x80\x80", "\xf8\x80\x80\x80\x80", "\\ud800", "\\x41",
           "\\udc00\\ud800", "\\ud800\\u0041", "\\u00g0", "\\u-001", "\\"}) {
    // clang-format on
    put(with_header("{" + entry(name, "F32", "[1]", "[0,4]") + "}", 4));
    EXPECT_FALSE(opens()) << name;
  }
}

TEST_F(SafetensorsTest, HeaderLengthsAreBounded) {
  const std::string good = with_header("{" + entry("a", "F32", "[1]", "[0,4]") + "}", 4);
  for (const uint64_t size : {uint64_t{0}, uint64_t{good.size() - 7}, uint64_t{100'000'001},
                              uint64_t{1} << 63, ~uint64_t{0}, ~uint64_t{7}}) {
    std::string bad = good;
    std::memcpy(bad.data(), &size, sizeof(size));
    put(bad);
    fs::resize_file(file_, 200'000'000);  // sparse: as long as the header claims
    EXPECT_FALSE(opens()) << size;
  }
  put(good);
  EXPECT_NO_THROW(SafetensorsReader(file_, Exit::disk, 100));
  EXPECT_THROW(SafetensorsReader(file_, Exit::disk, 30), Error);
}

// Seeded, so that a failure comes again. Each file either opens and reads whole or is refused.
TEST_F(SafetensorsTest, TwentyThousandMutatedFilesNeverCrash) {
  const float data[] = {1, 2, 3, 4};
  write_safetensors(file_,
                    {{"a", Type::F32, {2}, data},
                     {"b", Type::BF16, {2, 1, 2}, data},
                     {"c", Type::I64, {0}, data},
                     {"d", Type::U8, {}, data}},
                    {{"k", "\xc3\xa9\n"}}, true);
  const std::string good = get();
  // clang-format off
  const std::string tokens[] = {"{", "}", "[", "]", ",", ":", "\"", "\\", "0", "9", "-", "e", ".",
                                "null", "4611686018427387904", "\\ud800", "__metadata__", "[[[["};
  // clang-format on
  std::mt19937 random(20240607);
  const auto below = [&](size_t n) { return static_cast<size_t>(random() % n); };
  int opened = 0;
  for (int round = 0; round < 20000; ++round) {
    std::string bad = good;
    for (size_t edits = 1 + below(3); edits > 0; --edits) {
      const size_t at = below(bad.size()), length = below(std::min<size_t>(bad.size() - at, 40));
      // clang-format off
      switch (below(6)) {
        case 0: bad[at] = static_cast<char>(bad[at] ^ (1 << below(8))); break;
        case 1: bad[at] = static_cast<char>(random()); break;
        case 2: bad.erase(at, length); break;
        case 3: bad.insert(at, bad.substr(below(bad.size()), length)); break;
        case 4: bad.replace(at, 1, tokens[below(std::size(tokens))]); break;
        default: bad[8 + below(300)] = tokens[below(13)][0];
      }
      // clang-format on
      if (bad.size() < 400) bad.resize(400, 'x');
    }
    put(bad);
    opened += opens();
  }
  EXPECT_GT(opened, 100);
  EXPECT_LT(opened, 10000);
}

#ifndef __SANITIZE_ADDRESS__  // its quarantine keeps what was freed
TEST_F(SafetensorsTest, AHostileHeaderTakesAFewTimesItsSize) {
  std::string many_tensors, many_texts, many_zeros;
  for (int i = 0; i < 100000; ++i) {
    const std::string name = std::to_string(i);
    many_tensors += entry(name, "U8", "[0]", "[0,0]") + ",";
    many_texts += "\"" + name + "\":\"\",";
    many_zeros += std::string(80, '0') + ",";
  }
  many_texts += "\"x\":\"" + std::string(5 << 20, 'x') + "\"";
  const std::string deep_string = "{\"" + std::string(6 << 20, 'x');
  for (const std::string& header :
       {"{" + many_tensors, "{\"__metadata__\":{" + many_texts, deep_string,
        "{" + entry("a", "U8", "[" + many_zeros, "[0,0]")}) {
    put(with_header(header, 0));
    const pid_t child = ::fork();  // a process of its own, whose peak is the reader's
    if (child == 0) {
      struct rusage before, after;
      ::getrusage(RUSAGE_SELF, &before);
      const bool opened = opens();
      ::getrusage(RUSAGE_SELF, &after);
      const auto grown = static_cast<size_t>(after.ru_maxrss - before.ru_maxrss) << 10;
      ::_exit(opened ? 100 : static_cast<int>(std::min<size_t>(grown / header.size(), 99)));
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFEXITED(status));
    EXPECT_LT(WEXITSTATUS(status), 8) << header.substr(0, 100);
  }
}
#endif

}  // namespace
}  // namespace ebb
