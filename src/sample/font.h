// Letters for pictures: the printable ASCII characters, five dots wide and seven high.
#pragma once

#include <cstdint>
#include <string_view>

namespace ebb {

inline constexpr int64_t kGlyphWidth = 5, kGlyphHeight = 7;

struct Glyph {
  std::string_view dots;  // kGlyphHeight rows of kGlyphWidth, '#' is ink, with a space between rows
  bool is_set(int64_t x, int64_t y) const {
    return dots[static_cast<size_t>(y * (kGlyphWidth + 1) + x)] == '#';
  }
};

// Takes the first UTF-8 character off the text; one that is not drawn here is a box.
const Glyph& next_glyph(std::string_view& text);

// Characters in a text, as next_glyph counts them.
int64_t glyph_count(std::string_view text);

}  // namespace ebb
