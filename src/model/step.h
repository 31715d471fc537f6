// One training step as a program: noise, forward, loss, backward, norm, update, average.
#pragma once

#include "model/dit.h"
#include "model/ranks.h"

namespace ebb {

// How a step is carried out. Every choice but the storage leaves the result the same, bit for bit.
// What a stage of a pipeline does when (model/pipeline.h).
enum class StageOrder : uint8_t {
  in_turn,     // one forward, one backward (1F1B)
  late,        // the same, and gradients of matrices where the stage would wait (ZB-H1)
  late_ahead,  // that, with one more micro-batch under way
};

struct Choices {
  int64_t micro_batch = 0;   // samples that go through the network together; 0: the whole batch
  bool layer_major = false;  // all micro-batches through one block before the next
  // Each parameter is updated as soon as its gradient is complete, and the gradient's bytes are
  // free again. With accumulation only layer by layer. With clipping everything runs twice: first
  // for the norm, then for the update.
  bool release = false;
  Schedule schedule = {};  // empty: every block keeps all
  Storage storage = {};
  Offload offload = {};                          // of weights only with `release`
  Shard shard = Shard::off;                      // over ranks
  StageOrder stage_order = StageOrder::in_turn;  // of a pipeline
  // Where ranks have parts of blocks: what lies between the products each has of its own samples
  // alone (TokenRows), of micro-batches that have samples for all of them.
  bool cut_tokens = false;
};

enum class Optimizer : uint8_t { adamw, lion, adafactor };

// How the samples of a training batch come in: as fp32 that the host writes for the whole batch
// before a run, or as the data set stores them, a micro-batch at a time while the step runs.
struct Feeding {
  bool by_feed = false;
  DType type = DType::f32;   // of a sample's values
  bool mirror = false;       // some of them left to right
  int64_t memory_bytes = 0;  // resident, that the feed works in
};

inline constexpr int64_t kMostBatch = 1 << 20;  // batches are counted up to this

struct StepSpec {
  // Released gradients are used only when all are known to be finite, or to be clipped. One that is
  // too large for fp16 must keep every update from happening.
  bool norm_first() const { return clip > 0 || choices.storage.activation == DType::f16; }

  int64_t batch = 1;
  bool given_noise = false;  // the host gives noise and times, and labels are taken as they are
  bool update = true;        // without it the gradients are outputs, for `ebb grad`
  bool ema = true;
  float label_drop = 0.1f;
  TimeSampling time_sampling = TimeSampling::uniform;
  Optimizer optimizer = Optimizer::adamw;
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0;
  int64_t galore_refresh = 200;  // updates between two projectors,
  double galore_scale = 0.25;    // and by how much less than AdamW's a projected step is
  float clip = 0;                // 0: never
  // Penalties that shrink weights after each update: of each number of the matrices that can be
  // sparse, and of each head and MLP unit as a whole.
  double l1 = 0, group_lasso = 0;
  Feeding feeding;
  Choices choices;
  RankPlace place;  // the batch is that of all ranks; a feed has this rank's share
  // Segments of the batch that are each summed by themselves, and their sums in a tree; 0: one
  // chain of additions in the order of the samples. A power of two, and a multiple of the groups.
  int leaves = 0;

  Share share() const { return place.share(batch); }
  bool codes_gradients() const { return place.data > 1 && choices.storage.exchange.any(); }
  std::vector<Share> segments() const;  // of this rank's share
};

int64_t largest_segment(const StepSpec& spec);  // of any rank
// Whether a segment is more than one micro-batch, on any rank.
bool accumulates(const StepSpec& spec, int64_t micro_batch);
// That go through the network at a time, of the segment with the fewest; a tail may be smaller.
int64_t samples_together(const StepSpec& spec, int64_t micro_batch);

// Equal micro-batches run in a loop; what is left over is a part of its own.
struct Part {
  int64_t first, size, count;  // first sample; samples of a micro-batch; micro-batches
};
std::vector<Part> micro_batches(int64_t batch, int64_t micro_batch);
int64_t micro_batch_count(int64_t batch, int64_t micro_batch);

// Names that the host uses.
inline constexpr const char* kStepProgram = "step";
inline constexpr const char* kSettleProgram = "settle";
inline constexpr const char* kLoaderMemory = "loader.memory";  // (feeding.memory_bytes) u8
inline constexpr const char* kBatchStored = "batch.stored";    // as a feed brings them
inline constexpr const char* kBatchX = "batch.x";              // (B, C, S, S) clean input
inline constexpr const char* kBatchY = "batch.y";              // (B) i32
inline constexpr const char* kBatchNoise = "batch.noise";      // (B, C, S, S)
inline constexpr const char* kBatchTime = "batch.t";           // (B)
inline constexpr const char* kLoss = "loss";                   // (1)
inline constexpr const char* kNorms = "norms";          // (trained tensors) f64: squared norms
inline constexpr const char* kClip = "clip";            // (2): gradient norm, factor
inline constexpr const char* kOutput = "final.output";  // (B, C_out, S, S)

// Its marks: the embedding, each action of the schedule, the embedding's backward, the update, for
// every pass and (batch by batch) every part.
Program write_step(const DitConfig& config, const StepSpec& spec, const Device& device);

// Whether a step leaves updates for later, and the program that carries them all out: to be run
// before anybody looks at the state.
bool leaves_updates(const DitConfig& config, const StepSpec& spec);
Program write_settle(const DitConfig& config, const StepSpec& spec, const Device& device);

}  // namespace ebb
