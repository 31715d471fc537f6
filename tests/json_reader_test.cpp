#include "formats/json_reader.h"

#include <gtest/gtest.h>

#include "formats/model_json.h"

namespace ebb {
namespace {

TEST(JsonReader, ReadsWhatItIsAskedForAndSkipsTheRest) {
  const std::string text = R"( {"i":-9223372036854775808,"r":-1.5e2,"t":true,"f":false,)"
                           R"("skip":{"a":[null,{"b":"\"\u20ac"},1e5,[]],"b":{}},"s":"x\ty"} )";
  JsonReader json(text, "test", Exit::data, "hint");
  json.begin_object();
  for (std::string key; json.next_key(key);) {
    if (key == "i")
      EXPECT_EQ(json.read_int(), INT64_MIN);
    else if (key == "r")
      EXPECT_EQ(json.read_real(), -150);
    else if (key == "t" || key == "f")
      EXPECT_EQ(json.read_bool(), key == "t");
    else if (key == "s")
      EXPECT_EQ(json.read_string(), "x\ty");
    else
      json.skip_value();
  }
  json.finish();
}

TEST(JsonReader, SkippingIsAsStrictAsReading) {
  std::string deep(JsonReader::kMaxDepth + 1, '[');
  // clang-format off
  for (const std::string& text : std::vector<std::string>{
           "", "nul", "nulL", "tru", "-", "1.", ".5", "1e", "1e+", "[1 2]", "[1,]", "{\"a\":}",
           "{\"a\":1,\"a\":2}", "[{\"b\":{\"a\":1,\"\\u0061\":2}}]", "{a:1}", "\"", "01", "[", deep,
           "{\"a\":1]", "[1}", "1 1", "\"\t\"", "NaN", "/**/1", "\xef\xbb\xbf""1"}) {
    // clang-format on
    JsonReader json(text, "test", Exit::data, "hint");
    EXPECT_THROW((json.skip_value(), json.finish()), Error) << text;
  }
  const std::string fits = deep.substr(1) + std::string(JsonReader::kMaxDepth, ']');
  JsonReader json(fits, "test", Exit::data, "hint");
  EXPECT_NO_THROW((json.skip_value(), json.finish()));
}

TEST(JsonQuote, IsTheReadersInverse) {
  for (const std::string text : {"", "a\"b\\c/\n\x7f", "\xc3\xa9\xf0\x9f\x8c\x8a"}) {
    EXPECT_EQ(JsonReader(json_quote(text), "test", Exit::data, "").read_string(), text);
  }
  EXPECT_EQ(json_quote("a\xff\xc3"), "\"a\xef\xbf\xbd\xef\xbf\xbd\"");
}

// What the fuzzers found in the reader's first user: blocks that are no pair, and a width whose
// multiples are no number.
TEST(ModelJson, WhatIsNoModelIsRefused) {
  const auto model = [](const std::string& width, const std::string& blocks) {
    return R"({"width":)" + width +
           R"(,"depth":2,"heads":2,"patch":2,"image_size":4,"channels":1,)" +
           R"("classes":3,"learn_sigma":true,"objective":"ddpm","qk_norm":"none","blocks":)" +
           blocks + "}";
  };
  EXPECT_EQ(model_from_json(model("8", "[[1,20],[2,7]]"), "test", Exit::data).blocks[1].mlp, 7);
  for (const std::string& text :
       {model("8", "[[1],[2,7]]"), model("8", "[[],[2,7]]"), model("8", "[[1,20],[2,7,9]]"),
        model("8", "[1,2]"), model("6917529027641081856", "[]")}) {
    EXPECT_THROW(model_from_json(text, "test", Exit::data), Error) << text;
  }
}

}  // namespace
}  // namespace ebb
