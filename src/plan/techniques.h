// The table of techniques: one entry says all of a technique that is not its ops - how a user
// decides on it, what it offers the search, how it is shown, kept in settings.toml, measured by
// `compare` and named in a refusal. Whoever deals with techniques loops over it.
#pragma once

#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "model/step.h"
#include "plan/machine.h"

namespace ebb {

// What the user has decided; the rest is the planner's. A technique that changes numbers is used
// only where it is decided on or allowed, by its word of --allow.
struct Decisions {
  std::optional<int64_t> micro_batch;
  std::optional<bool> layer_major, release;
  std::optional<KeepSet> keep;  // of every block; rules out going through blocks again
  std::optional<DType> activation, gradient, ema;
  std::optional<Moments> moments;
  std::optional<Optimizer> optimizer;
  std::optional<Shard> shard;
  std::optional<StageOrder> stage_order;
  std::optional<bool> cut_tokens;
  std::optional<bool> label_rows;
  std::optional<ExchangeCode> exchange;
  int64_t exchange_warmup = 0;         // steps in which other codes lead up to it
  std::optional<int64_t> galore_rank;  // 0: off; kQuarter: a quarter of the width
  std::set<std::string> allowed;

  static constexpr int64_t kQuarter = -1;
  bool allows(const std::string& word) const { return allowed.contains(word); }
  // Whether moments may come to be in a small space.
  bool projects() const { return galore_rank.value_or(allows("galore") ? kQuarter : 0) != 0; }
};

enum class Exactness : uint8_t { exact, rounding, lossy };
const char* exactness_name(Exactness kind);

// What the search is about.
struct SearchCase {
  const DitConfig& config;
  const StepSpec& spec;
  const Decisions& decisions;
  const Machine& machine;
};

// A row of `compare`: other words for some flags than those that switch everything off.
struct ComparedRow {
  std::string name;
  std::vector<std::pair<std::string, std::string>> words;  // flag, word
  std::string note = "";
};

// A word of --allow.
struct AllowWord {
  const char* word;
  bool of_update = false, of_average = false;  // of no use without one
  bool way_out = true;                         // worth naming where a budget cannot hold
  bool of_adamw = false;                       // contradicts other optimizers
  bool of_parts = true;                        // of use where ranks have parts of blocks
};

struct Technique {
  const char* name;  // as reports call it
  Exactness kind;
  const char* flag;         // without "--"
  std::string values = "";  // as help shows them
  const char* help = "";
  std::vector<AllowWord> words = {};

  // The user's word as a decision, and back; Exit::usage on one that is not known. Absent: there is
  // another kind of flag for it.
  std::function<void(Decisions&, const std::string& word, const std::string& where)> decide = {};
  std::function<std::string(const Decisions&)> decided = {};
  // Decides as was chosen, for a resumed run. Absent: that one may choose again.
  std::function<void(Decisions&, const Choices&)> settle = {};

  // The ways to use it, or not, that go with what is chosen before it. Absent: the schedule's.
  std::function<std::vector<Choices>(const Choices& before, const SearchCase&)> offer = {};
  bool of_ranks = false;  // of no use to one rank alone
  bool of_state = false;  // a matter of the parameters' state alone: changes no stage of a step

  // "4 x 8" where it is in use, else "".
  std::function<std::string(const DitConfig&, const StepSpec&)> setting = {};
  // Kinds of it in use that change numbers or wear a disk.
  std::function<int(const Choices&)> reluctance = [](const Choices&) { return 0; };

  std::string off = {};  // the word that rules it out; of micro-batches the batch
  std::function<std::vector<ComparedRow>(int64_t batch)> rows = {};  // for `compare`
};

const std::vector<Technique>& techniques();

// Those of --allow, in order.
std::vector<AllowWord> allow_words();

// Fails with Exit::usage, naming both, when two of them contradict each other.
void check_decisions(const Decisions& decisions, const DitConfig& config, const StepSpec& spec);

// Decides as was chosen, wherever another choice would be another result.
void settle(Decisions& decisions, const Choices& choices);

// Each counts as if the step took kReluctance longer with it, so that it is used only where it is
// worth that much.
inline constexpr double kReluctance = 0.03;
int used_reluctantly(const Choices& choices);

// Those in use, for people and programs.
struct TechniqueUse {
  std::string name, setting, kind;
};
std::vector<TechniqueUse> techniques_in_use(const DitConfig& config, const StepSpec& spec);

}  // namespace ebb
