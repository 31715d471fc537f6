// Programs of ranks that each have a part of every block: one rank's numbers but for rounding, the
// same bits on all that have the same, and no more bytes than the plan says.
#include "model/slices.h"
#include "rank_program_runs.h"

namespace ebb {
namespace {

constexpr double kClose = 1e-6;
constexpr double kNothing = 1e-9;

// What a rank has of a tensor after its steps, and where in the whole.
struct Piece {
  Slice slice;
  std::vector<float> values;
};
using Pieces = std::map<std::string, Piece>;

// What ranks leave behind after some steps.
class Parts {
 public:
  Parts(const DitConfig& config, StepSpec spec, const Choices& choices, const RankPlace& place,
        int steps, Shard shard = Shard::off) {
    spec.choices = choices;
    std::vector<Program> programs;
    std::vector<const Program*> all;
    for (int r = 0; r < place.ranks(); ++r) {
      programs.push_back(write_step(config, placed(spec, place, r, shard), cpu_device()));
    }
    for (const Program& program : programs) all.push_back(&program);
    const std::vector<int64_t> planned = check_ranks(all);
    std::mutex turn;
    found_.resize(programs.size());
    norms_.resize(programs.size());
    losses_.resize(programs.size());
    ThreadRanks::run(place.ranks(), [&](Peers& peers) {
      const std::lock_guard guard(turn);
      OneAtATime lane(peers, turn);
      const int r = peers.rank();
      Rig machine({std::move(programs[r])});
      const StepSpec own = placed(spec, place, r, shard);
      State state(machine.plan(), machine.memory(), config, own);
      start(state, config);
      machine.executor().exchange_with(lane);
      for (int64_t k = 0; k < steps; ++k) {
        machine.set_batch(config, spec.batch);
        machine.executor().run(training_scalars(k));
        EXPECT_EQ(machine.executor().peak_bytes(), machine.plan().bytes);
        norms_[r].push_back(machine.executor().first(kClip));
        losses_[r].push_back(machine.executor().first(kLoss));
      }
      for (const StateTensor& tensor : state.tensors()) {
        Piece& piece = found_[r][tensor.name];
        piece.slice = tensor.slice;
        piece.values.resize(static_cast<size_t>(tensor.count()));
        state.read(tensor, 0, piece.values.data(), tensor.count());
      }
      EXPECT_EQ(peers.sent_bytes(), steps * planned[r]) << "of rank " << r;
    });
  }

  const Pieces& of(int rank) const { return found_[rank]; }
  const std::vector<float>& norms(int rank) const { return norms_[rank]; }
  const std::vector<float>& losses(int rank) const { return losses_[rank]; }

  // Of each tensor of one rank alone: how far the ranks' are from it, all their parts together,
  // over its size. Parts that several ranks have are the same.
  void expect_close(const Parts& alone, double bound) const {
    for (const auto& [name, whole] : alone.of(0)) {
      std::vector<float> all(whole.values.size());
      std::vector<bool> there(all.size());
      for (const Pieces& pieces : found_) {
        const auto piece = pieces.find(name);
        if (piece == pieces.end()) continue;
        const std::vector<float>& values = piece->second.values;
        piece->second.slice.each_run(0, std::ssize(values),
                                     [&](int64_t at, int64_t own, int64_t n) {
                                       for (int64_t i = 0; i < n; ++i) {
                                         if (there[at + i]) {
                                           EXPECT_EQ(all[at + i], values[own + i]) << name;
                                         }
                                         all[at + i] = values[own + i];
                                         there[at + i] = true;
                                       }
                                     });
      }
      EXPECT_EQ(std::count(there.begin(), there.end(), false), 0) << name;
      double off = 0, size = 0;
      for (size_t i = 0; i < all.size(); ++i) {
        off += std::pow(static_cast<double>(all[i]) - whole.values[i], 2);
        size += std::pow(static_cast<double>(whole.values[i]), 2);
      }
      // Of what is added to all keys alike the gradient is zero but for rounding.
      const bool of_keys = name.ends_with("k_norm.bias") && !alone.of(0).contains("m." + name);
      const double times = name.starts_with("v.") ? 2 : 1;  // a square is off by twice as much
      EXPECT_LE(std::sqrt(off), of_keys ? kNothing : times * bound * std::sqrt(size)) << name;
    }
    for (size_t r = 0; r < norms_.size(); ++r) {
      EXPECT_EQ(norms_[r], norms_[0]) << "of rank " << r;
      EXPECT_EQ(losses_[r], losses_[0]) << "of rank " << r;
    }
    for (size_t k = 0; k < norms_[0].size(); ++k) {
      EXPECT_NEAR(norms_[0][k], alone.norms(0)[k], bound * alone.norms(0)[k]);
      EXPECT_NEAR(losses_[0][k], alone.losses(0)[k], bound * alone.losses(0)[k]);
    }
  }

 private:
  // Away from zero, but not so far that the network magnifies what rounding does to it.
  static void start(State& state, const DitConfig& config) {
    constexpr double kShare = 0.25;
    for (const ParamSpec& spec : parameters(config)) {
      std::vector<float> all(static_cast<size_t>(spec.count()));
      initialise(all.data(), spec, 1, config);
      const Column far = random_weights(spec, config);
      for (size_t i = 0; i < all.size(); ++i) {
        all[i] += static_cast<float>(kShare * (far[i] - all[i]));
      }
      for (const std::string& name : {spec.name, kAverage + spec.name}) {
        const StateTensor* tensor = state.find(name);
        if (tensor == nullptr) continue;
        state.fill(*tensor, [&](float* values, int64_t first, int64_t count) {
          tensor->slice.each_run(first, count, [&](int64_t whole, int64_t at, int64_t n) {
            std::copy_n(all.begin() + whole, n, values + at - first);
          });
        });
      }
    }
  }

  std::vector<Pieces> found_;
  std::vector<std::vector<float>> norms_, losses_;  // of each step
};

RankPlace parts(int tensor, int data = 1, int pipe = 1, const DitConfig& config = {}) {
  RankPlace place{data, pipe};
  place.tensor = tensor;
  for (int i = 1; i < pipe; ++i) place.cuts.push_back(config.depth() * i / pipe);
  return place;
}

// Wide enough for gradients to be sums of many numbers.
DitConfig wide_config(int64_t heads, Objective objective = Objective::ddpm,
                      QkNormKind qk_norm = QkNormKind::none) {
  DitConfig config = small_config(objective);
  config.width = 48;
  config.head_width = 12;
  config.qk_norm = qk_norm;
  config.blocks = {{heads, 50}, {heads, 7}, {heads + 1, 96}};
  return config;
}

// An Adam that is no step function of gradients near zero: what is left of a gradient that is zero
// but for rounding, as of the biases of keys, would move a weight as far as any other.
StepSpec smooth(float clip, int64_t batch) {
  StepSpec spec = updating(clip, batch);
  spec.eps = 0.1;
  return spec;
}

// The first moment after one step is the gradient, but for a factor.
TEST(TensorPrograms, AStepIsThatOfOneRankButForRounding) {
  const OneThread one_thread;
  for (const auto& [ranks, heads] : {std::pair{2, 2}, {2, 3}, {4, 4}, {4, 6}}) {
    for (const float clip : {0.0f, 0.05f}) {
      SCOPED_TRACE(fmt::format("{} heads on {} ranks, clip {}", heads, ranks, clip));
      const DitConfig config = wide_config(heads);
      const StepSpec spec = smooth(clip, 5);
      const Parts alone(config, spec, {}, parts(1), 1);
      Parts(config, spec, {}, parts(ranks), 1).expect_close(alone, kClose);
    }
  }
}

// However it goes through them, whatever the blocks have.
TEST(TensorPrograms, EveryWayThroughTheBlocksIs) {
  const OneThread one_thread;
  Choices recomputed;
  recomputed.schedule = plain_schedule(std::vector<KeepSet>(3, KeepSet{}));
  Choices layers{.micro_batch = 2, .layer_major = true};
  Choices layers_again = layers;
  layers_again.schedule = recomputed.schedule;
  for (const QkNormKind qk_norm : {QkNormKind::layer, QkNormKind::rms}) {
    for (const Objective objective : {Objective::ddpm, Objective::flow}) {
      const DitConfig config = wide_config(4, objective, qk_norm);
      const StepSpec spec = smooth(0.05f, 5);
      const Parts alone(config, spec, {}, parts(1), 2);
      for (const Choices& choices :
           {Choices{}, Choices{.micro_batch = 2}, recomputed, layers, layers_again}) {
        SCOPED_TRACE(fmt::format("micro-batches of {}, by layers {}", choices.micro_batch,
                                 choices.layer_major));
        Parts(config, spec, choices, parts(2), 2).expect_close(alone, kClose);
      }
      Parts(config, spec, layers, parts(4), 2).expect_close(alone, kClose);
    }
  }
}

TEST(TensorPrograms, HalfBlocksAndOtherOptimizersToo) {
  const OneThread one_thread;
  DitConfig config = wide_config(4, Objective::flow);
  config.classes = 0;
  config.blocks = {{0, 20}, {2, 16}, {3, 0}};
  StepSpec spec = smooth(0.05f, 3);
  spec.l1 = 1e-3;
  Parts(config, spec, {}, parts(2), 2).expect_close({config, spec, {}, parts(1), 2}, kClose);
  spec.group_lasso = 1e-3;
  Parts(config, spec, {}, parts(2), 2).expect_close({config, spec, {}, parts(1), 2}, kClose);
}

// Samples come to the first of the ranks that see the same, and from there to all.
TEST(TensorPrograms, SamplesOfAFeedAreTakenOnce) {
  const OneThread one_thread;
  DitConfig config = wide_config(4, Objective::flow);
  StepSpec spec = smooth(0.05f, 5);
  spec.feeding = {true, DType::u8, true, 0};
  const Parts alone(config, spec, {}, parts(1), 2);
  const Choices layers{.micro_batch = 2, .layer_major = true};
  for (const Choices& choices : {Choices{}, Choices{.micro_batch = 2}, layers}) {
    Parts(config, spec, choices, parts(2), 2).expect_close(alone, kClose);
  }
  const Choices two{.micro_batch = 2};
  Parts(config, spec, two, parts(2, 1, 3, config), 2).expect_close(alone, kClose);
  const Program second = write_step(config, placed(spec, parts(2), 1, Shard::off), cpu_device());
  EXPECT_TRUE(std::none_of(second.ops.begin(), second.ops.end(), [](const Op& op) {
    return std::holds_alternative<TakeSamples>(op.params);
  }));
}

// Groups and stages besides.
TEST(TensorPrograms, WithDataAndPipeToo) {
  const OneThread one_thread;
  DitConfig config = wide_config(4, Objective::ddpm, QkNormKind::layer);
  config.blocks.push_back({5, 31});
  StepSpec spec = smooth(0.05f, 8);
  const Parts alone(config, spec, {}, parts(1), 2);
  for (const Shard shard : {Shard::off, Shard::grads, Shard::weights}) {
    SCOPED_TRACE(fmt::format("shard {}", static_cast<int>(shard)));
    Parts(config, spec, {}, parts(2, 3), 2, shard).expect_close(alone, kClose);
    const Choices layers{.micro_batch = 1, .layer_major = true};
    Parts(config, spec, layers, parts(2, 2), 2, shard).expect_close(alone, kClose);
  }
  for (const StageOrder order : kStageOrders) {
    const Choices choices{.micro_batch = 2, .stage_order = order};
    Parts(config, spec, choices, parts(2, 1, 2, config), 2).expect_close(alone, kClose);
    Parts(config, spec, choices, parts(4, 1, 3, config), 2).expect_close(alone, kClose);
  }
  spec.leaves = 4;
  for (const Shard shard : {Shard::off, Shard::grads, Shard::weights}) {
    SCOPED_TRACE(fmt::format("tree, shard {}", static_cast<int>(shard)));
    const Choices choices{.micro_batch = 1};
    Parts(config, spec, choices, parts(2, 2), 2, shard).expect_close(alone, kClose);
    Parts(config, spec, choices, parts(2, 2, 2, config), 2, shard).expect_close(alone, kClose);
  }
}

// Whatever a group's ranks have whole stays the same on all of them, in 8 bits and rounded at
// random, too.
TEST(TensorPrograms, RoundedStateGoesWithParts) {
  const OneThread one_thread;
  const DitConfig config = wide_config(4);
  StepSpec spec = smooth(0.05f, 3);
  Choices choices;
  choices.storage.moments = Moments::coded;
  choices.storage.ema = DType::bf16;
  const Parts alone(config, spec, choices, parts(1), 3);
  Parts(config, spec, choices, parts(2), 3).expect_close(alone, 0.05);
  choices.storage = {.label_rows = 4};
  Parts(config, spec, choices, parts(2), 2).expect_close({config, spec, {}, parts(1), 2}, kClose);
  choices.storage = {};
  choices.offload = to_disk(true, false, true);
  Parts(config, spec, choices, parts(2), 2).expect_close({config, spec, {}, parts(1), 2}, kClose);
}

TEST(TensorPrograms, PartsOfATensorAreRoundedAtRandomEachInItsOwnWay) {
  const DitConfig config = wide_config(4);
  StepSpec spec = updating(1, 2);
  spec.choices.storage.ema = DType::bf16;
  const auto keys = [&](int rank, const std::string& layer) {
    std::set<uint32_t> all;
    StepSpec own = placed(spec, parts(4), rank, Shard::off);
    own.choices.storage = spec.choices.storage;
    for (const Op& op : write_step(config, own, cpu_device()).ops) {
      const auto* adam = std::get_if<AdamW>(&op.params);
      if (adam != nullptr && op.name == "update." + layer) all.insert(adam->tensor);
    }
    return all;
  };
  std::set<uint32_t> of_parts;
  for (int rank = 0; rank < 4; ++rank) {
    of_parts.merge(keys(rank, "blocks.1.mlp.fc1.weight"));
    EXPECT_EQ(keys(rank, "t_embedder.mlp.0.weight"), keys(0, "t_embedder.mlp.0.weight"));
  }
  EXPECT_EQ(of_parts.size(), 4u);
}

// Every number of a tensor is in one part, and parts are as heavy as each other.
TEST(TensorPrograms, PartsOfABlockAreAllOfItAndWeighAboutTheSame) {
  for (const char* name : {"DiT-S/2", "DiT-B/2", "DiT-XL/2"}) {
    const DitConfig config = named_config(name);
    for (const int ranks : {2, 3, 4, 5}) {
      SCOPED_TRACE(fmt::format("{} on {} ranks", name, ranks));
      std::map<std::string, int64_t> counts;
      std::vector<double> weights;
      for (int r = 0; r < ranks; ++r) {
        RankPlace place = parts(ranks);
        place.rank = r;
        double all = 0;
        for (const ParamSpec& spec : sliced_parameters(config, place)) {
          if (!spec.slice.any()) continue;
          counts[spec.name] += spec.count();
          all += static_cast<double>(spec.count());
        }
        weights.push_back(all);
      }
      for (const ParamSpec& spec : parameters(config)) {
        if (counts.contains(spec.name)) {
          EXPECT_EQ(counts[spec.name], spec.count()) << spec.name;
        }
      }
      const auto [least, most] = std::minmax_element(weights.begin(), weights.end());
      EXPECT_LE(*most, 1.01 * *least);
    }
  }
}

// Of weights, gradients, moments and average.
TEST(TensorPrograms, EachRankHasItsPartOfTheState) {
  const DitConfig config = named_config("DiT-S/2");
  const auto state = [&](int ranks) {
    int64_t most = 0;
    for (int r = 0; r < ranks; ++r) {
      const Program program =
          write_step(config, placed(updating(1, 2), parts(ranks), r, Shard::off), cpu_device());
      int64_t bytes = 0;
      for (const Buffer& b : program.buffers) {
        bytes += b.resident || b.purpose == Purpose::gradient ? b.bytes() : 0;
      }
      most = std::max(most, bytes);
    }
    return static_cast<double>(most);
  };
  const double one = state(1);
  EXPECT_NEAR(one, 20.0 * static_cast<double>(parameter_count(config)), one * 0.01);
  EXPECT_LE(state(2) / one, 0.52);
  EXPECT_LE(state(4) / one, 0.28);
}

}  // namespace
}  // namespace ebb
