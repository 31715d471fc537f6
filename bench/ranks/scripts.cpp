// What ranks do in a step, and how long Ebb says that it takes; for bench/ranks/simgrid.
//   ebb_rank_scripts MODEL BATCH RANKS off|state RATE,LATENCY [smpi FOLDER | svg FILE]
// smpi writes a trace of every rank for SimGrid's SMPI to replay, svg a picture. Ops take what a
// middling machine takes, so that the figures are the same everywhere.
#include <fmt/format.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <map>
#include <tuple>

#include "base/error.h"
#include "base/text.h"
#include "kernels/cpu/device.h"
#include "model/step.h"
#include "plan/rank_time.h"
#include "report/rank_timeline.h"

namespace ebb {
namespace {

using Clock = std::chrono::steady_clock;

double since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

DitConfig named_config(const std::string& name) {
  DitConfig c;
  const NamedSize size = named_size(name);
  c.width = size.width;
  c.patch = size.patch;
  set_blocks(c, size.depth, size.heads);
  return c;
}

std::vector<RankScript> write_scripts(const std::string& model, int64_t batch, int ranks,
                                      Shard shard) {
  Machine machine;
  machine.device = &cpu_device();
  const DitConfig config = named_config(model);
  std::vector<RankScript> scripts;
  for (int r = 0; r < ranks; ++r) {
    StepSpec spec;
    spec.batch = batch;
    spec.clip = 1;
    spec.place = {ranks, r, shard};
    scripts.push_back(script_of(write_step(config, spec, *machine.device), machine));
  }
  return scripts;
}

// As SMPI moves messages: those of a stream do not wait for each other, but share the port. So each
// has a channel of its own, by which a replay tells them apart too.
std::vector<RankScript> side_by_side(std::vector<RankScript> scripts) {
  for (RankScript& script : scripts) {
    std::map<std::tuple<bool, int, int>, int> counts;
    for (RankMessage& m : script.messages) {
      m.channel += 16 * counts[{m.sends, m.peer, m.channel}]++;
    }
  }
  return scripts;
}

// SMPI's time-independent traces: one line an action. A second is 1e9 of its flops.
void write_trace(const RankScript& script, int rank, const std::filesystem::path& folder) {
  std::ofstream out(folder / fmt::format("rank{}.txt", rank));
  out << rank << " init\n";
  for (const RankStep& step : script.steps) {
    if (step.kind == RankStep::Kind::compute) {
      out << fmt::format("{} compute {:.3f}\n", rank, step.seconds * 1e9);
      continue;
    }
    const RankMessage& m = script.messages.at(step.message);
    if (step.kind == RankStep::Kind::begin) {
      out << fmt::format("{} {} {} {} {}\n", rank, m.sends ? "isend" : "irecv", m.peer, m.channel,
                         m.bytes);
    } else {
      out << fmt::format("{} wait {} {} {}\n", rank, m.sends ? rank : m.peer,
                         m.sends ? m.peer : rank, m.channel);
    }
  }
  out << rank << " finalize\n";
}

void write_smpi(const std::vector<RankScript>& scripts, const std::filesystem::path& folder) {
  std::filesystem::create_directories(folder);
  std::ofstream list(folder / "list");
  for (size_t r = 0; r < scripts.size(); ++r) {
    write_trace(scripts[r], static_cast<int>(r), folder);
    list << (folder / fmt::format("rank{}.txt", r)).string() << '\n';
  }
}

int run(const std::vector<std::string>& words) {
  if ((words.size() != 5 && words.size() != 7) || (words[3] != "off" && words[3] != "state")) {
    fail(Exit::usage, "wanted: MODEL BATCH RANKS off|state RATE,LATENCY [smpi FOLDER | svg FILE]");
  }
  const auto start = Clock::now();
  const int ranks = static_cast<int>(parse_int(words[2], "RANKS"));
  const std::vector<RankScript> scripts =
      write_scripts(words[0], parse_int(words[1], "BATCH"), ranks,
                    words[3] == "state" ? Shard::state : Shard::off);
  const double written = since(start);
  const bool drawn = words.size() == 7 && words[5] == "svg";
  const Link link = parse_link(words[4], "LINK");
  const auto begun = Clock::now();
  const RankTimes times = simulate(scripts, link, {.timeline = drawn});
  const double played = since(begun);
  const std::vector<RankScript> apart = side_by_side(scripts);
  double computing = 0, waiting = 0;
  size_t bytes = 0;
  for (const RankTime& rank : times.ranks) {
    computing = std::max(computing, rank.computing);
    waiting += rank.waiting / ranks;
  }
  for (const RankScript& script : scripts) {
    bytes += script.steps.size() * sizeof(RankStep) + script.messages.size() * sizeof(RankMessage);
  }
  fmt::print(
      "seconds {:.9f} side_by_side {:.9f} computing {:.6f} waiting {:.6f} events {} script_bytes "
      "{} written_in {:.2f} "
      "played_in {:.3f}\n",
      times.seconds(), simulate(apart, link).seconds(), computing, waiting, times.events, bytes,
      written, played);
  if (drawn) std::ofstream(words[6]) << rank_timeline_svg(times);
  if (words.size() == 7 && !drawn) write_smpi(apart, words[6]);
  return 0;
}

}  // namespace
}  // namespace ebb

int main(int argc, char** argv) {
  try {
    return ebb::run({argv + 1, argv + argc});
  } catch (const std::exception& error) {
    fmt::print(stderr, "error: {}\n", error.what());
    return 2;
  }
}
