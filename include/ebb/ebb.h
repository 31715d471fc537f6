// Ebb as a library: trains Diffusion Transformers on the CPU within a number of bytes.
//
//   const auto machine = ebb::MeasuredMachine::measure();
//   const auto data = ebb::Data::of_pixels(pixels, labels, 16);
//   const ebb::Model model{.width = 64, .depth = 4, .heads = 4, .patch = 2};
//   const ebb::TrainingPlan plan(machine, model, {.batch = 32, .memory = 100 << 20}, data);
//   ebb::Run run(plan);
//   while (run.steps_done() < 500) run.step();
//   run.save("model.safetensors");
//   const std::vector<float> pictures = run.draw(labels_to_draw, 7);
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
#include <ebb/saved_model.h>
#include <ebb/step_record.h>
#include <ebb/training.h>
