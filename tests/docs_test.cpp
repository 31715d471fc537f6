// The documents name every technique that there is.
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "plan/techniques.h"

namespace ebb {
namespace {

std::string text_of(const std::string& name) {
  std::stringstream text;
  text << std::ifstream(EBB_SOURCE_DIR "/" + name).rdbuf();
  return text.str();
}

// A flag, or a word of --allow, stands in a row of the table.
bool in_a_row(const std::string& text, const std::string& what) {
  std::stringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("| ") && line.find(what) != std::string::npos) return true;
  }
  return false;
}

TEST(Documents, TheirTablesHaveEveryTechnique) {
  const std::string readme = text_of("README.md"), techniques_page = text_of("docs/techniques.md");
  ASSERT_GT(readme.size(), 1000u);
  for (const Technique& t : techniques()) {
    EXPECT_TRUE(in_a_row(techniques_page, fmt::format("`--{}", t.flag))) << t.flag;
    bool named = in_a_row(readme, fmt::format("`--{}", t.flag));
    for (const AllowWord& word : t.words) {
      EXPECT_TRUE(in_a_row(readme, fmt::format("`--allow {}`", word.word))) << word.word;
      named = true;
    }
    EXPECT_TRUE(named) << t.flag << " has no row in the README";
  }
}

}  // namespace
}  // namespace ebb
