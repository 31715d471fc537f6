#include "machine/outside.h"

#include <fmt/format.h>
#include <malloc.h>

#include <cstdlib>
#include <vector>

#include "base/error.h"
#include "base/text.h"
#include "base/threads.h"
#include "formats/atomic_file.h"
#include "formats/input_file.h"
#include "formats/json_reader.h"
#include "machine/process.h"
#include "plan/machine.h"

namespace ebb {

namespace {

namespace fs = std::filesystem;

// ---- the file: {"processes":[["kind",bytes],..]}, the oldest first

struct Measured {
  std::string kind;
  int64_t bytes;
};

constexpr size_t kMostProcesses = 300;

Measured read_process(JsonReader& json) {
  Measured found;
  json.begin_array();
  if (!json.next_element()) json.refuse("an empty list", "two values");
  found.kind = json.read_string();
  if (!json.next_element()) json.refuse("one value", "two");
  found.bytes = json.read_int();
  if (json.next_element()) json.refuse("a third value", "two");
  return found;
}

std::vector<Measured> read_processes(const fs::path& path) {
  std::vector<Measured> all;
  constexpr int64_t kMostBytes = 1 << 20;
  const std::string text = read_text_file(path, kMostBytes);
  JsonReader json(text, printable(path.string()), Exit::disk, "");
  json.begin_object();
  for (std::string key; json.next_key(key);) {
    if (key != "processes") json.refuse("another key", "processes");
    json.begin_array();
    while (json.next_element()) {
      if (all.size() == kMostProcesses) json.refuse("more processes", "fewer");
      all.push_back(read_process(json));
    }
  }
  json.finish();
  return all;
}

void write_processes(const fs::path& path, const std::vector<Measured>& all) {
  std::string text = "{\"processes\":[";
  for (const Measured& each : all) {
    text +=
        fmt::format("{}\n[{},{}]", &each == &all[0] ? "" : ",", json_quote(each.kind), each.bytes);
  }
  write_file_atomically(path, text + "]}\n");
}

}  // namespace

// A process under AddressSanitizer also keeps what it has freed.
int64_t measuring_noise() {
#ifdef __SANITIZE_ADDRESS__
  return 8 << 20;
#else
  return 2 << 20;
#endif
}

int64_t first_measured(const fs::path& file, const std::string& kind, int64_t measured_bytes) {
  if (file.empty()) return measured_bytes;
  // A file that cannot be read or written loses nothing but a first measurement; the calibration,
  // in the same folder, has said so.
  try {
    if (file.has_parent_path()) make_directories(file.parent_path());
    // Others measure meanwhile.
    const DirectoryLock lock(file.has_parent_path() ? file.parent_path() : ".");
    std::vector<Measured> all;
    std::error_code ignored;
    try {
      if (fs::exists(file, ignored)) all = read_processes(file);
    } catch (const Error&) {
    }
    const Measured* best = nullptr;
    for (const Measured& each : all) {
      const int64_t away = std::abs(each.bytes - measured_bytes);
      if (each.kind != kind || away > measuring_noise()) continue;
      if (best == nullptr || away < std::abs(best->bytes - measured_bytes)) best = &each;
    }
    if (best != nullptr) return best->bytes;
    if (all.size() == kMostProcesses) all.erase(all.begin());
    all.push_back({kind, measured_bytes});
    write_processes(file, all);
  } catch (const Error&) {
  }
  return measured_bytes;
}

int64_t measure_outside(int threads) {
  const TeamOf team(threads);
  start_team();
  malloc_trim(0);
  // What the program still takes by itself (code not yet run, log lines, names, one picture being
  // encoded), and what this measurement may be above the first.
  const int64_t reserve = kRunningBytes + measuring_noise();
  return process_resident_bytes() + reserve;
}

}  // namespace ebb
