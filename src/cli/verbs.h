// One file per verb. Each returns the exit code of the program.
#pragma once

#include "cli/settings.h"
#include "comm/peers.h"

namespace ebb {

int run_plan(Settings settings);
int run_train(Settings settings);
int train_over_ranks(Settings settings, Peers& peers);
int run_sample(Settings settings);
int sample_over_ranks(Settings settings, Peers& peers);
int run_grad(Settings settings);
int run_inspect(Settings settings);
int run_bench(Settings settings);
int bench_over_ranks(Settings settings, Peers& peers);
int run_compare(Settings settings);
int run_machine(Settings settings);
int run_prune(Settings settings);
int run_convert(Settings settings);

// Fails with Exit::usage when a setting that the verb cannot do without was not given.
void need(const Settings& settings, const std::string& name);

}  // namespace ebb
