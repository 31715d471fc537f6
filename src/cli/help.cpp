#include "cli/help.h"

#include <fmt/format.h>

#include "base/text.h"
#include "cli/settings.h"

namespace ebb {

namespace {

constexpr size_t kColumns = 79;
constexpr size_t kIndent = 29;  // of what a setting means

// Words in lines that end at kColumns, all but the first indented.
std::string wrapped(const std::vector<std::string>& words) {
  std::string out;
  size_t used = kIndent;
  for (const std::string& word : words) {
    if (used > kIndent && used + 1 + word.size() > kColumns) {
      out += "\n" + std::string(kIndent, ' ');
      used = kIndent;
    }
    if (used > kIndent) out += ' ';
    used += word.size() + (used > kIndent ? 1 : 0);
    out += word;
  }
  return out;
}

std::string entry(const std::string& verb, const Setting& setting) {
  std::string flag = fmt::format("  --{} {}", setting.name, setting.value);
  // What a long flag means stands below it.
  const bool long_flag = flag.size() + 1 > kIndent;
  flag += long_flag ? "\n" + std::string(kIndent, ' ') : std::string(kIndent - flag.size(), ' ');
  std::vector<std::string> words = split(setting.help, ' ');
  // The default is one word, so that no line ends within it.
  const std::string standard = default_text(verb, setting);
  if (!standard.empty()) words.push_back(fmt::format("(default: {})", standard));
  return flag + wrapped(words) + "\n";
}

}  // namespace

std::string settings_help(const std::string& verb) {
  // Settings of one group need not stand together in the table.
  std::vector<std::pair<std::string, std::string>> groups;
  for (const Setting& setting : settings_of(verb)) {
    auto group = groups.begin();
    while (group != groups.end() && group->first != setting.group) ++group;
    if (group == groups.end()) group = groups.insert(group, {setting.group, ""});
    group->second += entry(verb, setting);
  }
  std::string out;
  for (const auto& [title, entries] : groups) out += fmt::format("{}:\n{}\n", title, entries);
  out.pop_back();
  return out;
}

}  // namespace ebb
