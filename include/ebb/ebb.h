// Ebb as a library: trains Diffusion Transformers on the CPU within a number of bytes.
//
//   const auto machine = ebb::MeasuredMachine::measure({.cache =
//   ebb::MeasuredMachine::usual_cache()}); const auto data = ebb::Data::of_pixels(pixels, labels,
//   16); const ebb::TrainingPlan plan(machine, {.width = 64, .depth = 4, .heads = 4, .patch = 2},
//                                {.batch = 32, .memory = 100 << 20}, data);
//   ebb::Run run(plan);
//   while (run.steps_done() < 500) run.step();
//   run.save("model.safetensors");
//   const std::vector<float> pictures = run.draw({{0, 1}}, 7);
//
// It never prints, forks, exits or catches signals. What cannot be done is an ebb::Error. Several
// runs may live in one process, each used by one thread at a time; each plan counts the bytes of a
// process in which its run is the only one.
#pragma once

#include <ebb/data.h>
#include <ebb/drawing.h>
#include <ebb/error.h>
#include <ebb/machine.h>
#include <ebb/model.h>
#include <ebb/plan.h>
#include <ebb/run.h>
#include <ebb/step_record.h>
#include <ebb/training.h>
