// The layout of the source: who may include whom, and what stays in one place.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace ebb {
namespace {

namespace fs = std::filesystem;

const fs::path kRoot = EBB_SOURCE_DIR;

// Each folder may use itself and those before it.
const std::vector<std::string> kOrder = {
    "base",    "program", "kernels", "model",  "plan",  "run",    "formats", "data", "comm",
    "machine", "state",   "prune",   "sample", "train", "report", "api",     "cli"};

bool is_text(const fs::path& path) {
  const std::string end = path.extension();
  return end == ".h" || end == ".cpp" || end == ".py" || end == ".txt";
}

std::vector<fs::path> files_under(const std::string& folder) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::recursive_directory_iterator(kRoot / folder)) {
    if (entry.is_regular_file() && is_text(entry.path())) files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

std::vector<std::string> lines_of(const fs::path& path) {
  std::ifstream in(path);
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

// The folder of src/ that a file is in: "plan" for src/plan/packing.cpp.
std::string folder_of(const fs::path& path) {
  return fs::relative(path, kRoot / "src").begin()->string();
}

struct Include {
  fs::path file;
  std::string what;  // between the quotes or brackets
  bool quoted;
};

std::vector<Include> includes_of(const std::string& folder) {
  std::vector<Include> found;
  for (const fs::path& file : files_under(folder)) {
    for (const std::string& line : lines_of(file)) {
      const size_t hash = line.find_first_not_of(" \t");
      if (hash == std::string::npos || line[hash] != '#') continue;
      if (line.find("include") == std::string::npos) continue;
      const size_t open = line.find_first_of("\"<");
      const size_t close = line.find_last_of("\">");
      if (open == std::string::npos || close <= open) continue;
      found.push_back({file, line.substr(open + 1, close - open - 1), line[open] == '"'});
    }
  }
  return found;
}

std::vector<Include> includes() { return includes_of("src"); }

int rank(const std::string& folder) {
  const auto at = std::find(kOrder.begin(), kOrder.end(), folder);
  return at == kOrder.end() ? -1 : static_cast<int>(at - kOrder.begin());
}

TEST(Layers, EveryFolderIncludesOnlyThoseBeforeIt) {
  int checked = 0;
  for (const Include& include : includes()) {
    const int user = rank(folder_of(include.file));
    EXPECT_GE(user, 0) << include.file << " is in a folder that the order does not name";
    if (!include.quoted) continue;
    EXPECT_TRUE(fs::exists(kRoot / "src" / include.what))
        << include.file << " includes \"" << include.what << "\", not a path from src/";
    const int used = rank(include.what.substr(0, include.what.find('/')));
    EXPECT_GE(used, 0) << include.file << " includes \"" << include.what << "\"";
    EXPECT_LE(used, user) << include.file << " includes \"" << include.what << "\"";
    ++checked;
  }
  EXPECT_GT(checked, 100) << "the scan finds no includes";
}

// Headers of libraries and instruction sets, and the only folder that knows them.
TEST(Layers, EveryLibraryHasOneHome) {
  const struct {
    const char *word, *home;
  } rules[] = {{"dnnl", "kernels"},   {"intrin.h", "kernels"}, {"omp.h", "kernels"},
               {"mpi.h", "comm"},     {"png.h", "formats"},    {"jpeglib.h", "formats"},
               {"zlib.h", "formats"}, {"webp/", "formats"},    {"gif_lib.h", "formats"}};
  int seen = 0;
  for (const Include& include : includes()) {
    for (const auto& [word, home] : rules) {
      if (include.quoted || include.what.find(word) == std::string::npos) continue;
      EXPECT_EQ(folder_of(include.file), home) << include.file << " includes <" << include.what;
      ++seen;
    }
  }
  EXPECT_GT(seen, 3) << "the scan finds no libraries";
}

// Who does not use MPI pays nothing for it: one file knows it, which the program does not link.
TEST(Layers, MpiIsKnownToOnePluginAlone) {
  int seen = 0;
  for (const char* folder : {"src", "include", "tests", "bench", "fuzz", "examples"}) {
    for (const Include& include : includes_of(folder)) {
      if (include.what != "mpi.h") continue;
      EXPECT_EQ(fs::relative(include.file, kRoot), "src/comm/mpi_plugin.cpp");
      ++seen;
    }
  }
  EXPECT_EQ(seen, 1);
}

// Whoever includes a public header needs nothing of the house, and no library.
TEST(Layers, PublicHeadersIncludeTheStandardLibraryAndEachOther) {
  int checked = 0;
  for (const Include& include : includes_of("include")) {
    EXPECT_FALSE(include.quoted) << include.file << " includes \"" << include.what << '"';
    const bool own = include.what.rfind("ebb/", 0) == 0;
    EXPECT_TRUE(own ? fs::exists(kRoot / "include" / include.what)
                    : include.what.find_first_of("./") == std::string::npos)
        << include.file << " includes <" << include.what << '>';
    ++checked;
  }
  EXPECT_GT(checked, 20) << "the scan finds no includes";
}

// The library neither prints, forks, exits nor catches signals: the program over it does.
TEST(Layers, OnlyTheProgramSpeaksForksExitsAndCatchesSignals) {
  int in_cli = 0;
  for (const fs::path& file : files_under("src")) {
    for (const std::string& line : lines_of(file)) {
      const std::string code = line.substr(0, line.find("//"));
      for (const char* word :
           {"fork()", "fmt::print", "printf(", "std::signal", "sigaction(", "signal(SIG", "exit(",
            "std::cout", "std::cerr", "fputs(", "puts("}) {
        if (code.find(word) == std::string::npos) continue;
        if (code.find("snprintf(") != std::string::npos) continue;
        folder_of(file) == "cli" ? void(++in_cli) : ADD_FAILURE() << file << ": " << line;
      }
    }
  }
  EXPECT_GT(in_cli, 20) << "the scan finds nothing";
}

// Who wants a device is given one.
TEST(Layers, TheCpuIsNamedInOneSpotOutsideItsFolder) {
  int spots = 0;
  for (const fs::path& file : files_under("src")) {
    if (folder_of(file) == "kernels") continue;
    for (const std::string& line : lines_of(file)) {
      if (line.find("cpu_device(") == std::string::npos) continue;
      ++spots;
      EXPECT_EQ(folder_of(file), "api") << file << ": " << line;
    }
  }
  EXPECT_EQ(spots, 1);
}

TEST(Layers, ADoubtIsATestAndNotARemark) {
  for (const fs::path& file : files_under("src")) {
    for (const std::string& line : lines_of(file)) {
      for (const char* word : {"TODO", "FIXME", "XXX", "HACK"}) {
        EXPECT_EQ(line.find(word), std::string::npos) << file << ": " << line;
      }
    }
  }
}

TEST(Layers, NoFileIsLongerThanFourHundredLinesWithoutAReason) {
  const struct {
    const char *file, *reason;
  } longer[] = {{"src/program/ops.h", "the list of every op there is"},
                {"src/kernels/cpu/attention.cpp", "forward and backward share their tiles"}};
  size_t found = 0;
  for (const char* folder : {"src", "include", "tests"}) {
    for (const fs::path& file : files_under(folder)) {
      const std::string name = fs::relative(file, kRoot).string();
      const bool excused = std::any_of(std::begin(longer), std::end(longer),
                                       [&](const auto& each) { return name == each.file; });
      found += excused ? 1 : 0;
      EXPECT_LE(lines_of(file).size(), excused ? 500u : 400u) << file;
    }
  }
  EXPECT_EQ(found, std::size(longer)) << "a reason without a file";
}

TEST(Layers, EveryHeaderIsGuardedAndSaysWhatItIsFor) {
  for (const char* folder : {"src", "include"}) {
    for (const fs::path& file : files_under(folder)) {
      const std::vector<std::string> lines = lines_of(file);
      ASSERT_FALSE(lines.empty()) << file;
      if (file.extension() != ".h") continue;
      EXPECT_NE(std::find(lines.begin(), lines.end(), "#pragma once"), lines.end()) << file;
      EXPECT_EQ(lines[0].rfind("//", 0), 0u) << file << " does not say what it is for";
    }
  }
}

}  // namespace
}  // namespace ebb
