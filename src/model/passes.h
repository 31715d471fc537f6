// Forward and backward of a whole batch: micro-batches one after the other, layer by layer, or as a
// stage of a pipeline takes them. Emits; runs nothing.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "model/batch.h"
#include "model/dit.h"
#include "model/pipeline.h"

namespace ebb {

// What the host reads of them.
struct PassResults {
  Buf loss;    // of the mean sample
  Buf losses;  // of each sample of the rank's share, where ranks add them up; absent: added to loss
  Buf output;  // of the whole batch; absent: not wanted
};

class Passes {
 public:
  // All must outlive it. The choices have a schedule.
  Passes(Builder& b, Messages& messages, const DitConfig& config, const StepSpec& spec,
         const Choices& choices, Params& params);

  // Emits what brings the weights of a layer, before those that use them. Not set: they are there.
  using Bring = std::function<void(const std::string& layer)>;
  void on_layer(Bring bring) { bring_ = std::move(bring); }

  // Emits what has to be done about labels before a pass reads what is kept of them.
  using OnLabels = std::function<void(Buf y)>;
  void on_labels(OnLabels body) { on_labels_ = std::move(body); }

  // Every gradient made. Losses are told the first time.
  void run(const PassResults& results);

  const std::vector<Buf>& between_blocks() const { return inputs_; }

 private:
  // One of the parts, and how far its micro-batches have come.
  struct Way {
    Way(const Part& p, int s, const DitConfig& config, Params& params)
        : part(p),
          segment(s),
          model(config, p.size, params),
          x(config.depth() + 1),
          saved(config.depth()) {}
    Part part;
    int segment;  // of the batch, which is summed by itself
    Dit model;
    Buf silu_c;
    Batch::Taken taken;
    std::vector<Buf> x;  // the input of each block, and the last one's output
    std::vector<BlockTensors> saved;
    Dit::Gradients gradient;
    Params::Late late = {};  // gradients of matrices, put off
  };

  bool starts_layers() const;
  void end_segment();
  template <typename Body>
  void each_segment(Body body);

  void batch_by_batch();
  void hand_on_weights();
  void layer_by_layer();
  void stage_by_stage();
  std::vector<Action> stage_actions(bool before_turn) const;
  std::vector<std::string> stage_layers(StageWork::Kind kind) const;
  void stage_work(Way& way, StageWork::Kind kind, Boundaries& boundaries);
  void act_stage(Way& way, bool before_turn);
  void stage_forward(Way& way, Boundaries& boundaries);
  void stage_backward(Way& way, Boundaries& boundaries);
  void act(Way& way, const Action& action);
  Dit::Input network_input(Way& way);
  void embed(Way& way);
  void embed_backward(Way& way);
  void turn(Way& way);
  Buf loss(Way& way, Buf output);

  Builder& b_;
  const DitConfig& config_;
  const StepSpec& spec_;
  const Choices& choices_;
  Params& params_;
  Messages& messages_;
  Batch batch_;
  std::vector<Way> ways_;
  // As many as any rank has micro-batches, where all bring weights for each: those that this one
  // does not have it only hands weights on for.
  size_t turns_ = 0;
  Bring bring_ = [](const std::string&) {};
  OnLabels on_labels_ = [](Buf) {};
  PassResults results_;
  bool first_ = true;
  std::vector<Buf> inputs_;  // of blocks
};

Shape output_shape(const DitConfig& config, int64_t samples);

}  // namespace ebb
