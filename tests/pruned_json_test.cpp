// The record of a pruning, in files that nobody vouches for.
#include "formats/pruned_json.h"

#include <gtest/gtest.h>

namespace ebb {
namespace {

DitConfig two_blocks() {
  DitConfig c;
  c.width = 8;
  c.head_width = 4;
  c.blocks = {{2, 5}, {1, 3}};
  return c;
}

TEST(PrunedJson, ComesBackAsItWas) {
  const PrunedRecord record = {{1, {{0, 0}, {2, 2}}, {{0, 3}, {7, 7}}}, {4, {{1, 1}}, {{2, 4}}}};
  const std::string text = pruned_to_json(record);
  EXPECT_EQ(text, R"({"blocks":[{"block":1,"heads":"0,2","mlp":"0-3,7"},)"
                  R"({"block":4,"heads":"1","mlp":"2-4"}]})");
  EXPECT_EQ(pruned_from_json(text, two_blocks(), "x", Exit::disk), record);
  EXPECT_EQ(indices_of(record[0].mlp), (std::vector<int64_t>{0, 1, 2, 3, 7}));
  EXPECT_EQ(ranges_of({0, 1, 2, 3, 7}), record[0].mlp);
}

TEST(PrunedJson, HalfABlockHasNoneOfTheOther) {
  DitConfig config = two_blocks();
  config.blocks = {{0, 5}, {1, 0}};
  const PrunedRecord record = {{1, {}, {{0, 4}}}, {4, {{1, 1}}, {}}};
  const std::string text = pruned_to_json(record);
  EXPECT_EQ(text, R"({"blocks":[{"block":1,"heads":"","mlp":"0-4"},)"
                  R"({"block":4,"heads":"1","mlp":""}]})");
  EXPECT_EQ(pruned_from_json(text, config, "x", Exit::disk), record);
}

TEST(PrunedJson, AnythingElseIsRefused) {
  const auto with = [](const std::string& heads, const std::string& mlp,
                       const std::string& block = "0") {
    return R"({"blocks":[{"block":)" + block + R"(,"heads":)" + heads + R"(,"mlp":)" + mlp +
           R"(},{"block":5,"heads":"0","mlp":"0-2"}]})";
  };
  EXPECT_EQ(pruned_from_json(with("\"0-1\"", "\"0-4\""), two_blocks(), "x", Exit::disk).size(), 2u);
  for (const std::string& text : std::vector<std::string>{
           "",
           "{}",
           "[]",
           "{\"blocks\":[]}",
           "{\"blocks\":3}",
           with("\"0-1\"", "\"0-3\""),              // another width
           with("\"0-1\"", "\"0-4\"", "5"),         // the same block twice
           with("\"0-1\"", "\"0-4\"", "-1"),        //
           with("\"0-1\"", "\"0-4\"", "99999999"),  //
           with("\"1-0\"", "\"0-4\""),              // falling
           with("\"0,1\"", "\"0-4\""),              // two that could be one
           with("\"0-0\"", "\"0-4\""),              //
           with("\"1,0\"", "\"0-4\""),              //
           with("\"\"", "\"0-4\""),                 // none, where the model has some
           with("\"0-\"", "\"0-4\""),
           with("\"0-1,\"", "\"0-4\""),
           with("\"-1-0\"", "\"0-4\""),
           with("\"0-1 \"", "\"0-4\""),
           with("[0,1]", "\"0-4\""),
           with("\"0-99999999999999999999\"", "\"0-4\""),
           with("\"0-9223372036854775807\"", "\"0-4\""),
           R"({"blocks":[{"block":0,"heads":"0-1"},{"block":5,"heads":"0","mlp":"0-2"}]})",
           R"({"blocks":[{"heads":"0-1","mlp":"0-4"},{"block":5,"heads":"0","mlp":"0-2"}]})"}) {
    try {
      pruned_from_json(text, two_blocks(), "x", Exit::disk);
      ADD_FAILURE() << text;
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), Exit::disk) << text;
      EXPECT_NE(std::string(e.what()).find("ebb.pruned"), std::string::npos) << e.what();
    }
  }
}

}  // namespace
}  // namespace ebb
