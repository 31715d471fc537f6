// Runs over ranks that are threads, as the trainer has them: planned by hand, on data in memory.
#pragma once

#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "data/array_source.h"
#include "model_fixture.h"
#include "plan/rank_check.h"
#include "temp_folder.h"
#include "thread_peers.h"
#include "train/run.h"

namespace ebb {

inline std::string bytes_of(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream all;
  all << in.rdbuf();
  return all.str();
}

// How a run keeps its state.
struct StateKind {
  const char* name;
  DitConfig config;
  Storage storage = {};
  Optimizer optimizer = Optimizer::adamw;
  Offload offload = {};
};

inline std::vector<StateKind> state_kinds() {
  Storage small;
  small.activation = DType::bf16;
  small.moments = Moments::coded;
  DitConfig wide = small_config();  // moments of its matrices are large enough for 8 bits
  wide.width = 32;
  set_blocks(wide, 2, 2);
  Storage smaller = small;
  smaller.ema = DType::bf16;
  return {{"fp32", small_config()},
          {"bf16 and 8-bit moments", wide, small},
          {"bf16 averages too", wide, smaller},
          {"sparse", sparse_config()},
          {"adafactor", uneven_config(Objective::flow), {}, Optimizer::adafactor}};
}

// Another's samples, but for one.
class OneMissing final : public Source {
 public:
  OneMissing(const Source& whole, int64_t missing) : whole_(whole), missing_(missing) {
    info_ = whole.info();
  }
  void load(std::byte* values, int32_t* label, int64_t index,
            std::span<std::byte> scratch) const override {
    if (index == missing_) fail(Exit::data, "photo 17 cannot be read");
    whole_.load(values, label, index, scratch);
  }
  int32_t label(int64_t index) const override { return whole_.label(index); }
  int64_t scratch_bytes() const override { return whole_.scratch_bytes(); }
  int64_t heap_bytes() const override { return whole_.heap_bytes(); }
  int64_t held_bytes() const override { return whole_.held_bytes(); }

 private:
  const Source& whole_;
  const int64_t missing_;
};

class RankRuns : public testing::Test {
 protected:
  static constexpr int64_t kBatch = 7, kSamples = 23;  // shares differ, and epochs straddle batches

  RankRuns() : pixels_(kSamples * 8 * 8 * 3), labels_(kSamples) {
    for (size_t i = 0; i < pixels_.size(); ++i) pixels_[i] = static_cast<uint8_t>(i * 31 % 251);
    for (size_t i = 0; i < labels_.size(); ++i) labels_[i] = static_cast<int32_t>(i % 5);
    source_ = pixel_source(pixels_, labels_, 8, 3);
  }

  TrainOptions options(const StateKind& kind, const RankPlace& place,
                       Shard shard = Shard::off) const {
    TrainOptions o;
    o.config = kind.config;
    o.step = step_spec(kBatch);
    o.step.clip = 0.05f;
    o.step.optimizer = kind.optimizer;
    o.step.choices.storage = kind.storage;
    o.step.choices.offload = kind.offload;
    o.step.place = place;
    o.step.choices.shard = shard;
    o.lr = 1e-2;
    o.average.decay = 0.9;
    o.seed = 3;
    o.flip = true;
    return o;
  }

  // The plan of a rank, with pictures of a sampler if there is one.
  PlannedRun planned(const TrainOptions& o,
                     const std::optional<SamplerSpec>& sampler = std::nullopt) const {
    return planned(o, *source_, sampler);
  }
  PlannedRun planned(const TrainOptions& o, const Source& source,
                     const std::optional<SamplerSpec>& sampler = std::nullopt) const {
    PlannedRun made;
    made.step = run_spec(o, &source).step;
    made.sampler = sampler;
    std::vector<Program> programs;
    programs.push_back(write_step(o.config, made.step, cpu_device()));
    if (sampler) {
      for (Program& p : sampler_programs(o.config, *sampler, cpu_device())) {
        programs.push_back(std::move(p));
      }
    }
    made.plans = make_plans(std::move(programs), machine_.limits());
    return made;
  }

  // each(run, peers) on every rank; alone without peers.
  using Each = std::function<void(TrainingRun& run, Peers& peers)>;
  void on_ranks(const StateKind& kind, int ranks, Shard shard, const Each& each,
                std::vector<std::string>* all = nullptr) const {
    ThreadRanks::run(
        ranks,
        [&](Peers& peers) {
          const TrainOptions o = options(kind, {ranks, 1, peers.rank()}, shard);
          const PlannedRun plan = planned(o);
          TrainingRun run(o, *source_, plan, machine_, ranks == 1 ? nullptr : &peers);
          each(run, peers);
        },
        all);
  }

  // Takes so many steps, from the start or from a file, and saves.
  void train(const StateKind& kind, int ranks, Shard shard, const std::filesystem::path& from,
             int steps, const std::filesystem::path& to) const {
    on_ranks(kind, ranks, shard, [&](TrainingRun& run, Peers&) {
      start(run, from);
      for (int i = 0; i < steps; ++i) run.step();
      run.save(to);
    });
  }
  static void start(TrainingRun& run, const std::filesystem::path& from) {
    if (from.empty()) return run.initialise();
    run.load(SafetensorsReader(from), [](const CheckpointInfo&) {});
  }

  std::filesystem::path at(const std::string& name) const { return folder_.path() / name; }
  // Files in the folder, hidden ones too.
  int files() const {
    const std::filesystem::directory_iterator all(folder_.path());
    return static_cast<int>(std::distance(std::filesystem::begin(all), std::filesystem::end(all)));
  }

  const OneThread one_thread_;
  const Machine machine_ = with_disk(middling_machine());
  TempFolder folder_;
  std::vector<uint8_t> pixels_;
  std::vector<int32_t> labels_;
  std::unique_ptr<Source> source_;
};

}  // namespace ebb
