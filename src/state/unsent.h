// What ranks keep for the exchange of gradients in fewer bytes, as checkpoints have it.
#pragma once

#include <set>
#include <string>

#include "formats/safetensors.h"
#include "state/state.h"

namespace ebb {

// The tensors of whose gradients some rank had not sent all.
std::set<std::string> unsent_in(const SafetensorsReader& file);
// The first of them that the ranks of this step have no place for; "": none.
std::string without_place(const std::set<std::string>& unsent, const DitConfig& config,
                          const StepSpec& step);

// Fills what this rank has of it: nothing of a tensor is lost or counted twice, however many groups
// there were and are. What the next code begins with is made if the file has none that fits.
void load_unsent(const SafetensorsReader& file, State& state, const DitConfig& config);
// For a run that begins.
void begin_codes(State& state, const DitConfig& config);

}  // namespace ebb
