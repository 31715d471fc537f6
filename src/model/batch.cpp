#include "model/batch.h"

namespace ebb {

std::vector<Part> micro_batches(int64_t batch, int64_t micro_batch) {
  const int64_t size = micro_batch <= 0 ? batch : std::min(batch, micro_batch);
  const int64_t count = batch / size;
  std::vector<Part> parts = {{0, size, count}};
  if (count * size < batch) parts.push_back({count * size, batch - count * size, 1});
  return parts;
}

int64_t micro_batch_count(int64_t batch, int64_t micro_batch) {
  int64_t count = 0;
  for (const Part& part : micro_batches(batch, micro_batch)) count += part.count;
  return count;
}

Batch::Batch(Builder& b, Messages& messages, const DitConfig& config, const StepSpec& spec)
    : b_(b), messages_(messages), peers_(b, spec.place), config_(config), spec_(spec) {
  const Feeding& feeding = spec.feeding;
  const bool first = spec.place.first_stage();
  if (!first && !spec.place.last_stage()) return;
  if (feeding.memory_bytes > 0 && first && spec.place.part() == 0) {
    b_.declare({kLoaderMemory, "data", Purpose::data, DType::u8, {feeding.memory_bytes}, true});
  }
  if (!feeding.by_feed) {
    x_ = host_input(kBatchX, image(spec.batch));
    if (config.classes > 0 && first) y_ = host_input(kBatchY, {spec.batch}, DType::i32);
  }
  if (spec.given_noise) {
    noise_ = host_input(kBatchNoise, image(spec.batch));
    t_ = host_input(kBatchTime, {spec.batch});
  }
}

Buf Batch::host_input(const char* name, Shape shape, DType type) {
  const Buf made = b_.buffer(name, std::move(shape), Purpose::data, type);
  b_.input(made);
  return made;
}

Shape Batch::image(int64_t samples) const {
  return {samples, config_.channels, config_.image_size, config_.image_size};
}

Buf Batch::of(Buf whole, const Part& part) { return rows_of(whole, part, part.first); }

Buf Batch::of_share(Buf whole, const Part& part) {
  return rows_of(whole, part, part.first - spec_.share().first);
}

Buf Batch::rows_of(Buf whole, const Part& part, int64_t first) {
  if (!whole || b_.shape(whole)[0] == part.size) return whole;
  Shape shape = b_.shape(whole);
  const int64_t each = element_count(shape) / shape[0];
  shape[0] = part.size;
  return b_.view(whole, shape, first * each, part.size * each);
}

// They stay as they are stored until the last op that wants them: that is far smaller than what the
// network makes of them.
void Batch::take(Taken& taken, const Part& part) {
  const Feeding& feeding = spec_.feeding;
  if (!feeding.by_feed) return;
  if (!spec_.place.first_stage()) return receive(taken);
  if (taken.stored) return;
  const bool labelled = config_.classes > 0;
  taken.stored = b_.lasting(kBatchStored, image(part.size), feeding.type, Purpose::data);
  std::vector<Buf> writes = {taken.stored};
  if (labelled) {
    taken.labels = b_.lasting(kBatchY, {part.size}, DType::i32, Purpose::data);
    writes.push_back(taken.labels);
  }
  const int64_t n = config_.channels * config_.pixels();
  if (spec_.place.part() == 0) {
    const int64_t first = part.first - spec_.share().first;
    b_.emit("samples", TakeSamples{part.size, n, feeding.type, labelled, first}, {}, writes);
  }
  if (spec_.place.tensor > 1) {
    for (const Buf each : writes) peers_.hand_out("samples", each);
  }
  if (spec_.place.pipe == 1) return;
  const int last = spec_.place.in_stage(spec_.place.pipe - 1);
  messages_.send({"samples", taken.stored, last, kSamples});
}

// The last stage has room for the samples of as many micro-batches as are on their way to it: the
// first never waits for one of these to arrive.
void Batch::expect(Taken& taken, const Part& part) {
  const RankPlace& place = spec_.place;
  if (!spec_.feeding.by_feed || place.first_stage() || !place.last_stage()) return;
  taken.stored = b_.buffer(kBatchStored, image(part.size), Purpose::data, spec_.feeding.type);
  coming_.push_back(taken.stored);
  if (std::ssize(coming_) <= place.pipe) begin_next();
}

Message Batch::from_first(Buf stored) const {
  return {"samples", stored, spec_.place.in_stage(0), kSamples};
}

void Batch::begin_next() { messages_.receive_begin(from_first(coming_[begun_++])); }

void Batch::receive(const Taken& taken) {
  messages_.receive_end(from_first(taken.stored));
  if (begun_ < coming_.size()) begin_next();
}

Buf Batch::clean(const Part& part, const Taken& taken) {
  const Feeding& feeding = spec_.feeding;
  if (!feeding.by_feed) return of(x_, part);
  if (feeding.type == DType::f32 && !feeding.mirror) return taken.stored;
  const Buf x = b_.buffer(kBatchX, image(part.size));
  b_.emit("samples.read",
          ReadSamples{part.size, config_.channels, config_.image_size, feeding.type, feeding.mirror,
                      spec_.batch, part.first},
          {taken.stored}, {x});
  return x;
}

Batch::Samples Batch::samples(const Part& part, const Taken& taken) {
  const int64_t B = part.size;
  const int64_t n = config_.channels * config_.pixels();
  Samples s{clean(part, taken), of(noise_, part), of(t_, part), taken.labels};
  if (y_) s.y = of(y_, part);
  if (!spec_.given_noise) {
    s.noise = b_.buffer(kBatchNoise, image(B));
    b_.emit("noise", FillNormal{B, n, Stream::noise, part.first}, {}, {s.noise});
    s.t = b_.buffer(kBatchTime, {B});
    b_.emit("times", DrawTimes{B, config_.objective, spec_.time_sampling, part.first}, {}, {s.t});
  }
  return s;
}

Buf Batch::noised(const Samples& s, const Part& part) {
  const int64_t n = config_.channels * config_.pixels();
  const Buf xt = b_.buffer("batch.xt", image(part.size));
  b_.emit("diffuse", Diffuse{part.size, n, config_.objective}, {s.x, s.noise, s.t}, {xt});
  return xt;
}

Buf Batch::shown_labels(const Samples& s, const Part& part) {
  if (!s.y || spec_.given_noise || spec_.label_drop == 0) return s.y;
  const Buf y = b_.buffer("batch.y_dropped", {part.size}, Purpose::data, DType::i32);
  b_.emit("drop_labels", DropLabels{part.size, config_.null_label(), spec_.label_drop, part.first},
          {s.y}, {y});
  return y;
}

}  // namespace ebb
