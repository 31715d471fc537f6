// Samples, decoded ahead of the step that takes them.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"
#include "data/order.h"
#include "data/source.h"
#include "model/ranks.h"
#include "program/feed.h"

namespace ebb {

// Decodes ahead in its own threads into a ring of planned memory, which holds samples as the source
// has them. Batch `step` is the positions step*batch .. step*batch+batch-1 of the order, so it is a
// function of seed and step alone: of neither the threads, nor the ring, nor the step that the
// loader started at. Of several ranks each has a share of every batch, the same positions with the
// same samples as if one had them all, and no other position is ever looked at.
//
// Where the sample of a position turns out to be bad, a stand-in drawn by seed and position takes
// its place, so batches stay a function of seed, step and files. What is met is counted in the
// order of the positions; more bad samples than source.most_bad() are an error. The count starts
// anew with the loader: a resumed run trains on the same batches, and one pass over the data meets
// every bad file again, so a damaged set is given up at most an epoch later than without the stop.
// A rank counts those of its own share and gives up when it alone has met too many: shares differ
// from epoch to epoch, so n ranks give up a damaged set about n epochs later than one would, at
// most.
//
// take() and take_notes() are called from one thread. The source and the memory must outlive the
// loader.
class Loader final : public Feed {
 public:
  struct Options {
    uint64_t seed = 0;
    int64_t batch = 1;
    int threads = 1;
    int64_t ahead = 1;                // samples in the ring: those that wait, and those being made
    std::optional<Share> share = {};  // of every batch; absent: all of it

    Share taken() const { return share.value_or(Share{0, batch}); }
  };

  // How many are worth being ahead: the next batch (or share of it), or what fits into a few
  // megabytes, which threads fill while others are computed with.
  static int64_t worth_ahead(const Source& source, int64_t batch, int threads);

  // The memory the loader works in. What decoding libraries take besides is
  // options.threads * source.heap_bytes() at most.
  static int64_t memory_bytes(const Source& source, const Options& options);

  // `memory`: memory_bytes() bytes, aligned to 64. Starts the threads; nothing is allocated later
  // by the loader itself.
  Loader(const Source& source, const Options& options, int64_t first_step,
         std::span<std::byte> memory);
  ~Loader() override;  // stops and joins the threads, at most one sample each later
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  // Samples are counted from the share's first on. Waits for each. Where one cannot be loaded and
  // no other may stand in for it, throws its error, now and whenever it is asked for again; samples
  // before it are not affected.
  void take(DeviceMemory& memory, Place values, const Place* labels, int64_t first,
            int64_t count) override;

  // Why samples taken so far were left out, a line for each bad sample, and each line once.
  std::vector<std::string> take_notes() { return std::exchange(notes_, {}); }

 private:
  struct Slot {
    std::byte* values = nullptr;
    int32_t label = 0;
    bool ready = false;  // loaded, well or not
    std::exception_ptr error;
    std::vector<int64_t> bad;  // in the source, in the order in which they were tried
  };
  void work(std::span<std::byte> scratch);
  // In the order of all samples; `number` counts those that are this loader's.
  int64_t position(int64_t number) const {
    return number / share_.count * options_.batch + share_.first + number % share_.count;
  }
  void load(Slot& slot, int64_t position, std::span<std::byte> scratch);
  bool is_bad(int64_t index);
  void note_bad(Slot& slot);
  Error too_many_bad(int64_t index) const;
  void stop();
  Slot& slot_of(int64_t number) { return slots_[static_cast<size_t>(number % std::ssize(slots_))]; }
  Slot& wait_for(int64_t number);
  void free_slot(Slot& slot);

  const Source& source_;
  const Options options_;
  const Share share_;
  const Order order_;

  std::mutex mutex_;                  // guards what follows
  std::condition_variable work_;      // a slot was freed, or stopping
  std::condition_variable finished_;  // a sample is ready
  std::vector<Slot> slots_;
  int64_t next_;   // the number of the next to be loaded by a thread,
  int64_t taken_;  // and of the next to be taken out
  bool stopping_ = false;
  std::map<int64_t, std::string> reasons_;  // of every sample found to be bad, by index
  std::set<int64_t> counted_;               // those of them that were met by what was taken out
  std::vector<std::string> notes_;          // of take()'s thread alone
  std::vector<std::thread> threads_;
};

}  // namespace ebb
