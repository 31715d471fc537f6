#include "cli/setting_kinds.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "api/resolve.h"
#include "base/error.h"
#include "base/text.h"

namespace ebb {

namespace {

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      out += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
    } else {
      out += c;
    }
  }
  return out + "\"";
}

}  // namespace

Setting whole(const char* name, int64_t Settings::*member, int64_t low, const char* help,
              int64_t high) {
  return {name, "N", help,
          [=](Settings& s, const std::string& text, const std::string& where) {
            const int64_t value = parse_int(text, where);
            if (value < low || value > high) {
              fail(Exit::usage,
                   fmt::format("{}: found {}, wanted {} to {}", where, value, low, high));
            }
            s.*member = value;
          },
          [=](const Settings& s) { return fmt::format("{}", s.*member); }};
}

Setting real(const char* name, double Settings::*member, double low, double high,
             const char* help) {
  return {name, "X", help,
          [=](Settings& s, const std::string& text, const std::string& where) {
            const double value = parse_real(text, where);
            if (value < low || value > high) {
              fail(Exit::usage,
                   fmt::format("{}: found {}, wanted {} to {}", where, value, low, high));
            }
            s.*member = value;
          },
          [=](const Settings& s) { return fmt::format("{}", s.*member); }};
}

Setting share(const char* name, double Settings::*member, const char* help) {
  Setting made = real(name, member, 0, 1, help);
  made.set = [=](Settings& s, const std::string& given, const std::string& where) {
    const double value = parse_real(given, where);
    if (!(value > 0 && value < 1)) {
      fail(Exit::usage,
           fmt::format("{}: found {}, wanted a share above 0 and below 1, such as 0.5", where,
                       printable(given)),
           "it is what goes, not what stays");
    }
    s.*member = value;
  };
  return made;
}

Setting text(const char* name, std::string Settings::*member, const char* value, const char* help) {
  return {name, value, help,
          [=](Settings& s, const std::string& given, const std::string&) { s.*member = given; },
          [=](const Settings& s) { return quoted(s.*member); }};
}

Setting choice(const char* name, std::string Settings::*member, const char* choices,
               const char* help) {
  Setting made = text(name, member, choices, help);
  made.set = [=](Settings& s, const std::string& given, const std::string& where) {
    const auto known = split(choices, '|');
    for (const std::string& word : known) {
      if (given == word) {
        s.*member = given;
        return;
      }
    }
    fail(Exit::usage, fmt::format("{}: found '{}', wanted {}{}", where, printable(given), choices,
                                  did_you_mean(given, known)));
  };
  return made;
}

Setting on_off(const char* name, bool Settings::*member, const char* help) {
  return {name, "", help,
          [=](Settings& s, const std::string& given, const std::string& where) {
            if (given != "true" && given != "false") {
              fail(Exit::usage,
                   fmt::format("{}: found '{}', wanted true or false", where, printable(given)));
            }
            s.*member = given == "true";
          },
          [=](const Settings& s) { return s.*member ? "true" : "false"; }};
}

Setting without(const char* name, bool Settings::*member, const char* help) {
  Setting made = on_off(name, member, help);
  made.set = [=, set = made.set](Settings& s, const std::string& given, const std::string& where) {
    set(s, given, where);
    s.*member = !(s.*member);
  };
  made.stored = false;
  return made;
}

Setting bytes(const char* name, int64_t Settings::*member, const char* help) {
  return {name, "SIZE", help,
          [=](Settings& s, const std::string& given, const std::string& where) {
            s.*member = parse_size(given, where);
          },
          [=](const Settings& s) { return fmt::format("{}", s.*member); }};
}

Setting whole_or(const char* word, const char* name, int64_t Settings::*member, const char* help) {
  Setting made = whole(name, member, 1, help, 1 << 20);
  made.value = fmt::format("N|{}", word);
  made.set = [=, number = made.set](Settings& s, const std::string& given,
                                    const std::string& where) {
    if (given == word) {
      s.*member = 0;
    } else {
      number(s, given, where);
    }
  };
  made.get = [=](const Settings& s) {
    return s.*member == 0 ? quoted(word) : fmt::format("{}", s.*member);
  };
  return made;
}

Setting amount(const char* name, Amount Settings::*member, const char* help) {
  return {name, "X|N", help,
          [=](Settings& s, const std::string& given, const std::string& where) {
            s.*member = parse_amount(given, where);
          },
          [=](const Settings& s) { return quoted((s.*member).text); }};
}

Setting technique_flag(const Technique& t) {
  return {t.flag, t.values, t.help,
          [&t](Settings& s, const std::string& given, const std::string& where) {
            t.decide(s.decisions, given, where);
          },
          [&t](const Settings& s) {
            const std::string word = t.decided(s.decisions);
            const bool number = word.find_first_not_of("0123456789") == std::string::npos;
            return number ? word : quoted(word);
          }};
}

Setting allowed_words() {
  std::vector<std::string> known;
  for (const AllowWord& word : allow_words()) known.emplace_back(word.word);
  return {"allow", "A,B", fmt::format("what may change numbers: {}", fmt::join(known, ", ")),
          [](Settings& s, const std::string& given, const std::string& where) {
            s.decisions.allowed.clear();
            if (given.empty()) return;
            for (const std::string& word : split(given, ',')) allow(s.decisions, word, where);
          },
          [](const Settings& s) {
            return quoted(fmt::format("{}", fmt::join(s.decisions.allowed, ",")));
          }};
}

Setting unstored(Setting setting) {
  setting.stored = false;
  return setting;
}

Setting otherwise(std::string what, Setting setting) {
  setting.otherwise = std::move(what);
  return setting;
}

}  // namespace ebb
