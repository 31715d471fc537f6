// From what the user typed to what runs.
#pragma once

#include <ebb/data.h>
#include <ebb/drawing.h>

#include <string>
#include <vector>

#include "cli/settings.h"
#include "data/source.h"
#include "model/config.h"
#include "train/pictures.h"
#include "train/trainer.h"

namespace ebb {

// Opens data as a run with this budget does: it may hold half of that. `verify`: as Data::Options
// has it.
Data resolve_data(const Settings& settings, const std::string& path, int64_t budget, bool verify);

// The model: named size < single sizes < data (image size, channels, classes). Without data,
// latents of 256x256 ImageNet. Writes what was resolved back into `settings`.
DitConfig resolve_model(Settings& settings, const DataInfo* data);

// A line where the model was nobody's choice.
void say_default_model(const Settings& settings);

// "DiT-S/2", or "DiT 128x6/4" for a free size.
std::string model_label(const Settings& settings, const DitConfig& config);

// --offload: a directory that can be used, or nothing. One whose files are memory is warned of.
std::filesystem::path resolve_offload(const Settings& settings);

// Makes the settings name what was chosen, so that a resumed run goes on in the same way.
void settle(Settings& settings, const PlannedRun& planned);

// Everything of a training run but the data itself. `count`: samples of the data, for --epochs.
TrainOptions resolve_training(Settings& settings, const DitConfig& config, const DataInfo* data);

// What of the pictures while training was said, and what they have become, for a resumed run.
PicturesGiven pictures_given(const Settings& settings);
void settle_pictures(Settings& settings, const TrainOptions& options);

Drawing drawing_in(const Settings& settings);

}  // namespace ebb
