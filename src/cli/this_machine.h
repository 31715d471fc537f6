// The machine that a verb plans for: this one, or the one that --machine describes.
#pragma once

#include <ebb/machine.h>

#include <functional>

#include "api/impl.h"
#include "cli/settings.h"

namespace ebb {

// Sets the team's threads from --threads, OMP_NUM_THREADS or the CPUs allowed; warns when there are
// more threads than CPUs.
void resolve_threads(const Settings& settings);

// How this machine is measured: with times in a process of its own, whose memory is no part of this
// one's budget, and what a person should know on stderr.
MeasuredMachine::Options measure_options(const Settings& settings);

// The same machine, but for what `change` does to it.
MeasuredMachine changed(const MeasuredMachine& machine,
                        const std::function<void(Machine&)>& change);
// With this link between its ranks; with --link, where that is given.
MeasuredMachine with_link(const MeasuredMachine& machine, const Link& link);
MeasuredMachine with_link(const MeasuredMachine& machine, const Settings& settings);

// This machine, or that of --machine. To be called before data is opened.
MeasuredMachine resolve_machine(const Settings& settings);

// --memory, or 80 % of what is available; a budget above the machine is warned of.
int64_t resolve_budget(const Settings& settings, const MeasuredMachine& machine);

}  // namespace ebb
