// What runs and saved models share when they draw for others.
#pragma once

#include <ebb/drawing.h>

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "model/config.h"
#include "sample/draw.h"

namespace ebb {

// As Drawer::draw, without its seed.
using Draw = std::function<Drawn(const Drawer::LabelOf& label_of, const Drawer::Take& take,
                                 const Drawer::Stop& stop, const Drawer::Watch& watch)>;

// Draws with the calls in place of what is asked and told. False: it was stopped. Fails with
// Exit::usage on a label that the model does not have, with Exit::numbers where what is drawn is
// not finite: `where` and `hint` say the rest of that.
bool draw_with(const Draw& draw, const DitConfig& config, const DrawingCalls& calls,
               const std::string& where, const std::string& hint);

// One sample for each label, all at once: draw(calls) draws so many.
std::vector<float> draw_all(std::span<const int32_t> labels, const DitConfig& config,
                            const std::function<void(const DrawingCalls& calls)>& draw);

}  // namespace ebb
