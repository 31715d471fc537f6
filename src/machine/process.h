// What the operating system says of this process and of the memory that it may have.
#pragma once

#include <cstdint>

namespace ebb {

int64_t process_resident_bytes();  // now (VmRSS)
int64_t process_peak_bytes();      // the most so far (VmHWM)

// What may still be taken: the machine's available memory, or what a cgroup (v1 or v2) leaves.
int64_t available_memory_bytes();

// CPU seconds that everything but this process has taken since the machine started, over all CPUs;
// what a hypervisor took away is among them.
double cpu_seconds_of_others();

}  // namespace ebb
