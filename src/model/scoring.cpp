#include "model/scoring.h"

#include <fmt/format.h>

#include "model/batch.h"

namespace ebb {

std::string attention_sums(int64_t block) { return fmt::format("block{}.attn.sums", block); }
std::string mlp_sums(int64_t block) { return fmt::format("block{}.mlp.sums", block); }

namespace {

class ScoringWriter {
 public:
  ScoringWriter(const DitConfig& config, const StepSpec& spec, const Device& device)
      : config_(config),
        spec_(spec),
        b_(kScoringProgram, device),
        params_(b_, parameters(config)),
        messages_(b_, 1),
        batch_(b_, messages_, config, spec) {
    for (int64_t i = 0; i < config.depth(); ++i) {
      const BlockShape& shape = config.blocks[i];
      attention_.push_back(declare(attention_sums(i), i, shape.heads * config.head_width));
      mlp_.push_back(declare(mlp_sums(i), i, shape.mlp));
    }
  }

  Program write() {
    for (const Part& part : micro_batches(spec_.batch, spec_.choices.micro_batch)) {
      const auto loop = b_.loop(part.count);
      pass(part);
    }
    return b_.finish();
  }

 private:
  Buf declare(const std::string& name, int64_t block, int64_t columns) {
    if (columns == 0) return {};
    return b_.declare(
        {name, fmt::format("block{}", block), Purpose::activation, DType::f64, {3, columns}, true});
  }

  void pass(const Part& part) {
    const Dit model(config_, part.size, params_);
    Batch::Taken taken;
    batch_.take(taken, part);
    const Batch::Samples s = batch_.samples(part, taken);
    Dit::Embedded at = model.embed(b_, {batch_.noised(s, part), s.t, batch_.shown_labels(s, part)});
    for (int64_t i = 0; i < model.depth(); ++i) {
      const Buf out = model.block_output(b_, i);
      const BlockTensors made =
          model.block(i).forward(b_, out, at.x, at.silu_c, {Slot::o, Slot::g});
      add(attention_[i], made, Slot::o, part.size);
      add(mlp_[i], made, Slot::g, part.size);
      at.x = out;
    }
  }

  void add(Buf sums, const BlockTensors& made, Slot slot, int64_t samples) {
    if (!sums) return;
    const Buf x = made.made[static_cast<int>(slot)];
    b_.emit(b_.program().buffer(sums).name, ColumnSums{samples, config_.tokens(), b_.shape(x)[1]},
            {x}, {}, {sums});
  }

  const DitConfig& config_;
  const StepSpec& spec_;
  Builder b_;
  Params params_;
  Messages messages_;  // none: this is of one rank
  Batch batch_;
  std::vector<Buf> attention_, mlp_;  // by block
};

}  // namespace

Program write_scoring(const DitConfig& config, const StepSpec& spec, const Device& device) {
  return ScoringWriter(config, spec, device).write();
}

}  // namespace ebb
