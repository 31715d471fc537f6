// Batches, decoded ahead of the trainer.
#pragma once

#include <compare>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <map>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"
#include "data/order.h"
#include "data/source.h"

namespace ebb {

// Decodes ahead in its own threads into planned memory. Batch `step` holds positions
// step*batch .. step*batch+batch-1 of the order, so it is a function of seed and step alone: of
// neither the threads, nor the slots, nor the step that the loader started at.
//
// Where the sample of a position turns out to be bad, a stand-in drawn by seed and position takes
// its place, so batches stay a function of seed, step and files. What is met is counted in the
// order of the batches; more bad samples than source.most_bad() are an error. The count starts anew
// with the loader: a resumed run trains on the same batches, and one pass over the data meets every
// bad file again, so a damaged set is given up at most an epoch later than without the stop.
//
// next() and take_notes() are called from one thread. The source and the memory must outlive the
// loader.
class Loader {
 public:
  struct Options {
    uint64_t seed = 0;
    int64_t batch = 1;
    bool flip = false;  // mirror half of the samples left to right, where they are pixels
    int threads = 1;
    int slots = 2;  // batches held: the one being read and those being made
  };

  // The memory the loader works in. What decoding libraries take besides is
  // options.threads * source.heap_bytes() at most.
  static int64_t memory_bytes(const Source& source, const Options& options);

  // `memory`: memory_bytes() bytes, aligned to 64. Starts the threads; nothing is allocated later
  // by the loader itself.
  Loader(const Source& source, const Options& options, int64_t first_step,
         std::span<std::byte> memory);
  ~Loader();  // stops and joins the threads, at most one sample each later
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  // Waits for batch `step` and copies it out: x (B,C,H,W), y (B), whose sizes must be these. Steps
  // are asked for in order from first_step. If a sample of this batch cannot be loaded and no other
  // may stand in for it, throws the error of the first such sample, now and whenever it is asked
  // again; earlier batches are not affected.
  void next(std::span<float> x, std::span<int32_t> y, int64_t step);

  // Why samples of the batches so far were left out, a line for each bad sample, and each line
  // once.
  std::vector<std::string> take_notes() { return std::exchange(notes_, {}); }

 private:
  struct Bad {
    int64_t sample;    // in the batch
    uint32_t attempt;  // 0: the position's own sample, then its stand-ins
    int64_t index;     // in the source
    auto operator<=>(const Bad&) const = default;
  };
  struct Slot {
    float* x = nullptr;          // (B,C,H,W)
    int32_t* y = nullptr;        // (B)
    int64_t done = 0;            // samples finished, well or not
    int64_t failed_sample = -1;  // in the batch; the first one that failed
    std::exception_ptr error;
    std::vector<Bad> bad;  // met while making this batch
  };
  void work(std::span<std::byte> scratch);
  void load(Slot& slot, int64_t position, std::span<std::byte> scratch);
  bool is_bad(int64_t index);
  void note_bad(Slot& slot);
  Error too_many_bad(int64_t index) const;
  void stop();
  Slot& slot_of(int64_t step) { return slots_[static_cast<size_t>(step % std::ssize(slots_))]; }

  const Source& source_;
  const Options options_;
  const Order order_;

  std::mutex mutex_;                  // guards what follows
  std::condition_variable work_;      // a slot was freed, or stopping
  std::condition_variable finished_;  // a batch is complete
  std::vector<Slot> slots_;
  int64_t next_position_;  // the next sample to be taken by a thread
  int64_t next_step_;      // the next batch to be copied out
  bool stopping_ = false;
  std::map<int64_t, std::string> reasons_;  // of every sample found to be bad, by index
  std::set<int64_t> counted_;               // those of them in batches that were copied out
  std::vector<std::string> notes_;          // of next()'s thread alone
  std::vector<std::thread> threads_;
};

}  // namespace ebb
