// Who started this process: alone, or as one rank of several by a launcher such as mpiexec. Opening
// the others loads the one MPI library that fits, which nobody else pays for.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/peers.h"

namespace ebb {

struct Launcher {
  enum class Kind { none, mpich, openmpi };
  Kind kind = Kind::none;
  int rank = 0, size = 1;
  int local = 1;  // of these on this host, as far as the launcher says
  // For certain: whether all ranks are on this host, and the place of this one among those that
  // are.
  bool one_host = false;
  std::optional<int> local_rank = {};
};

// From the environment: what Hydra (MPICH's mpiexec) and its relatives, Open MPI's mpiexec and
// Slurm's srun set. Fails with Exit::usage if that makes no sense.
Launcher launcher();

// Collective: every rank calls it. Fails with Exit::usage where there is no launcher, no plugin or
// no library, and says what to install or type; with Exit::peer if the ranks do not find each
// other.
std::unique_ptr<Peers> open_peers(const Launcher& from, const PeerOptions& options);

// Where plugins are looked for, in this order: beside the program, and in ../lib/ebb.
std::vector<std::filesystem::path> plugin_folders();

}  // namespace ebb
