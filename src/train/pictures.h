// How many pictures a run can afford to draw meanwhile.
#pragma once

#include <string>
#include <vector>

#include "train/train_options.h"

namespace ebb {

// Pictures take at most this share of the time between them, or so many seconds, unless the user
// has said which they are to be.
inline constexpr double kDrawingShare = 0.05;
inline constexpr double kDrawingGrace = 2;

// `most` of the classes, or fewer if there are not so many, spread over all of them. A model
// without classes has one.
std::vector<int32_t> spread_classes(int64_t classes, int64_t most);

// What the user has said of the pictures.
struct PicturesGiven {
  bool classes = false, each = false;
};

// Draws fewer of each class, then fewer classes, until they can be afforded; where nothing was said
// of them, then none. Says in one line what has changed; then the run must be planned again. "":
// nothing.
std::string afford_pictures(TrainOptions& options, const PicturesGiven& given,
                            const PlannedRun& planned, const Machine& machine);

}  // namespace ebb
