#include "plan/techniques.h"

#include "model/optimizer.h"
#include "plan/layout.h"
#include "plan/technique_kinds.h"

namespace ebb {

const char* exactness_name(Exactness kind) {
  constexpr const char* kNames[] = {"exact", "rounding", "lossy"};
  return kNames[static_cast<int>(kind)];
}

const std::vector<Technique>& techniques() {
  static const std::vector<Technique> kTechniques = {
      exchange_technique(),   recompute_technique(),   micro_batches_technique(),
      order_technique(),      release_technique(),     offload_technique(),
      shard_technique(),      stage_order_technique(), tensor_technique(),
      tokens_technique(),     precision_technique(),   gradients_technique(),
      galore_technique(),     moments_technique(),     average_technique(),
      label_rows_technique(), optimizer_technique()};
  return kTechniques;
}

std::vector<AllowWord> allow_words() {
  std::vector<AllowWord> all;
  for (const Technique& t : techniques()) all.insert(all.end(), t.words.begin(), t.words.end());
  return all;
}

namespace {

void check_decisions_with_tree(const Decisions& d, const StepSpec& spec) {
  const auto contradicts = [&](const char* one, const char* why) {
    fail(Exit::usage, fmt::format("{} contradicts --sum tree:{}: {}", one, spec.leaves, why),
         "leave one of them out");
  };
  if (d.release.value_or(false)) {
    contradicts("--release on", "a gradient is complete only when all leaves are added up");
  }
  if (d.gradient.value_or(DType::f32) != DType::f32) {
    contradicts("--grad-precision bf16", "sums of leaves would be rounded once more each");
  }
}

// The same where ranks have parts of blocks.
void check_decisions_with_parts(const Decisions& d, const StepSpec& spec) {
  const auto contradicts = [&](const std::string& one, const char* why, const char* instead) {
    fail(Exit::usage,
         fmt::format("{} contradicts --ranks {}: {}", one, layout_text(spec.place), why), instead);
  };
  if (d.release.value_or(false)) {
    contradicts("--release on",
                "of a tensor that ranks have parts of none knows the norm by itself",
                "leave --release out");
  }
  if (d.activation.value_or(DType::f32) != DType::f32) {
    contradicts("--precision in 16 bits", "each rank would round its part of every sum",
                "leave --precision out, or give --ranks pipe=N");
  }
  if (d.exchange && d.exchange->any()) {
    contradicts("--exchange " + exchange_text(*d.exchange),
                "what is not sent of a part would be another tensor for another number of parts",
                "leave --exchange out, or give --ranks data=N");
  }
  if (d.galore_rank.value_or(0) != 0) {
    contradicts("--galore", "directions of a part are not those of the whole matrix",
                "leave --galore out, or give --ranks data=N --shard grads");
  }
  if (spec.optimizer == Optimizer::adafactor) {
    contradicts("--optimizer adafactor", "its moments are means over whole rows and columns",
                "give --optimizer adamw or lion, or --ranks pipe=N");
  }
}

// Of tokens that are cut, by the names of both.
void check_cut_tokens(const Decisions& d, const StepSpec& spec) {
  if (!d.cut_tokens.value_or(false)) return;
  const auto contradicts = [](const std::string& other, const std::string& why,
                              const std::string& hint) {
    fail(Exit::usage, fmt::format("--tokens cut contradicts {}: {}", other, why), hint);
  };
  const int64_t parts = spec.place.tensor, own = samples_together(spec, 0);
  if (parts == 1) {
    contradicts("a run without --ranks tensor=2 or more",
                "nobody else has parts of the same blocks",
                "leave --tokens out, or start several: mpiexec -n 2 ebb ... --ranks tensor=2");
  }
  const auto too_few = [&](const std::string& samples, const std::string& hint) {
    contradicts(fmt::format("{} on --ranks {}", samples, layout_text(spec.place)),
                fmt::format("each of {} ranks takes samples of every micro-batch", parts), hint);
  };
  if (own < parts) {
    too_few(fmt::format("--batch {}, of which {} go through the network together", spec.batch, own),
            "leave --tokens out, or give a larger --batch");
  }
  if (d.micro_batch && *d.micro_batch < parts) {
    too_few(fmt::format("--micro-batch {}", *d.micro_batch),
            fmt::format("leave --tokens out, or give --micro-batch {} or more", parts));
  }
}

// What does not go together over ranks, by both names.
void check_decisions_over_ranks(const Decisions& d, const StepSpec& spec) {
  const auto contradicts = [&](const std::string& one, const std::string& why,
                               const std::string& instead) {
    fail(Exit::usage,
         fmt::format("{} contradicts --ranks {}: {}", one, layout_text(spec.place), why), instead);
  };
  const bool shards = d.shard.value_or(Shard::off) != Shard::off;
  if (shards && spec.place.data == 1) {
    fail(Exit::usage,
         "--shard contradicts a run in which no two ranks have the same blocks: there is no other "
         "to keep their state",
         "leave --shard out, or give --ranks data=N");
  }
  if (spec.leaves > 0) check_decisions_with_tree(d, spec);
  if (spec.place.pipe == 1 && d.stage_order.value_or(StageOrder::in_turn) != StageOrder::in_turn) {
    fail(Exit::usage, "--stage-order zb-h1 contradicts a run without stages",
         "leave --stage-order out, or give --ranks pipe=N");
  }
  if (spec.place.alone()) return;
  if (spec.place.tensor > 1) check_decisions_with_parts(d, spec);
  if (spec.place.pipe > 1 && d.layer_major.value_or(false)) {
    contradicts("--order layer", "a stage takes micro-batches in turn, forward and backward",
                "leave --order out");
  }
  if (spec.place.pipe > 1 && d.release.value_or(false)) {
    contradicts("--release on", "a stage's gradients are complete only with its last micro-batch",
                "leave --release out");
  }
  const bool codes = d.exchange && d.exchange->any();
  if (spec.place.data > 1 && spec.leaves == 0 && !codes && d.micro_batch &&
      accumulates(spec, *d.micro_batch) && !d.layer_major.value_or(true)) {
    contradicts("--order batch with --micro-batch",
                "each rank would wait for all micro-batches of the one before it",
                "leave --order to the planner, --micro-batch at the rank's share of the batch, or "
                "give --sum tree:8");
  }
  const bool in_parts =
      spec.segments().size() > 1 || (d.micro_batch && accumulates(spec, *d.micro_batch));
  if (d.shard == Shard::weights && spec.place.pipe == 1 && in_parts &&
      !d.layer_major.value_or(true)) {
    contradicts("--order batch with --shard weights",
                "all weights would be brought for every micro-batch",
                "leave --order to the planner, or give --shard grads");
  }
  if (d.gradient.value_or(DType::f32) != DType::f32) {
    contradicts("--grad-precision bf16",
                "each rank would round its part of a sum, and their number would be part of the "
                "result",
                "leave --grad-precision out: --shard grads saves more");
  }
  if (shards && spec.group_lasso > 0) {
    contradicts("--shard with --group-lasso", "a structure's tensors lie with several ranks",
                "give --shard off, or --l1 instead");
  }
}

// Steps to warm up in are for a code that has some use for them.
void check_exchange_warmup(const Decisions& d) {
  if (d.exchange_warmup == 0 || (d.exchange && warms_up(*d.exchange))) return;
  if (!d.exchange && d.allows("topk")) return;
  const std::string warmup = fmt::format("--exchange-warmup {}", d.exchange_warmup);
  constexpr const char* kHint =
      "leave --exchange-warmup out, or give it with --exchange onebit, topk:F or randomk:F, F "
      "below "
      "0.25";
  if (!d.exchange) {
    fail(Exit::usage, fmt::format("{}: without --exchange there is no code to warm up for", warmup),
         kHint);
  }
  fail(Exit::usage,
       fmt::format("{} contradicts --exchange {}: {}", warmup, exchange_text(*d.exchange),
                   d.exchange->is_few() ? "a warm-up begins with a quarter of the numbers"
                                        : "it sends as much from the first step on"),
       kHint);
}

// Of codes for gradients, by the names of both.
void check_exchange(const Decisions& d, const StepSpec& spec) {
  check_exchange_warmup(d);
  if (!d.exchange || !d.exchange->any()) return;
  const auto contradicts = [&](const std::string& other, const std::string& why,
                               const std::string& hint) {
    fail(Exit::usage,
         fmt::format("--exchange {} contradicts {}: {}", exchange_text(*d.exchange), other, why),
         hint);
  };
  if (spec.place.data == 1) {
    contradicts("a run without --ranks data=2 or more",
                "nobody else has gradients of the same weights",
                "leave --exchange out, or start several: mpiexec -n 2 ebb ... --ranks data=2");
  }
  if (d.exchange->is_signs()) {
    const OptimizerKind& optimizer = optimizers()[static_cast<size_t>(spec.optimizer)];
    const char* adamw = "what goes as signs is AdamW's momentum, and its second moments are frozen";
    if (spec.optimizer != Optimizer::adamw) {
      contradicts(fmt::format("--optimizer {}", optimizer.name), adamw, "leave one of them out");
    }
    if (d.galore_rank.value_or(0) != 0) contradicts("--galore", adamw, "leave one of them out");
    if (d.moments.value_or(Moments::f32) == Moments::coded) {
      contradicts("--moments 8bit", "every rank takes part in the momentum as it is",
                  "leave one of them out");
    }
  }
  if (spec.leaves > 0) {
    contradicts(fmt::format("--sum tree:{}", spec.leaves),
                "codes are added in the order of the ranks", "leave --sum out");
  }
  if (d.release.value_or(false)) {
    contradicts("--release on",
                d.exchange->feedback
                    ? "with two passes what was left of the last step would be added twice"
                    : "whole gradients come when all ranks have sent theirs",
                "leave --release out: --shard grads saves more");
  }
}

// Of rows of the label table, by the names of both.
void check_label_rows(const Decisions& d, const DitConfig& config, const StepSpec& spec) {
  if (!d.label_rows.value_or(false)) return;
  const auto contradicts = [](const std::string& other, const std::string& why) {
    fail(Exit::usage, fmt::format("--label-rows on contradicts {}: {}", other, why),
         "leave --label-rows out");
  };
  if (config.classes == 0) contradicts("--classes 0", "there are no labels");
  if (!spec.update) contradicts("the gradients that are asked for", "they are the whole table's");
  if (spec.optimizer != Optimizer::adamw) {
    contradicts(
        fmt::format("--optimizer {}", optimizers()[static_cast<size_t>(spec.optimizer)].name),
        "only what AdamW does to a row can be done later");
  }
  if (d.moments.value_or(Moments::f32) == Moments::coded) {
    contradicts("--moments 8bit", "rows share blocks of codes with each other");
  }
  if (d.shard.value_or(Shard::off) != Shard::off) {
    contradicts("--shard", "every rank updates the rows that it reads by itself");
  }
}

// Of moments in a small space, by the names of both.
void check_galore(const Decisions& d, const StepSpec& spec) {
  if (d.galore_rank.value_or(0) == 0) return;
  const auto contradicts = [](const std::string& other, const std::string& why) {
    fail(Exit::usage, fmt::format("--galore contradicts {}: {}", other, why), "leave --galore out");
  };
  if (!spec.update) contradicts("the gradients that are asked for", "no moments are kept of them");
  if (spec.optimizer != Optimizer::adamw) {
    contradicts(
        fmt::format("--optimizer {}", optimizers()[static_cast<size_t>(spec.optimizer)].name),
        "it is AdamW's two moments that are kept in a small space");
  }
}

}  // namespace

void check_decisions(const Decisions& d, const DitConfig& config, const StepSpec& spec) {
  check_label_rows(d, config, spec);
  check_exchange(d, spec);
  check_galore(d, spec);
  check_cut_tokens(d, spec);
  const bool several = d.micro_batch && accumulates(spec, *d.micro_batch);
  const int64_t own = largest_segment(spec);
  if (d.micro_batch && *d.micro_batch > own) {
    fail(Exit::usage,
         spec.leaves > 0
             ? fmt::format("--micro-batch: found {}, more than the {} samples of --batch {} that a "
                           "leaf of --sum tree:{} has",
                           *d.micro_batch, own, spec.batch, spec.leaves)
         : spec.place.alone()
             ? fmt::format("--micro-batch: found {}, more than --batch {}", *d.micro_batch, own)
             : fmt::format("--micro-batch: found {}, more than the {} samples of --batch {} that a "
                           "rank has",
                           *d.micro_batch, own, spec.batch),
         "a micro-batch is a part of the batch");
  }
  check_decisions_over_ranks(d, spec);
  if (several && d.release.value_or(false) && !d.layer_major.value_or(true)) {
    fail(Exit::usage,
         fmt::format("--release on contradicts --order batch with --micro-batch {} of --batch {}: "
                     "a gradient is complete only after the last micro-batch",
                     *d.micro_batch, spec.batch),
         "leave --order to the planner, or --micro-batch at the whole batch");
  }
  const OptimizerKind& optimizer = optimizers()[static_cast<size_t>(spec.optimizer)];
  if (d.moments.value_or(Moments::f32) == Moments::coded && !optimizer.codes_moments) {
    fail(Exit::usage,
         fmt::format("--moments 8bit contradicts --optimizer {}: it keeps no moments of the "
                     "parameters' size",
                     optimizer.name),
         "leave --moments out");
  }
  if (d.optimizer && !spec.update) {
    fail(Exit::usage, "--optimizer contradicts the gradients that are asked for",
         "leave --optimizer out");
  }
  if (d.release.value_or(false) && !spec.update) {
    fail(Exit::usage, "--release on contradicts the gradients that are asked for",
         "leave --release out");
  }
}

void settle(Decisions& decisions, const Choices& choices) {
  for (const Technique& t : techniques()) {
    if (t.settle) t.settle(decisions, choices);
  }
}

int used_reluctantly(const Choices& choices) {
  int sum = 0;
  for (const Technique& t : techniques()) sum += t.reluctance(choices);
  return sum;
}

std::vector<TechniqueUse> techniques_in_use(const DitConfig& config, const StepSpec& spec) {
  std::vector<TechniqueUse> used;
  for (const Technique& t : techniques()) {
    std::string setting = t.setting(config, spec);
    if (!setting.empty()) used.push_back({t.name, std::move(setting), exactness_name(t.kind)});
  }
  return used;
}

}  // namespace ebb
