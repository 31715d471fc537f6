// Batches, decoded ahead of the trainer.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "data/order.h"
#include "data/source.h"

namespace ebb {

// Decodes ahead in its own threads into planned memory. Batch `step` holds positions
// step*batch .. step*batch+batch-1 of the order, so it is a function of seed and step alone: of
// neither the threads, nor the slots, nor the step that the loader started at.
//
// next() is called from one thread. The source and the memory must outlive the loader.
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

  // Waits for batch `step` and copies it out: x (B,C,H,W), y (B). Steps are asked for in order from
  // first_step. If a sample of this batch cannot be loaded, throws the error of the first such
  // sample, now and whenever it is asked again; earlier batches are not affected.
  void next(float* x, int32_t* y, int64_t step);

 private:
  struct Slot {
    float* x = nullptr;          // (B,C,H,W)
    int32_t* y = nullptr;        // (B)
    int64_t done = 0;            // samples finished, well or not
    int64_t failed_sample = -1;  // in the batch; the first one that failed
    std::exception_ptr error;
  };
  void work(std::span<std::byte> scratch);
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
  std::vector<std::thread> threads_;
};

}  // namespace ebb
