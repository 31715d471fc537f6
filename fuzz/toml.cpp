// A settings file, as --config reads it, and as it is written down again.
#include "cli/settings.h"
#include "fuzz.h"

namespace ebb {

void fuzz(std::string_view bytes) {
  static MemoryFile file;
  settings_toml("train", parse_settings("train", {"--config", file.holding(bytes)}));
}

}  // namespace ebb
