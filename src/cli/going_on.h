// `train` with a checkpoint's state: what the checkpoint says, and what is left to say.
#pragma once

#include <optional>

#include "cli/settings.h"
#include "data/source.h"
#include "state/checkpoint.h"
#include "train/train_options.h"

namespace ebb {

// What a run goes on with. Its file stays open, for messages.
struct Origin {
  SafetensorsReader file;
  CheckpointInfo info;
};

// The checkpoint that --resume or --from is about; nothing where a run begins with random weights.
// Fails as its readers do.
std::optional<Origin> open_origin(const Settings& settings, int64_t budget_bytes);

// Model, batch, seed and optimizer are the checkpoint's, where the user does not say them: what the
// settings of its run say of them is void. What is said is compared later, and refused by name.
void follow(Settings& settings, const Origin& origin);

// Fails with Exit::disk where the user has said something else than the checkpoint, with
// Exit::usage where there is nothing left to train. The model is then the checkpoint's own.
void agree(TrainOptions& options, const Origin& origin);

}  // namespace ebb
