// A machine as a file: whatever its bytes, it is refused or every number is within its bounds.
#include "machine/machine_file.h"

#include "fuzz.h"
#include "no_device.h"

namespace ebb {

void fuzz(std::string_view bytes) {
  static MemoryFile file;
  static const NoDevice device;
  const Machine machine =
      read_machine(file.holding(bytes), "", [](int) -> const Device& { return device; });
  if (machine.outside_bytes < 0 || machine.available_bytes < 0) std::abort();
  if (!(machine.costs.seconds(Gelu{1000}) > 0)) std::abort();
}

}  // namespace ebb
