#include <algorithm>
#include <charconv>
#include <utility>

#include "base/error.h"
#include "base/text.h"
#include "formats/npy.h"

namespace ebb {
namespace {

constexpr int64_t kMaxValues = int64_t{1} << 40;

// The grammar: { key : value , ... } with three known keys, each exactly once.
class HeaderParser {
 public:
  HeaderParser(std::string_view text, const std::string& name) : text_(text), name_(name) {}

  NpyHeader parse() {
    bool descr = false, order = false, shape = false;
    expect('{');
    while (!accept('}')) {
      const std::string_view key = string();
      expect(':');
      if (key == "descr" && !descr) {
        descr = true;
        parse_type();
      } else if (key == "fortran_order" && !order) {
        order = true;
        parse_order();
      } else if (key == "shape" && !shape) {
        shape = true;
        parse_shape();
      } else {
        wrong(fmt::format("key '{}' unknown or twice", printable(key)));
      }
      if (!accept(',')) {
        expect('}');
        break;
      }
    }
    skip_space();
    if (at_ != text_.size()) wrong("text after the closing brace");
    if (!descr || !order || !shape) wrong("not all of descr, fortran_order and shape");
    return header_;
  }

 private:
  [[noreturn]] void wrong(const std::string& found) const {
    fail(Exit::data,
         fmt::format("{}: found a bad .npy header (at byte {}: {}), wanted a dict of descr, "
                     "fortran_order and shape",
                     name_, at_, found),
         "write the file again with numpy.save");
  }
  void skip_space() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n')) ++at_;
  }
  bool accept(char wanted) {
    skip_space();
    if (at_ == text_.size() || text_[at_] != wanted) return false;
    ++at_;
    return true;
  }
  void expect(char wanted) {
    if (!accept(wanted)) wrong(fmt::format("no '{}'", wanted));
  }
  bool accept_word(std::string_view word) {
    skip_space();
    if (text_.substr(at_, word.size()) != word) return false;
    at_ += word.size();
    return true;
  }
  std::string_view string() {
    skip_space();
    const char quote = at_ < text_.size() ? text_[at_] : '\0';
    if (quote != '\'' && quote != '"') wrong("no quoted string");
    const size_t end = text_.find(quote, at_ + 1);
    if (end == std::string_view::npos) wrong("a string that does not end");
    const std::string_view inside = text_.substr(at_ + 1, end - at_ - 1);
    at_ = end + 1;
    return inside;
  }

  void parse_type() {
    static constexpr std::pair<std::string_view, NpyType> kTypes[] = {
        {"<f2", NpyType::f2}, {"<f4", NpyType::f4}, {"<f8", NpyType::f8},
        {"<i4", NpyType::i4}, {"<i8", NpyType::i8}, {"|u1", NpyType::u1}};
    skip_space();
    if (at_ < text_.size() && text_[at_] == '[') wrong("a structured type");
    const std::string_view found = string();
    for (const auto& [descr, type] : kTypes) {
      if (found == descr) {
        header_.type = type;
        return;
      }
    }
    fail(Exit::data,
         fmt::format("{}: found type '{}', wanted one of <f2 <f4 <f8 <i4 <i8 |u1", name_,
                     printable(found)),
         "convert it with numpy's astype, e.g. astype('<f4')");
  }
  void parse_order() {
    if (accept_word("False")) return;
    if (!accept_word("True")) wrong("fortran_order neither True nor False");
    fail(Exit::data, fmt::format("{}: found Fortran order, wanted C order", name_),
         "save numpy.ascontiguousarray(a) instead of a");
  }
  void parse_shape() {
    expect('(');
    while (!accept(')')) {
      skip_space();
      int64_t dim = 0;
      const char* begin = text_.data() + at_;
      const auto [end, ec] = std::from_chars(begin, text_.data() + text_.size(), dim);
      if (ec != std::errc() || dim < 0) wrong("a dimension that is not a small whole number");
      at_ += static_cast<size_t>(end - begin);
      accept('L');  // Python 2 wrote long integers so
      if (header_.rank == kMaxNpyRank) wrong(fmt::format("over {} dimensions", kMaxNpyRank));
      if (dim > kMaxValues / std::max<int64_t>(header_.count, 1)) wrong("a shape too large");
      header_.dims[header_.rank++] = dim;
      header_.count *= dim;
      if (!accept(',')) {
        if (header_.rank == 1) wrong("a number in brackets, not a tuple");
        expect(')');
        break;
      }
    }
  }

  std::string_view text_;
  const std::string& name_;
  size_t at_ = 0;
  NpyHeader header_;
};

}  // namespace

NpyHeader parse_npy_header(std::string_view text, const std::string& name) {
  return HeaderParser(text, name).parse();
}

std::string format_shape(std::span<const int64_t> shape) {
  std::string text = "(";
  for (const int64_t dim : shape) text += std::to_string(dim) + ", ";
  if (shape.size() == 1) text.pop_back();  // a tuple of one keeps its comma
  if (shape.size() > 1) text.resize(text.size() - 2);
  return text + ")";
}

std::string make_npy_header(std::string_view descr, std::span<const int64_t> shape) {
  std::string dict = fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': {}, }}", descr,
                                 format_shape(shape));
  dict.append((64 - (10 + dict.size() + 1) % 64) % 64, ' ');
  dict += '\n';
  std::string header("\x93NUMPY\x01\x00", 8);
  header += static_cast<char>(dict.size() & 0xff);
  header += static_cast<char>(dict.size() >> 8);
  return header + dict;
}

}  // namespace ebb
