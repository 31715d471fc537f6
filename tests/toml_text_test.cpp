// Characters beyond ASCII: in strings and comments they are text, elsewhere they are refused.
#include "formats/toml_text.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace ebb {
namespace {

// "" when the text passes, else what was said of it.
std::string refusal(const std::string& text) {
  try {
    check_toml_text(text, "a.toml");
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Exit::usage);
    return error.what();
  }
  return "";
}

TEST(TomlText, StringsAndCommentsMayHoldAnything) {
  for (const std::string text : {"",
                                 "a = 1\nb = \"x\"\n",
                                 "# \u01f4\n",
                                 "a = 1 # \u01f4",
                                 "a = \"\u01f4\"",
                                 "a = '\u01f4'",
                                 "\"\u01f4\" = 1",
                                 "a = \"\\\"\u01f4\"",
                                 "a = '\\' # \u01f4",
                                 "a = \"\" # \u01f4",
                                 "a = \"\"\"\n\u01f4 \" \"\" \u01f4\n\"\"\"",
                                 "a = '''\n\u01f4 ' '' \\'''",
                                 "a = '''\u01f4''''' # \u01f4",
                                 "a = \"\"\"\\\"\"\"\u01f4\"\"\"",
                                 "a = \"\"\"\"\"\" # \u01f4",
                                 "a = \"\"\"\\n\u01f4 \\\n  b\u01f4\"\"\"",
                                 "a = \"\"\"\\\\\u01f4\"\"\"",
                                 "\xef\xbb\xbf"
                                 "a = 1",
                                 "a = \"#\u01f4\"",
                                 "# \"\na = '\u01f4'",
                                 "a.\"\u01f4\" . 'b' = 1",
                                 "a = 1.5e-3 # \u01f4",
                                 "a='\u01f4'\r\nb=\"\u01f4\"",
                                 "x-y_1 = true\n\n  # \u01f4"}) {
    EXPECT_EQ(refusal(text), "") << text;
  }
}

TEST(TomlText, ElsewhereTheyAreRefusedWithTheirLine) {
  for (const std::string text :
       {"\u01f4", "a = 1\n\u01f4 = 2", "a = \"x\"\n\u01f4", "a = 'x'\u01f4", "a = \"\"\u01f4",
        "a = '\\'\n\u01f4", "# c\n\u01f4", "a = \"\"\"x\"\"\"\n\u01f4",
        "a = \"\"\"x\"\"\"\"\"\u01f4", "a = '''''' \u01f4", "a = \"x\\\\\"\u01f4",
        "a = \"x\n\u01f4", "a\xef\xbb\xbf = 1", "a = \xff", "a = 1\x80",
        // Quotes in the midst of a value open no string: these the fuzzer found.
        "o = 2'''\u01f4", "a = 2='\u01f4'", "a = 1.\"\u01f4\"", "a = [\nk='\u01f4'\n]",
        "a.\"= 'x\" = \u01f4", "a = 1 '\u01f4'", "\"\"\"\u01f4\"\"\" = 1", "['\u01f4']",
        "a = {b='\u01f4'}", "a = \"\"\"\\\u01f4\"\"\"", "a = \"\"\"\\  \u01f4\"\"\"",
        "a = \"\"\"\\\r\n \u01f4\"\"\""}) {
    EXPECT_NE(refusal(text).find("wanted ASCII"), std::string::npos) << text;
  }
  EXPECT_EQ(refusal("a = \"\"\"\n\n\"\"\"\n\u01f4 = 1\n").rfind("a.toml:4: found", 0), 0u);
  EXPECT_EQ(refusal("a = '\\'\n\u01f4").rfind("a.toml:2: found", 0), 0u);
}

TEST(TomlText, WhatEndsTooEarlyEndsThere) {
  for (const std::string text :
       {"\"", "'", "\"\"\"", "'''", "\"\\", "\"\"\"\\", "#", "\"\"", "'''''", "\"\"\"\""}) {
    EXPECT_EQ(refusal(text), "") << text;
  }
}

}  // namespace
}  // namespace ebb
