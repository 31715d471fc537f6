// What the operating system says of this process and of the memory that it may have.
#pragma once

#include <cstdint>

namespace ebb {

int64_t process_resident_bytes();  // now (VmRSS)
int64_t process_peak_bytes();      // the most so far (VmHWM)

// What may still be taken: the machine's available memory, or what a cgroup (v1 or v2) leaves.
int64_t available_memory_bytes();

}  // namespace ebb
