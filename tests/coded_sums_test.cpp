// Gradients that go between ranks in fewer bytes.
#include "rank_program_runs.h"

namespace ebb {
namespace {

constexpr int64_t kBatch = 6;
constexpr const char* kCodes[] = {"bf16",        "bf16+feedback", "int8",  "topk:0.1",
                                  "randomk:0.1", "powersgd:2",    "onebit"};

ExchangeCode code_of(const char* text) { return parse_exchange(text).value(); }

Choices coded(const ExchangeCode& code, Choices choices = {}) {
  choices.storage.exchange = code;
  return choices;
}

// Random matrices that low-rank codes begin with, and second moments as a warm-up leaves them: the
// same on every rank.
void begin(Rig& machine, int, int64_t k) {
  if (k > 0) return;
  const Plan& plan = machine.plan();
  for (const Buffer& b : plan.program.buffers) {
    Random random(name_key(b.name));
    if (b.name.starts_with(kWarm)) machine.set(b.name, random_column(b.count(), random));
    if (!b.resident || !b.name.starts_with(kSecondMoment)) continue;
    const std::vector<float> values(b.count(), 0.25f);  // of a buffer that may lie on a disk
    machine.memory().write(plan, plan.program.at(b.name), 0, values.data(), b.bytes());
  }
}

Ranks coded_ranks(const DitConfig& config, const StepSpec& spec, const Choices& choices,
                  const RankPlace& place, Shard shard = Shard::off, int64_t steps = 3) {
  return Ranks(config, spec, choices, place, shard, begin, steps);
}

// But for what is each rank's own.
Bits of_all(const Ranks& ranks, int rank = 0) {
  Bits bits = ranks.found(rank);
  std::erase_if(bits, [](const auto& each) {
    return rest_in(each.first).has_value() || each.first.starts_with(kSumRest);
  });
  return bits;
}

std::vector<float> numbers(const std::string& bits) {
  std::vector<float> values(bits.size() / sizeof(float));
  std::memcpy(values.data(), bits.data(), values.size() * sizeof(float));
  return values;
}

TEST(ExchangeCodes, AreWordsAndBack) {
  for (const char* text : {"fp32", "powersgd:64", "randomk:0.25"}) {
    EXPECT_EQ(exchange_text(code_of(text)), text);
  }
  for (const char* text : kCodes) EXPECT_EQ(exchange_text(code_of(text)), text);
  for (const char* text :
       {"", "bf17", "topk", "topk:", "topk:0", "topk:1", "topk:-0.1", "topk:nan", "topk:0.1x",
        "powersgd:0", "powersgd:65", "powersgd:1.5", "int8+feedback", "randomk:2", "powersgd:"}) {
    EXPECT_FALSE(parse_exchange(text)) << text;
  }
}

TEST(ExchangeCodes, NamesOfWhatWasNotSentSayWhose) {
  const auto rest = rest_in(rest_prefix(12) + "blocks.3.mlp.fc1.weight");
  ASSERT_TRUE(rest);
  EXPECT_EQ(rest->group, 12);
  EXPECT_EQ(rest->tensor, "blocks.3.mlp.fc1.weight");
  for (const char* name : {"rest.x", "rest-1.x", "rest01.x", "rest1", "restx.y", "pos_embed"}) {
    EXPECT_FALSE(rest_in(name)) << name;
  }
}

// Two numbers have one sum, in whatever order: the tree of two leaves.
TEST(CodedSums, OfAllNumbersOfTwoRanksAreTheSumsOfATree) {
  const OneThread one_thread;
  const DitConfig config = uneven_config(Objective::ddpm);
  StepSpec spec = updating(0, kBatch);
  ExchangeCode all = code_of("topk:0.5");
  all.share = 1;
  const Ranks ranks(config, spec, coded(all), groups(2), Shard::off);
  spec.leaves = 2;
  const Bits alone = run_with(config, spec, {});
  ranks.expect_same_as(alone);
}

TEST(CodedSums, WhileSignsWarmUpAreWholeGradients) {
  const OneThread one_thread;
  const DitConfig config = uneven_config(Objective::ddpm);
  StepSpec spec = updating(0.05f, kBatch);
  const ExchangeCode code = exchange_phases(code_of("onebit"), 9)[0].code;
  for (const Shard shard : {Shard::off, Shard::grads}) {
    spec.leaves = 0;
    const Ranks ranks(config, spec, coded(code), groups(2), shard);
    spec.leaves = 2;
    ranks.expect_same_as(run_with(config, spec, {}));
  }
}

// Bits are a matter of the code and of the number of groups alone.
TEST(CodedSums, HaveTheSameBitsHoweverTheyAreMade) {
  const OneThread one_thread;
  DitConfig config = uneven_config(Objective::flow);
  while (config.depth() < 4) config.blocks.push_back(config.blocks.back());
  const StepSpec spec = updating(0.05f, kBatch);
  for (const char* text : kCodes) {
    const ExchangeCode code = code_of(text);
    for (const int data : {2, 3}) {
      SCOPED_TRACE(fmt::format("{} over {}", text, data));
      const Ranks ranks = coded_ranks(config, spec, coded(code), groups(data));
      const Bits plain = of_all(ranks);
      for (int r = 1; r < data; ++r) EXPECT_TRUE(of_all(ranks, r) == plain);
      const Choices small{.micro_batch = 1};
      const Choices layers{.micro_batch = 1, .layer_major = true};
      Choices away;
      away.offload = to_disk(true, false, false);
      coded_ranks(config, spec, coded(code, small), groups(data)).expect_same_as(plain);
      if (code.is_signs()) {
        coded_ranks(config, spec, coded(code, away), groups(data)).expect_same_as(plain);
      }
      coded_ranks(config, spec, coded(code), groups(data), Shard::grads).expect_same_as(plain);
      coded_ranks(config, spec, coded(code, layers), groups(data), Shard::weights)
          .expect_same_as(plain);
    }
  }
}

TEST(CodedSums, GoWithPipelines) {
  const OneThread one_thread;
  DitConfig config = uneven_config(Objective::flow);
  while (config.depth() < 4) config.blocks.push_back(config.blocks.back());
  const StepSpec spec = updating(0, kBatch);
  for (const char* text : kCodes) {
    SCOPED_TRACE(text);
    const ExchangeCode code = code_of(text);
    const Bits plain = of_all(coded_ranks(config, spec, coded(code), groups(2)));
    Choices late{.micro_batch = 1};
    late.stage_order = StageOrder::late;
    for (const Shard shard : {Shard::off, Shard::grads}) {
      coded_ranks(config, spec, coded(code, late), pipeline(config, 2, 2), shard)
          .expect_same_as(plain);
      Choices whole;  // a single micro-batch, whose matrices are made late
      whole.stage_order = StageOrder::late;
      coded_ranks(config, spec, coded(code, whole), pipeline(config, 2, 2), shard)
          .expect_same_as(plain);
    }
  }
}

// Of all ranks: what is sent, and what is kept for later.
TEST(CodedSums, SendThePlannedShareOfTheBytes) {
  const OneThread one_thread;
  const DitConfig config = small_config();
  const StepSpec spec = updating(0, kBatch);
  const auto sent = [&](const char* text, Shard shard) {
    const Ranks ranks = coded_ranks(config, spec, coded(code_of(text)), groups(2), shard, 1);
    return ranks.sent_bytes(0) + ranks.sent_bytes(1);
  };
  int64_t all = 0, codable = 0;
  for (const ParamSpec& p : parameters(config)) {
    if (!p.trained()) continue;
    all += p.count();
    if (code_of("bf16").codes(p)) codable += p.count();
  }
  const auto whole = static_cast<double>(4 * (all - codable));
  const auto near = [&](int64_t found, double wanted) {
    EXPECT_NEAR(static_cast<double>(found), 2 * (whole + wanted), 0.02 * wanted + 4000);
  };
  const auto n = static_cast<double>(codable);
  near(sent("bf16", Shard::off), 2 * n);
  near(sent("int8", Shard::off), (1 + 4.0 / 256) * n);
  near(sent("topk:0.1", Shard::off), 0.8 * n);
  near(sent("randomk:0.1", Shard::off), 0.8 * n);
}

// P / 4 (n - 1) / n a rank of what is coded, and 8 P (n - 1) / n of what is not.
TEST(CodedSums, OfSignsSendAQuarterOfAByteForEachNumber) {
  const OneThread one_thread;
  const DitConfig config = small_config();
  const ExchangeCode code = code_of("onebit");
  int64_t coded_numbers = 0, others = 0;
  for (const ParamSpec& p : parameters(config)) {
    if (p.trained()) (code.codes(p) ? coded_numbers : others) += p.count();
  }
  for (const int data : {2, 3}) {
    for (const Shard shard : {Shard::off, Shard::grads}) {
      const Ranks ranks =
          coded_ranks(config, updating(0, kBatch), coded(code), groups(data), shard, 1);
      int64_t all = 0;
      for (int r = 0; r < data; ++r) all += ranks.sent_bytes(r);
      // Owners keep the sums of what is not coded, and hand on all weights.
      const double of_coded = 0.25 + (shard == Shard::off ? 0 : 4), whole = 8;
      EXPECT_NEAR(static_cast<double>(all),
                  (data - 1) * (of_coded * coded_numbers + whole * others),
                  0.01 * 0.25 * (data - 1) * coded_numbers + 600 * data)
          << data;
    }
  }
}

// Errors that are made good later: what all ranks have not sent and what was added is all that
// they made. Twice as much learning from the sums would show.
TEST(CodedSums, NothingIsLostThatFeedbackKeeps) {
  const OneThread one_thread;
  const DitConfig config = small_config();
  const StepSpec spec = updating(0, kBatch);
  const std::string name = "blocks.1.mlp.fc1.weight";
  const Ranks whole(config, spec, {}, groups(2), Shard::off, begin, 1);
  for (const char* text : {"bf16+feedback", "topk:0.1", "randomk:0.1", "powersgd:2", "onebit"}) {
    SCOPED_TRACE(text);
    const Ranks ranks = coded_ranks(config, spec, coded(code_of(text)), groups(2), Shard::off, 1);
    // AdamW's first moment is a tenth of the first sum.
    const std::vector<float> sum = numbers(ranks.found(0).at("m." + name));
    const std::vector<float> wanted = numbers(whole.found(0).at("m." + name));
    if (text == std::string("bf16+feedback")) continue;  // the rest is in 16 bits
    const std::vector<float> own = numbers(ranks.found(0).at(rest_prefix(0) + name));
    const std::vector<float> others = numbers(ranks.found(1).at(rest_prefix(1) + name));
    // Signs are of the moment itself, and the one that adds them up keeps something too.
    const bool signs = text == std::string("onebit");
    std::vector<float> of_sum(sum.size());
    for (int r = 0; r < 2 && signs; ++r) {
      const auto kept = ranks.found(r).find(kSumRest + name);
      if (kept != ranks.found(r).end()) of_sum = numbers(kept->second);
    }
    double off = 0, all = 0;
    for (size_t i = 0; i < sum.size(); ++i) {
      const double rest = signs ? own[i] + others[i] + of_sum[i] : 0.1 * (own[i] + others[i]);
      off += std::pow(sum[i] + rest - wanted[i], 2);
      all += std::pow(wanted[i], 2);
    }
    EXPECT_LT(std::sqrt(off / all), 1e-5);
  }
}

// What is kept can lie beyond a lane, by itself or with the rest of the state.
TEST(CodedSums, RestsOnDiskLeaveTheBits) {
  const OneThread one_thread;
  DitConfig config = uneven_config(Objective::flow);
  config.width = 32;
  while (config.depth() < 4) config.blocks.push_back(config.blocks.back());
  const StepSpec spec = updating(0.05f, kBatch);
  for (const char* text : {"bf16+feedback", "topk:0.1", "randomk:0.1", "powersgd:2", "onebit"}) {
    SCOPED_TRACE(text);
    const auto ranks = [&](const Offload& offload, const RankPlace& place, Shard shard) {
      Choices choices = coded(code_of(text), {.micro_batch = place.pipe > 1 ? 1 : 0});
      choices.offload = offload;
      return coded_ranks(config, spec, choices, place, shard);
    };
    const auto expect_same_rests = [&](const Offload& offload, const RankPlace& place,
                                       Shard shard) {
      const Ranks plain = ranks({}, place, shard), away = ranks(offload, place, shard);
      for (int r = 0; r < place.ranks(); ++r) expect_same(plain.found(r), away.found(r));
      EXPECT_LT(away.most_resident(), plain.most_resident() + kDiskMemory);
    };
    for (const Shard shard : {Shard::off, Shard::grads, Shard::weights}) {
      expect_same_rests(rests_to_disk(shard == Shard::grads), groups(2), shard);
    }
    expect_same_rests(rests_to_disk(true), pipeline(config, 2, 2), Shard::grads);
  }
}

// No more of them is in memory than what a few tensors have, and each comes once for every time
// that its code goes over it, ahead of that.
TEST(CodedSums, RestsOnDiskComeTensorByTensor) {
  DitConfig config;
  config.width = 64;
  config.head_width = 32;
  set_blocks(config, 24, 2);
  for (const auto& [text, visits] : {std::pair{"topk:0.1", 1}, {"powersgd:2", 2}}) {
    SCOPED_TRACE(text);
    StepSpec spec = placed(updating(1, 2), groups(2), 0, Shard::off);
    spec.choices = coded(code_of(text));
    spec.choices.schedule = plain_schedule(std::vector<KeepSet>(config.depth()));
    const PlanSet plain = make_plans({write_step(config, spec, cpu_device())});
    spec.choices.offload = rests_to_disk(false);
    const PlanSet away = make_plans({write_step(config, spec, cpu_device())});
    const int64_t all = parameter_count(config) * 4;
    EXPECT_GT(away.total_away_bytes(), all * 9 / 10);
    EXPECT_LT(away.arena_bytes - kDiskMemory, plain.arena_bytes - all * 8 / 10);
    std::map<std::string, int> begun;
    const Program& program = away.plans[0].program;
    for (size_t i = 0; i < program.ops.size(); ++i) {
      const auto* transfer = std::get_if<Transfer>(&program.ops[i].params);
      if (transfer == nullptr || !transfer->fetches() || !transfer->begins()) continue;
      ++begun[program.buffer(program.ops[i].reads[0]).name];
      const Op& next = program.ops[i + 1];
      const bool at_once = std::holds_alternative<Transfer>(next.params) && !next.updates.empty() &&
                           next.updates[0] == program.ops[i].writes[0];
      EXPECT_FALSE(at_once) << program.ops[i].name;
    }
    EXPECT_GT(begun.size(), 50u);
    for (const auto& [name, times] : begun) EXPECT_EQ(times, visits) << name;
  }
}

// A step that is not applied has sent nothing that counts.
TEST(CodedSums, ASkippedStepChangesNothingThatIsKept) {
  const OneThread one_thread;
  const DitConfig config = small_config();
  const StepSpec spec = updating(0, kBatch);
  const auto poisoned = [&](Rig& machine, int rank, int64_t k) {
    begin(machine, rank, k);
    if (k == 0) return;
    // Of the last sample, which is another rank's.
    Column x(kBatch * config.channels * config.pixels(), 0.5);
    x.back() = INFINITY;
    machine.set(kBatchX, x);
  };
  std::vector<Choices> all;
  for (const char* text : kCodes) all.push_back(coded(code_of(text)));
  all.push_back(all.back());
  all.back().offload = rests_to_disk(false);
  for (const Choices& choices : all) {
    SCOPED_TRACE(exchange_text(choices.storage.exchange));
    const Ranks one = coded_ranks(config, spec, choices, groups(2), Shard::off, 1);
    const Ranks two(config, spec, choices, groups(2), Shard::off, poisoned, 2);
    for (int r = 0; r < 2; ++r) {
      for (const auto& [name, bits] : one.found(r)) {
        const bool told = name == kLoss || name == kNorms || name == kClip;
        EXPECT_TRUE(told || two.found(r).at(name) == bits) << name;
      }
    }
  }
}

}  // namespace
}  // namespace ebb
