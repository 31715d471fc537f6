// Steps of ranks that each have a part of every block, run as threads of one process: what they
// leave behind.
#pragma once

#include "model/slices.h"
#include "rank_program_runs.h"

namespace ebb {

inline constexpr double kClose = 1e-6;
inline constexpr double kNothing = 1e-9;

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

  // The bits of every tensor of every rank, of the loss and of the norm.
  void expect_same_bits(const Parts& other) const {
    for (size_t r = 0; r < found_.size(); ++r) {
      ASSERT_EQ(found_[r].size(), other.found_[r].size());
      for (const auto& [name, piece] : found_[r]) {
        EXPECT_TRUE(piece.values == other.of(static_cast<int>(r)).at(name).values)
            << name << " of rank " << r;
      }
      EXPECT_EQ(norms_[r], other.norms_[r]);
      EXPECT_EQ(losses_[r], other.losses_[r]);
    }
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

inline RankPlace parts(int tensor, int data = 1, int pipe = 1, const DitConfig& config = {}) {
  RankPlace place{data, pipe};
  place.tensor = tensor;
  for (int i = 1; i < pipe; ++i) place.cuts.push_back(config.depth() * i / pipe);
  return place;
}

// Wide enough for gradients to be sums of many numbers.
inline DitConfig wide_config(int64_t heads, Objective objective = Objective::ddpm,
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
inline StepSpec smooth(float clip, int64_t batch) {
  StepSpec spec = updating(clip, batch);
  spec.eps = 0.1;
  return spec;
}

}  // namespace ebb
