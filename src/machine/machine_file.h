// A machine as a file: what `ebb machine --json` writes and --machine reads, so that a plan can be
// made for a machine from another one.
#pragma once

#include <filesystem>
#include <functional>
#include <string>

#include "plan/machine.h"

namespace ebb {

// One JSON object.
std::string machine_json(const Machine& machine);

// The machine that the text or the file describes. `device_with` gives this build's device with so
// many threads; `offload` is the directory that the plan may use there, or nothing. Fails with
// Exit::usage on a file that is damaged or of other kernels, naming it.
Machine machine_from_json(const std::string& text, const std::string& where,
                          const std::string& offload,
                          const std::function<const Device&(int threads)>& device_with);
Machine read_machine(const std::filesystem::path& file, const std::string& offload,
                     const std::function<const Device&(int threads)>& device_with);

}  // namespace ebb
