#include "cli/ranks.h"

#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <bit>
#include <cstdio>
#include <optional>

#include "api/impl.h"
#include "api/resolve.h"
#include "base/error.h"
#include "base/text.h"
#include "base/threads.h"
#include "cli/complain.h"
#include "cli/resolve.h"
#include "cli/signals.h"
#include "cli/this_machine.h"
#include "comm/agreement.h"
#include "comm/launcher.h"
#include "comm/mpi_worker.h"
#include "machine/machine_file.h"
#include "machine/measure_link.h"
#include "plan/layout.h"
#include "run/disk_store.h"
#include "state/checkpoint.h"

namespace ebb {

namespace {

// The others hear why, if they can. Nothing of MPI may be called any more, not even by its exit
// handlers.
[[noreturn]] void end_alone(Peers* peers, int code, const char* why) {
  if (peers != nullptr) peers->abandon(why);
  std::fflush(stdout);
  std::fflush(stderr);
  _exit(code);
}

// Where the others are lost while this rank computes, which may take long: nobody waits for what it
// makes.
std::function<void(const std::string&)> overdue_end(const std::filesystem::path& out) {
  return [out, rank = launcher().rank](const std::string& what) {
    const auto kept = newest_checkpoint(out);
    complain(Exit::peer,
             fmt::format("rank {}: {}; rank {} was busy; {}", rank, what, rank,
                         kept ? "the last checkpoint is " + kept->string() : "nothing was saved"),
             "what was saved before is intact: --resume goes on from there");
    end_alone(nullptr, static_cast<int>(Exit::peer), "");
  };
}

int run_together(const std::string& verb, OverRanks over_ranks,
                 const std::vector<std::string>& args, std::unique_ptr<Peers>& peers) {
  std::optional<Settings> settings;
  std::optional<Error> refused;
  try {
    settings = parse_settings(verb, args);
  } catch (const Error& e) {
    refused = e;
  }
  PeerOptions options;
  if (settings) {
    options.timeout = std::chrono::seconds(settings->peer_timeout);
    options.overdue = overdue_end(settings->out);
  }
  options.one_host = launcher().one_host;
  peers = open_peers(launcher(), options);
  agree(peers.get(), [&] {
    if (refused) throw Error(*refused);
    if (over_ranks != nullptr) return;
    fail(Exit::usage,
         fmt::format("ebb {} runs in one process, found {} ranks", verb, peers->size()),
         fmt::format("start it without mpiexec: ebb {} ...", verb));
  });
  return over_ranks(std::move(*settings), *peers);
}

// What all ranks fail with alike is said by the first.
int run_or_complain_together(const std::string& verb, OverRanks over_ranks,
                             const std::vector<std::string>& args, std::unique_ptr<Peers>& peers) {
  try {
    return run_together(verb, over_ranks, args, peers);
  } catch (const SharedError& e) {
    if (peers->rank() == 0) complain(e, verb);
    return static_cast<int>(e.code());
  }
}

}  // namespace

int run_over_ranks(const std::string& verb, OverRanks over_ranks,
                   const std::vector<std::string>& args) {
  std::unique_ptr<Peers> peers;
  const std::string who = fmt::format("rank {}: ", launcher().rank);
  // Hydra sends it to those who are left when a rank has ended, and only then do MPI libraries that
  // have started catch it.
  signal(SIGUSR1, SIG_IGN);
  // MPI libraries end a process where another is gone.
  ask_before_ending(MpiWorker::outlive_mpi);
  try {
    const int code = run_or_complain_together(verb, over_ranks, args, peers);
    peers->leave();
    return code;
  } catch (const Error& e) {
    end_alone(peers.get(), complain(e, verb, who), e.what());
  } catch (const std::exception& e) {
    constexpr int kBug = 70;
    complain(Exit::usage, who + "a bug in ebb: " + e.what(), "please report it with the command");
    end_alone(peers.get(), kBug, e.what());
  }
}

namespace {

constexpr std::string_view kAutoOf = "auto:";  // so many, for plans without them

std::string ranks_at(const Settings& s) { return s.has("ranks") ? s.given.at("ranks") : "--ranks"; }

int started(const Peers* peers) { return peers != nullptr ? peers->size() : 1; }

void check_started(const Settings& s, const Layout& chosen, const Peers* peers) {
  if (chosen.ranks() == started(peers)) return;
  fail(Exit::usage,
       fmt::format("{} {}: wanted {} processes, found {}", ranks_at(s), layout_text(chosen),
                   chosen.ranks(), started(peers)),
       fmt::format("start it with mpiexec -n {} ebb {} ... (apt install mpich)", chosen.ranks(),
                   s.verb));
}

}  // namespace

void check_equal_ranks(const Settings& s, const Peers* peers) {
  const Layout layout = parse_layout(s.ranks, ranks_at(s)).value_or(Layout{started(peers)});
  if (layout.pipe > 1 || layout.tensor > 1) {
    fail(Exit::usage,
         fmt::format("{} {}: ebb {} cuts no model: every rank has all of it", ranks_at(s),
                     layout_text(layout), s.verb),
         fmt::format("give --ranks data={}, or leave it out", layout.ranks()));
  }
  check_started(s, layout, peers);
}

RankPlace resolve_place(const Settings& s, const Peers* peers) {
  const std::string where = ranks_at(s);
  const bool plans = s.verb == "plan";
  if (plans && s.ranks.starts_with(kAutoOf)) {
    const int64_t ranks = parse_int(s.ranks.substr(kAutoOf.size()), where);
    if (ranks < 1 || ranks > kMostRanks) {
      fail(Exit::usage, fmt::format("{}: found {}, wanted auto:1 to auto:{}", where,
                                    printable(s.ranks), kMostRanks));
    }
    return {static_cast<int>(ranks)};
  }
  const std::optional<Layout> layout = parse_layout(s.ranks, where);
  const Layout chosen = layout.value_or(Layout{started(peers)});
  if (!plans) check_started(s, chosen, peers);
  if (!plans && chosen.ranks() == 1 && s.has("link")) {
    fail(Exit::usage,
         fmt::format("{} {}: one process has nobody to be linked to", s.given.at("link"),
                     printable(s.link)),
         fmt::format("leave it out, or start several with mpiexec -n 2 ebb {} ...", s.verb));
  }
  if (layout && chosen.data > s.batch) {
    fail(Exit::usage,
         fmt::format("{} {}: more ranks than the {} samples of --batch", where, layout_text(chosen),
                     s.batch),
         "each rank takes at least one sample of every batch");
  }
  RankPlace place{chosen.data, chosen.pipe, peers != nullptr ? peers->rank() : 0};
  place.tensor = chosen.tensor;
  check_parts(s, place);
  return place;
}

void check_parts(const Settings& s, const RankPlace& place) {
  if (place.tensor == 1 || s.prune_to <= 0) return;
  fail(Exit::usage,
       fmt::format("--prune-to contradicts {} {}: a block might keep fewer heads than it has ranks",
                   ranks_at(s), layout_text(place)),
       "leave --prune-to out, or give --ranks data=N or pipe=N");
}

bool layout_is_open(const Settings& s, const RankPlace& place) {
  return !place.alone() && s.ranks.starts_with("auto");
}

int resolve_leaves(const Settings& s, const RankPlace& place) {
  const int leaves = parse_sum(s.sum, s.has("sum") ? s.given.at("sum") : "--sum");
  const bool codes = s.decisions.exchange && s.decisions.exchange->any();
  if (leaves == 0 && place.data > 1 && place.pipe > 1 && !codes) {
    fail(Exit::usage,
         fmt::format("--sum chain contradicts --ranks {}: each pipeline would wait for all "
                     "micro-batches of the one before it",
                     layout_text(place)),
         "give --sum tree:8, or another power of two: the same bits on as many ranks or fewer");
  }
  if (leaves > 0 && leaves % place.data != 0 && !layout_is_open(s, place)) {
    fail(Exit::usage,
         fmt::format("--sum tree:{} contradicts --ranks {}: {} leaves do not divide by {} groups",
                     leaves, layout_text(place), leaves, place.data),
         "give a number of groups that is a power of two, and a tree of as many leaves or more");
  }
  if (leaves > s.batch) {
    fail(Exit::usage,
         fmt::format("--sum tree:{}: more leaves than the {} samples of --batch", leaves, s.batch),
         "each leaf has at least one sample of every batch");
  }
  return leaves;
}

namespace {

// What rank 0 has measured, with this host's own directories.
MeasuredMachine on_this_host(const std::string& described, const Settings& s) {
  const std::string directory = resolve_offload(s).string();
  const MeasuredMachine all =
      MeasuredMachine::from_json(described, "the machine of rank 0", directory);
  return changed(all, [&](Machine& machine) {
    for (LaneKind& lane : machine.lanes) lane.open = disk_lane(directory).open;
  });
}

}  // namespace

void compare_ranks(Peers& peers, const Machine& machine, const std::string& settings) {
  expect_same(peers, "program and CPU", machine.device->kernels(),
              "start the same build on CPUs of the same kind; -DEBB_PORTABLE=ON makes one for any "
              "x86-64-v3");
  expect_same(peers, "settings", settings, "give all ranks the same flags");
}

void compare_plans(Peers& peers, const PlannedRun& planned) {
  std::string plan;
  for (const RankBytes& rank : planned.ranks) {
    plan += fmt::format("arena {} sent {}\n", rank.arena_bytes, rank.sent_bytes);
  }
  expect_same(peers, "plan", plan, "this is a bug in ebb: please report it with the command");
}

namespace {

// Where the ranks of a host have as many threads as it has CPUs, each keeps to its own: threads
// that carry messages wake often, and would push those that compute from one CPU to another.
void keep_to_own_cpus() {
  const Launcher from = launcher();
  const int own = team_threads();
  if (from.local_rank && from.local > 1 && from.local * own == allowed_cpus()) {
    keep_to_cpus(*from.local_rank * own, own);
  }
}

}  // namespace

MeasuredMachine resolve_machine_together(const Settings& s, Peers& peers) {
  // The CPUs are for all ranks of this host.
  if (s.threads == 0) {
    const int each = std::max(1, allowed_cpus() / launcher().local);
    set_team_threads(std::min(team_threads(), each));
  }
  std::optional<MeasuredMachine> own;
  agree(&peers, [&] {
    if (peers.rank() == 0) own = resolve_machine(s);
  });
  const std::string described = from_first(peers, own ? own->json() : "");
  agree(&peers, [&] {
    if (peers.rank() == 0) return;
    resolve_threads(s);
    own = with_link(on_this_host(described, s), s);
    if (own->threads() != team_threads()) {
      fail(Exit::usage,
           fmt::format("found {} threads, wanted the {} of rank 0", team_threads(), own->threads()),
           "give --threads to all");
    }
  });
  keep_to_own_cpus();
  return changed(*own, [](Machine& machine) { machine.peers_bytes = kPeersRunningBytes; });
}

MeasuredMachine with_link_between(const MeasuredMachine& machine, const Settings& s, Peers& peers,
                                  const std::function<void(const std::string& line)>& say) {
  if (!s.link.empty()) return machine;
  const Link link = measure_link(peers);
  if (peers.rank() == 0) {
    say(fmt::format("link between ranks: {} (measured: --link {})", link_words(link),
                    link_text(link)));
  }
  return with_link(machine, link);
}

int64_t resolve_budget_of_rank(const Settings& s, const MeasuredMachine& machine) {
  return s.memory > 0 ? s.memory : budget_of(0, inside(machine)) / launcher().local;
}

int agreed_signal(Peers* peers) {
  const int own = stop_signal();
  if (peers == nullptr) return own;
  return std::countr_zero(peers->any(own > 0 ? uint64_t{1} << own : 0));
}

}  // namespace ebb
