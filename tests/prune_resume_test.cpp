// Training goes on through a pruning: with the moments, average and counts of what is left.
#include "cli_fixture.h"
#include "data/source.h"
#include "model_fixture.h"
#include "plan/planned_run.h"
#include "prune/surgery.h"
#include "prune_fixture.h"
#include "train/trainer.h"

namespace ebb {
namespace {

namespace fs = std::filesystem;
using Tensors = std::map<std::string, std::vector<float>>;

class PruneResume : public cli_fixture::CliTest {
 protected:
  PruneResume() {
    write_idx();
    source_ = open_source(at("idx"), {});
  }

  // Steps that are done when the model is pruned, and in all.
  static constexpr int64_t kBefore = 3, kAfter = 6;

  void train_to(int64_t steps, const std::string& out, const DitConfig& config,
                Optimizer optimizer) const {
    TrainOptions o;
    o.out = at(out);
    o.config = config;
    o.name = "test";
    o.step.batch = 6;
    o.step.optimizer = optimizer;
    o.step.clip = 0.5f;
    o.steps = steps;
    o.save_every = steps;
    o.lr = 1e-3;
    o.budget_bytes = int64_t{1} << 40;
    o.resume = steps > kBefore;
    const Machine machine = middling_machine();
    train(o, *source_, plan_fitting_run(run_spec(o, source_.get()), machine), machine);
  }

  Tensors tensors_of(const std::string& out, int64_t step) const {
    const SafetensorsReader file(checkpoint_path(at(out), step));
    Tensors tensors;
    for (const TensorEntry& entry : file.tensors()) tensors[entry.name] = numbers(file, entry.name);
    return tensors;
  }

  // From the parent's checkpoint to another run's: what survives, or with the rest set to zero.
  void prune(const std::string& to, const Survivors& kept) const {
    const SafetensorsReader file(checkpoint_path(at("parent"), kBefore));
    const auto path = checkpoint_path(at(to), kBefore);
    fs::create_directories(path.parent_path());
    write_pruned(path, file, read_info(file), {kept, false});
  }
  // The tensor's numbers of which the surgery leaves a trace are those that stay.
  void zero(const std::string& to, const DitConfig& config, const Survivors& kept) const {
    const SafetensorsReader file(checkpoint_path(at("parent"), kBefore));
    std::map<std::string, std::vector<float>> memory;
    std::vector<TensorData> tensors;
    for (const TensorEntry& entry : file.tensors()) {
      std::vector<float>& values = memory[entry.name] = numbers(file, entry.name);
      for (size_t i = 0; i < values.size(); ++i) {
        if (!stays(entry, config, kept, static_cast<int64_t>(i))) values[i] = 0;
      }
      tensors.push_back({entry.name, entry.type, entry.shape, values.data()});
    }
    const auto path = checkpoint_path(at(to), kBefore);
    fs::create_directories(path.parent_path());
    write_safetensors(path, tensors, checkpoint_metadata(read_info(file)), true);
  }
  // Of a weight, moment or average as large as the parameter.
  static bool stays(const TensorEntry& entry, const DitConfig& config, const Survivors& kept,
                    int64_t i) {
    const size_t begin = entry.name.find("blocks.");
    if (begin == std::string::npos) return true;
    const Belonging place =
        belonging({entry.name.substr(begin), "", entry.shape, Init::zero}, config);
    if (!place.member) return true;
    const int64_t columns = entry.shape.size() > 1 ? entry.shape[1] : 1;
    const int64_t along = place.member->columns ? i % columns : i / columns;
    const int64_t count = structure_count(config.blocks[*place.block], place.member->kind);
    const auto& left = kept[*place.block].of(place.member->kind);
    return std::binary_search(left.begin(), left.end(), along / place.member->width % count);
  }

  static Survivors some(const DitConfig& config) {
    Survivors kept = all_of(config);
    kept[0].heads = {1, 3};
    kept[1].heads = {0, 1, 2};
    std::erase_if(kept[0].mlp, [](int64_t i) { return i % 4 == 1; });
    std::erase_if(kept[1].mlp, [](int64_t i) { return i % 8 < 3; });
    return kept;
  }

  const OneThread one_thread_;
  std::unique_ptr<Source> source_;
};

// A structure of zeros with moments of zero stays one, and adds nothing to anything.
TEST_F(PruneResume, TheStepsAfterItAreThoseOfAParentWithZerosBitForBit) {
  DitConfig config = prunable_config(2, 4);
  config.classes = 4;
  const Survivors kept = some(config);
  for (const Optimizer optimizer : {Optimizer::adamw, Optimizer::lion}) {
    for (const char* out : {"parent", "pruned", "zeroed"}) fs::remove_all(at(out));
    train_to(kBefore, "parent", config, optimizer);
    prune("pruned", kept);
    zero("zeroed", config, kept);
    train_to(kAfter, "pruned", pruned_config(config, kept), optimizer);
    train_to(kAfter, "zeroed", config, optimizer);
    const Tensors pruned = tensors_of("pruned", kAfter), zeroed = tensors_of("zeroed", kAfter);
    ASSERT_EQ(pruned.size(), zeroed.size());
    const SafetensorsReader file(checkpoint_path(at("zeroed"), kAfter));
    for (const TensorEntry& entry : file.tensors()) {
      std::vector<float> left;
      const std::vector<float>& all = zeroed.at(entry.name);
      for (size_t i = 0; i < all.size(); ++i) {
        if (stays(entry, config, kept, static_cast<int64_t>(i))) left.push_back(all[i]);
      }
      EXPECT_TRUE(pruned.at(entry.name) == left) << entry.name;
    }
    const SafetensorsReader at_first(checkpoint_path(at("pruned"), kBefore));
    const SafetensorsReader later(checkpoint_path(at("pruned"), kAfter));
    EXPECT_FALSE(read_info(later).pruned.empty());
    EXPECT_EQ(read_info(later).pruned, read_info(at_first).pruned);
    EXPECT_EQ(read_info(later).updates, kAfter);
  }
}

TEST_F(PruneResume, AdafactorGoesOnToo) {
  DitConfig config = prunable_config(2, 4);
  config.classes = 4;
  const Survivors kept = some(config);
  train_to(kBefore, "parent", config, Optimizer::adafactor);
  prune("pruned", kept);
  train_to(kAfter, "pruned", pruned_config(config, kept), Optimizer::adafactor);
  const SafetensorsReader later(checkpoint_path(at("pruned"), kAfter));
  EXPECT_EQ(read_info(later).updates, kAfter);
}

}  // namespace
}  // namespace ebb
