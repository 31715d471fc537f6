// From the public settings to what is planned and run. The verbs' own settings come this way too.
#pragma once

#include <ebb/drawing.h>
#include <ebb/machine.h>
#include <ebb/model.h>
#include <ebb/plan.h>
#include <ebb/training.h>

#include <filesystem>
#include <optional>
#include <string>

#include "data/source.h"
#include "machine/measure.h"
#include "model/config.h"
#include "model/sampler.h"
#include "plan/techniques.h"
#include "train/train_options.h"

namespace ebb {

// This build's device with so many threads.
const Device& device_with(int threads);

// How a machine is measured; its device has the team's threads where none are given.
MeasureOptions measuring(const MeasuredMachine::Options& options);

// Fails with Exit::disk where it is not a directory.
void check_offload(const std::filesystem::path& directory);

// --memory, or 80 % of what is available.
int64_t budget_of(int64_t memory, const Machine& machine);

// Named size < single sizes < data (image size, channels, classes). Writes what was resolved back
// into the model. `model_at` and `data_at`: where they come from, for messages.
DitConfig resolve(Model& model, const DataInfo* data, const std::string& model_at = "--model",
                  const std::string& data_at = "data");

// "DiT-S/2", or "DiT 128x6/4" for a free size.
std::string label_of(const Model& model, const DitConfig& config);

// Decides by a technique's flag; allows by a word. Fail with Exit::usage, naming what is known.
void decide(Decisions& decisions, const std::string& flag, const std::string& word);
void allow(Decisions& decisions, const std::string& word, const std::string& where);
Decisions decisions_of(const Training& training);

// `together` is its batch.
SamplerSpec resolve(const Drawing& drawing, const DitConfig& config, bool pixels);

// Fails with Exit::usage on a value that none of its kind can have. The verbs' table of settings
// has done so, where the user gave it.
void check_ranges(const Training& training);

// Everything of a run but its name, budget, data, drawing and folder. The decisions of `training`
// are given apart: the verbs have them already.
TrainOptions resolve(const Training& training, const Decisions& decisions, const DitConfig& config,
                     const DataInfo* data);

// The plan of a run with a folder, whose options are complete. With its floor, it has all that `ebb
// plan` shows.
enum class Floor : uint8_t { left_out, known };
TrainingPlan plan_with_folder(const MeasuredMachine& machine, TrainOptions options,
                              const std::optional<Data>& data, Floor floor = Floor::left_out);

}  // namespace ebb
