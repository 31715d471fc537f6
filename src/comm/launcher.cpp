#include "comm/launcher.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <optional>
#include <string_view>

#include "base/error.h"
#include "base/text.h"
#include "comm/mpi_calls.h"
#include "comm/mpi_peers.h"
#include "comm/traffic.h"

namespace ebb {

namespace fs = std::filesystem;

namespace {

std::optional<int> number_in(const char* variable) {
  const char* text = std::getenv(variable);
  if (text == nullptr) return std::nullopt;
  const std::string_view all = text;
  int value = 0;
  const auto [end, error] = std::from_chars(all.data(), all.data() + all.size(), value);
  if (error != std::errc() || end != all.data() + all.size()) {
    fail(Exit::usage,
         fmt::format("ranks: {}={} in the environment is not a number", variable, printable(text)),
         fmt::format("the launcher sets it; without a launcher: unset {}", variable));
  }
  return value;
}

struct Library {
  const char *file, *name, *packages, *build_packages, *command;
};

Library library_of(Launcher::Kind kind) {
  if (kind == Launcher::Kind::mpich) {
    return {"libebb_mpich.so", "MPICH", "mpich", "mpich libmpich-dev", "mpiexec.mpich"};
  }
  return {"libebb_openmpi.so", "Open MPI", "openmpi-bin", "openmpi-bin libopenmpi-dev",
          "mpiexec.openmpi"};
}

fs::path plugin_file(const Library& library) {
  std::string looked;
  for (const fs::path& folder : plugin_folders()) {
    std::error_code ignored;
    if (fs::exists(folder / library.file, ignored)) return folder / library.file;
    looked += (looked.empty() ? "" : " and ") + printable(folder.string());
  }
  fail(Exit::usage,
       fmt::format("ranks: {} started this process, but this build of ebb has no {} (looked in {})",
                   library.name, library.file, looked),
       fmt::format("apt install {}, then configure and build ebb again; or start it with another "
                   "launcher",
                   library.build_packages));
}

// It stays loaded: MPI cannot be started twice.
const EbbMpi& load(const Library& library) {
  const fs::path file = plugin_file(library);
  // Open MPI's own plugins look for its symbols among the global ones.
  void* handle = dlopen(file.c_str(), RTLD_NOW | RTLD_GLOBAL | RTLD_NODELETE);
  if (handle == nullptr) {
    fail(Exit::usage, fmt::format("ranks: {} cannot be loaded: {}", file.string(), dlerror()),
         fmt::format("apt install {}", library.packages));
  }
  auto* entry = reinterpret_cast<EbbMpiEntry*>(dlsym(handle, "ebb_mpi"));
  const EbbMpi* mpi = entry == nullptr ? nullptr : entry();
  const std::string_view version = mpi == nullptr ? "nothing" : mpi->version;
  if (version != EBB_MPI_CALLS) {
    fail(Exit::usage,
         fmt::format("ranks: {} offers '{}', this ebb wants '{}'", file.string(), version,
                     EBB_MPI_CALLS),
         "they are of different builds: install both from the same one");
  }
  return *mpi;
}

// UCX carries the bytes of some MPIs; what a user has set stays. It would end a process that reads
// from one that is gone, and print a page of addresses before; and ask before it sends a piece over
// a network (comm/traffic.h).
void prepare_ucx(bool one_host) {
  setenv("UCX_HANDLE_ERRORS", "none", 0);
  if (!one_host) setenv("UCX_RNDV_THRESH", std::to_string(2 * kPieceBytes).c_str(), 0);
}

}  // namespace

std::vector<fs::path> plugin_folders() {
  const fs::path program = fs::read_symlink("/proc/self/exe").parent_path();
  return {program, (program / "../lib/ebb").lexically_normal()};
}

Launcher launcher() {
  const struct {
    Launcher::Kind kind;
    const char *rank, *size, *local, *local_rank, *hosts;
  } known[] = {{Launcher::Kind::openmpi, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
                "OMPI_COMM_WORLD_LOCAL_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", nullptr},
               {Launcher::Kind::mpich, "PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS", "MPI_LOCALRANKID",
                nullptr},
               {Launcher::Kind::openmpi, "PMIX_RANK", "SLURM_STEP_NUM_TASKS",
                "SLURM_NTASKS_PER_NODE", "SLURM_LOCALID", "SLURM_STEP_NUM_NODES"}};
  for (const auto& [kind, rank_name, size_name, local_name, local_rank_name, hosts_name] : known) {
    const auto rank = number_in(rank_name), size = number_in(size_name);
    if (!rank || !size) continue;
    if (*size < 1 || *rank < 0 || *rank >= *size) {
      fail(
          Exit::usage,
          fmt::format("ranks: {}={} and {}={} in the environment: a rank is less than their number",
                      rank_name, *rank, size_name, *size),
          fmt::format("the launcher sets them; without a launcher: unset {} {}", rank_name,
                      size_name));
    }
    const auto local = number_in(local_name), local_rank = number_in(local_rank_name);
    Launcher found{kind, *rank, *size, std::clamp(local.value_or(*size), 1, *size)};
    found.one_host = local == size && (hosts_name == nullptr || number_in(hosts_name) == 1);
    if (local && local_rank && *local_rank >= 0 && *local_rank < found.local) {
      found.local_rank = local_rank;
    }
    return found;
  }
  return {};
}

std::unique_ptr<Peers> open_peers(const Launcher& from, const PeerOptions& options) {
  if (from.kind == Launcher::Kind::none) {
    fail(Exit::usage, "ranks: this process was not started by a launcher, so it has no peers",
         "mpiexec -n N ebb ... starts N of them (apt install mpich, or openmpi-bin)");
  }
  prepare_ucx(options.one_host);
  const Library library = library_of(from.kind);
  auto peers = std::make_unique<MpiPeers>(load(library), options);
  if (peers->rank() != from.rank || peers->size() != from.size) {
    fail(Exit::usage,
         fmt::format("ranks: the launcher says rank {} of {}, {} says rank {} of {}", from.rank,
                     from.size, library.name, peers->rank(), peers->size()),
         fmt::format("the launcher is not {}'s: start ebb with {}", library.name, library.command));
  }
  return peers;
}

}  // namespace ebb
