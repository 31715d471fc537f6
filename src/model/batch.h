// The samples of a training step: as the host writes them or a feed brings them, then noised.
#pragma once

#include "model/messages.h"
#include "model/step.h"
#include "model/tensor_peers.h"
#include "program/builder.h"

namespace ebb {

class Batch {
 public:
  // Declares what the host writes. All must outlive it.
  Batch(Builder& b, Messages& messages, const DitConfig& config, const StepSpec& spec);

  // What a feed brought for the micro-batches of a part; otherwise empty.
  struct Taken {
    Buf stored, labels;
  };
  // Takes them once: asked again, what was taken stays. In a pipeline the first stage does, and
  // passes them on to the last, which wants them for the loss. Of ranks with parts of the same
  // blocks the first does, so that all of them see the same.
  void take(Taken& taken, const Part& part);
  // To be called by a stage for each part in turn before it does any work.
  void expect(Taken& taken, const Part& part);

  // The samples of a part whose turn it is. Noise and times are functions of a sample's place: they
  // are drawn wherever they are needed rather than kept.
  struct Samples {
    Buf x, noise, t, y;
  };
  Samples samples(const Part& part, const Taken& taken);
  Buf noised(const Samples& samples, const Part& part);
  // The labels that the network sees: some are dropped.
  Buf shown_labels(const Samples& samples, const Part& part);

  // A part of a tensor that has a row for each sample of the batch: those whose turn it is.
  Buf of(Buf whole, const Part& part);
  // The same of a tensor that has a row for each sample of this rank's share.
  Buf of_share(Buf whole, const Part& part);

 private:
  Buf host_input(const char* name, Shape shape, DType type = DType::f32);
  Shape image(int64_t samples) const;
  Buf rows_of(Buf whole, const Part& part, int64_t first);
  Buf clean(const Part& part, const Taken& taken);
  Message from_first(Buf stored) const;
  void begin_next();
  void receive(const Taken& taken);

  Builder& b_;
  Messages& messages_;
  TensorPeers peers_;
  const DitConfig& config_;
  const StepSpec& spec_;
  std::vector<Buf> coming_;  // the last stage's samples, in their order,
  size_t begun_ = 0;         // and how many of them are on their way
  Buf x_, y_, noise_, t_;    // of the whole batch, from the host; noise and t only if given
};

}  // namespace ebb
