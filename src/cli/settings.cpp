#include "cli/settings.h"

#include <fmt/format.h>

#include <toml++/toml.h>
#include <set>
#include <sstream>

#include "base/error.h"
#include "base/text.h"
#include "cli/checkpoint_of.h"
#include "formats/input_file.h"
#include "formats/json_reader.h"
#include "formats/toml_text.h"
#include "machine/budget.h"
#include "machine/process.h"
#include "state/checkpoint.h"

namespace ebb {

namespace {

const Setting* find_setting(const std::string& verb, const std::string& name) {
  for (const Setting& setting : settings_of(verb)) {
    if (setting.name == name) return &setting;
  }
  return nullptr;
}

std::vector<std::string> names_of(const std::string& verb, const std::string& prefix) {
  std::vector<std::string> names;
  for (const Setting& setting : settings_of(verb)) names.push_back(prefix + setting.name);
  return names;
}

std::string toml_text(const toml::node& node, const std::string& where) {
  if (const auto* value = node.as_string()) return value->get();
  if (const auto* value = node.as_integer()) return fmt::format("{}", value->get());
  if (const auto* value = node.as_floating_point()) return fmt::format("{}", value->get());
  if (const auto* value = node.as_boolean()) return value->get() ? "true" : "false";
  fail(Exit::usage, fmt::format("{}: found a table, list or date, wanted a single value", where));
}

// A flag also wins over keys that say the same in other words.
const std::map<std::string, std::vector<std::string>> kFlagReplaces = {
    {"model", {"width", "depth", "heads", "patch"}},
    {"steps", {"epochs"}},
    {"epochs", {"steps"}},
    {"objective", {"no-learn-sigma"}},
};

std::set<std::string> replaced_by(const std::set<std::string>& names) {
  std::set<std::string> replaced;
  for (const std::string& name : names) {
    const auto found = kFlagReplaces.find(name);
    if (found != kFlagReplaces.end()) replaced.insert(found->second.begin(), found->second.end());
  }
  return replaced;
}

toml::table parse_table(const std::string& text, const std::string& file) {
  check_toml_text(text, file);
  try {
    return toml::parse(text, file);
  } catch (const toml::parse_error& e) {
    std::ostringstream what;
    what << e.description();
    fail(Exit::usage, fmt::format("{}:{}: {}", file, e.source().begin.line, what.str()));
  }
}

constexpr int64_t kMostBytes = 1 << 20;  // of settings

toml::table read_table(const std::string& file) {
  if (!std::filesystem::is_regular_file(file)) {
    fail(Exit::usage, fmt::format("--config: {} is not a file", printable(file)),
         "give a TOML file such as a run's settings.toml");
  }
  return parse_table(read_text_file(file, kMostBytes, Exit::usage), file);
}

// `replaced`: keys that others make void.
void take_table(Settings& settings, const std::string& verb, const toml::table& table,
                const std::string& file, const std::set<std::string>& replaced) {
  for (const auto& [key, node] : table) {
    const std::string name(key.str());
    const std::string where =
        fmt::format("{}:{}: {}", file, key.source().begin.line, printable(name));
    const Setting* setting = find_setting(verb, name);
    if (setting == nullptr) {
      fail(Exit::usage,
           fmt::format("{}: no such setting{}", where, did_you_mean(name, names_of(verb, ""))),
           fmt::format("ebb {} --help lists them", verb));
    }
    Settings trial = settings;  // a void key is still checked
    setting->set(trial, toml_text(node, where), where);
    if (replaced.count(name) != 0) continue;
    settings = std::move(trial);
    settings.given[name] = where;
    settings.recorded.erase(name);
  }
}

void record_all(Settings& settings) {
  for (const auto& [name, where] : settings.given) settings.recorded.insert(name);
}

// What a checkpoint says of its run. One that was written through the library says nothing.
void take_checkpoint(Settings& settings, const std::string& verb, const std::string& from,
                     int64_t memory, const std::set<std::string>& replaced) {
  const std::filesystem::path path = checkpoint_of(from);
  const std::string file = printable(path.string());
  const int64_t budget = memory > 0 ? memory : available_memory_bytes();
  const std::string text =
      read_info(SafetensorsReader(path, Exit::disk, header_limit(budget))).settings;
  if (std::ssize(text) > kMostBytes) {
    fail(Exit::disk, fmt::format("{}: found {} bytes of settings, wanted at most {}", file,
                                 text.size(), kMostBytes));
  }
  try {
    const std::string where = file + ": ebb.settings";
    take_table(settings, verb, parse_table(text, where), where, replaced);
  } catch (const Error& e) {
    fail(Exit::disk, e.what(), "the checkpoint's settings are of another version, or were changed");
  }
  record_all(settings);
}

void refuse_both(const Settings& settings) {
  if (!settings.resume) return;
  fail(Exit::usage, "--from contradicts --resume: one begins a new run, the other goes on with one",
       "a run that was begun with --from goes on with --resume alone");
}

struct Flag {
  const Setting* setting;
  std::string value, where;
};

// "--name value", "--name=value" and "--switch"; one word without dashes is the target of
// `inspect`.
std::vector<Flag> read_flags(Settings& settings, const std::string& verb,
                             const std::vector<std::string>& args) {
  std::vector<Flag> flags;
  for (size_t i = 0; i < args.size(); ++i) {
    const std::string& arg = args[i];
    if (arg.rfind("--", 0) != 0) {
      if (verb == "inspect" && settings.target.empty()) {
        settings.target = arg;
        continue;
      }
      fail(Exit::usage, fmt::format("{}: unexpected '{}'", verb, printable(arg)),
           fmt::format("ebb {} --help shows what it takes", verb));
    }
    const size_t equals = arg.find('=');
    const std::string name = arg.substr(2, equals == std::string::npos ? equals : equals - 2);
    const Setting* setting = find_setting(verb, name);
    if (setting == nullptr) {
      fail(Exit::usage,
           fmt::format("{}: no flag --{}{}", verb, printable(name),
                       did_you_mean("--" + name, names_of(verb, "--"))),
           fmt::format("ebb {} --help lists them", verb));
    }
    const std::string where = "--" + name;
    if (equals != std::string::npos) {
      flags.push_back({setting, arg.substr(equals + 1), where});
    } else if (setting->value.empty()) {
      flags.push_back({setting, "true", where});
    } else if (i + 1 < args.size() && args[i + 1].rfind("--", 0) != 0) {
      flags.push_back({setting, args[++i], where});
    } else {
      fail(Exit::usage, fmt::format("{}: a value is missing", where),
           fmt::format("{}: {}", where, setting->help));
    }
  }
  return flags;
}

bool accepts(const Setting& setting, const std::string& value) {
  Settings trial;
  try {
    setting.set(trial, value, setting.name);
    return value != "\"\"";
  } catch (const Error&) {
    return false;
  }
}

}  // namespace

Settings parse_settings(const std::string& verb, const std::vector<std::string>& args) {
  Settings settings = defaults_of(verb);
  const std::vector<Flag> flags = read_flags(settings, verb, args);
  Settings early;  // --config, --out, --resume and --from decide which files are read first
  std::set<std::string> flagged;
  for (const Flag& flag : flags) {
    flag.setting->set(early, flag.value, flag.where);
    flagged.insert(flag.setting->name);
  }
  toml::table config;
  if (!early.config.empty()) config = read_table(early.config);
  std::set<std::string> said = flagged;
  for (const auto& [key, node] : config) said.emplace(key.str());
  if (verb == "train" && said.count("from") != 0) {
    Settings with_config = early;
    take_table(with_config, verb, config, early.config, flagged);
    refuse_both(with_config);
    take_checkpoint(settings, verb, with_config.begin_from, with_config.memory, replaced_by(said));
  }
  const auto own = std::filesystem::path(early.out) / "settings.toml";
  if (early.config.empty() && early.resume && std::filesystem::exists(own)) {
    take_table(settings, verb, read_table(own.string()), own.string(), replaced_by(flagged));
    record_all(settings);
  }
  take_table(settings, verb, config, early.config, replaced_by(flagged));
  for (const Flag& flag : flags) {
    flag.setting->set(settings, flag.value, flag.where);
    settings.given[flag.setting->name] = flag.where;
    settings.recorded.erase(flag.setting->name);
  }
  if (settings.has("steps") && settings.has("epochs")) {
    fail(Exit::usage,
         fmt::format("{} and {} both say how long to train", settings.given.at("steps"),
                     settings.given.at("epochs")),
         "give one of them");
  }
  return settings;
}

std::string default_text(const std::string& verb, const Setting& setting) {
  if (!setting.otherwise.empty()) return setting.otherwise;
  std::string value = setting.get(defaults_of(verb));
  if (value.starts_with('"')) value = value.substr(1, value.size() - 2);
  const bool is_switch = setting.value.empty();
  return is_switch || value.empty() || !accepts(setting, value) ? "" : value;
}

std::string settings_toml(const std::string& verb, const Settings& settings) {
  std::string out = fmt::format("# ebb {} --config FILE reads this back\n", verb);
  for (const Setting& setting : settings_of(verb)) {
    const std::string value = setting.get(settings);
    const bool undecided = !settings.has(setting.name) && (value == "0" || value == "\"\"");
    // An undecided setting that could not be read back is left to be decided again.
    if (setting.stored && !(undecided && !accepts(setting, value))) {
      if (!is_utf8(value)) {
        fail(Exit::usage, fmt::format("--{}: '{}' is not UTF-8", setting.name, printable(value)),
             "settings.toml could not hold it: rename it or link to it");
      }
      out += fmt::format("{} = {}\n", setting.name, value);
    }
  }
  return out;
}

}  // namespace ebb
