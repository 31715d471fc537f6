// What ranks keep for the exchange of gradients in fewer bytes, as checkpoints have it.
#pragma once

#include <set>
#include <string>

#include "formats/safetensors.h"
#include "state/state.h"

namespace ebb {

// What the ranks that wrote a file had not sent.
struct Unsent {
  std::set<std::string> tensors;  // of whose gradients something is left
  bool of_momenta = false;        // or of whose momenta, as 1-bit Adam has them: another quantity
};
Unsent unsent_in(const SafetensorsReader& file);
// The first of the tensors that the ranks of this step have no place for; "": none.
std::string without_place(const Unsent& unsent, const DitConfig& config, const StepSpec& step);

// Fills what this rank has of it: nothing of a tensor is lost or counted twice, however many groups
// there were and are. What the next code begins with is made if the file has none that fits.
void load_unsent(const SafetensorsReader& file, State& state, const DitConfig& config);
// Second moments that were frozen go on as if they had seen every update: what AdamW takes of them
// stays the same. Of the tensors whose momenta went as signs.
void thaw_moments(State& state, const DitConfig& config, double factor);
// For a run that begins.
void begin_codes(State& state, const DitConfig& config);

}  // namespace ebb
