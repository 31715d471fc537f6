#include "data/loader.h"

#include <pthread.h>

#include <algorithm>
#include <csignal>
#include <cstring>

#include "base/error.h"

namespace ebb {
namespace {

constexpr uint32_t kMostAttempts = 100;  // to find a stand-in: all of them fail on bad data alone
constexpr int64_t kMostNames = 20;
constexpr int64_t kAlign = 64;  // a cache line: no two threads write to the same one

int64_t aligned(int64_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

int64_t x_bytes(const Source& source, int64_t batch) {
  return aligned(batch * source.sample_values() * static_cast<int64_t>(sizeof(float)));
}

int64_t y_bytes(int64_t batch) { return aligned(batch * static_cast<int64_t>(sizeof(int32_t))); }

// Threads started while one lives have every signal blocked: signals are for the main thread.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_;
};

}  // namespace

int64_t Loader::memory_bytes(const Source& source, const Options& options) {
  return options.slots * (x_bytes(source, options.batch) + y_bytes(options.batch)) +
         options.threads * aligned(source.scratch_bytes());
}

Loader::Loader(const Source& source, const Options& options, int64_t first_step,
               std::span<std::byte> memory)
    : source_(source),
      options_(options),
      order_(options.seed, source.info().count),
      slots_(static_cast<size_t>(options.slots)),
      next_position_(first_step * options.batch),
      next_step_(first_step) {
  require(options.batch >= 1 && options.threads >= 1 && options.slots >= 1 && first_step >= 0,
          "loader: batch {}, threads {}, slots {}, first step {}", options.batch, options.threads,
          options.slots, first_step);
  require(std::ssize(memory) >= memory_bytes(source, options) &&
              reinterpret_cast<uintptr_t>(memory.data()) % kAlign == 0,
          "loader: {} bytes of memory, wanted {} aligned to {}", memory.size(),
          memory_bytes(source, options), kAlign);
  std::byte* at = memory.data();
  for (Slot& slot : slots_) {
    slot.x = reinterpret_cast<float*>(at);
    at += x_bytes(source, options.batch);
    slot.y = reinterpret_cast<int32_t*>(at);
    at += y_bytes(options.batch);
  }
  threads_.reserve(static_cast<size_t>(options.threads));
  const SignalsBlocked blocked;
  try {
    for (int i = 0; i < options.threads; ++i) {
      const std::span scratch(at, static_cast<size_t>(source.scratch_bytes()));
      threads_.emplace_back([this, scratch] { work(scratch); });
      at += aligned(source.scratch_bytes());
    }
  } catch (...) {
    stop();
    throw;
  }
}

Loader::~Loader() { stop(); }

void Loader::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  work_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void Loader::work(std::span<std::byte> scratch) {
  std::unique_lock lock(mutex_);
  while (true) {
    work_.wait(lock, [&] {
      return stopping_ || next_position_ / options_.batch < next_step_ + std::ssize(slots_);
    });
    if (stopping_) return;
    const int64_t position = next_position_++;
    const int64_t sample = position % options_.batch;
    Slot& slot = slot_of(position / options_.batch);
    lock.unlock();

    std::exception_ptr error;
    try {
      load(slot, position, scratch);
    } catch (...) {
      error = std::current_exception();
    }

    lock.lock();
    if (error && (slot.failed_sample < 0 || sample < slot.failed_sample)) {
      slot.failed_sample = sample;
      slot.error = std::move(error);
    }
    if (++slot.done == options_.batch) finished_.notify_one();
  }
}

void Loader::load(Slot& slot, int64_t position, std::span<std::byte> scratch) {
  const int64_t sample = position % options_.batch;
  const bool flip = options_.flip && order_.flip_at(position);
  for (uint32_t attempt = 0;; ++attempt) {
    const int64_t index =
        attempt == 0 ? order_.at(position) : order_.stand_in(position, attempt - 1);
    const bool last = attempt == kMostAttempts || source_.most_bad() == 0;
    std::string reason;
    if (last || !is_bad(index)) {
      try {
        source_.load(slot.x + sample * source_.sample_values(), slot.y + sample, index, flip,
                     scratch);
        return;
      } catch (const Error& error) {
        if (last || error.code() != Exit::data) throw;
        reason = error.what();
      }
    }
    const std::lock_guard lock(mutex_);
    reasons_.try_emplace(index, std::move(reason));
    slot.bad.push_back({sample, attempt, index});
  }
}

// Known ones are not tried again.
bool Loader::is_bad(int64_t index) {
  const std::lock_guard lock(mutex_);
  return reasons_.contains(index);
}

Error Loader::too_many_bad(int64_t index) const {
  const DataInfo& info = source_.info();
  std::string names;
  int64_t unnamed = std::ssize(counted_);
  for (auto bad = counted_.begin(); bad != counted_.end() && unnamed > 0; ++bad) {
    if (std::ssize(counted_) - unnamed == kMostNames) break;
    names += (names.empty() ? "" : ", ") + source_.name(*bad);
    --unnamed;
  }
  if (unnamed > 0) names += fmt::format(" and {} more", unnamed);
  return {Exit::data,
          fmt::format("{}; with it {} of {} samples cannot be loaded, wanted at most {}",
                      reasons_.at(index), std::ssize(counted_) + info.skipped,
                      info.count + info.skipped, source_.most_bad() + info.skipped),
          fmt::format("remove or replace {}", names)};
}

// In the order of the samples, whichever thread met which first.
void Loader::note_bad(Slot& slot) {
  std::sort(slot.bad.begin(), slot.bad.end());
  for (const Bad& bad : slot.bad) {
    if (!counted_.insert(bad.index).second) continue;
    notes_.push_back(reasons_.at(bad.index));
    if (std::ssize(counted_) > source_.most_bad()) {
      slot.error = std::make_exception_ptr(too_many_bad(bad.index));
      break;
    }
  }
  slot.bad.clear();
}

void Loader::next(std::span<float> x, std::span<int32_t> y, int64_t step) {
  require(
      std::ssize(x) == options_.batch * source_.sample_values() && std::ssize(y) == options_.batch,
      "loader: {} values and {} labels to fill, but a batch has {} and {}", x.size(), y.size(),
      options_.batch * source_.sample_values(), options_.batch);
  std::unique_lock lock(mutex_);
  require(step == next_step_, "loader: asked for batch {}, the next is {}", step, next_step_);
  Slot& slot = slot_of(step);
  finished_.wait(lock, [&] { return slot.done == options_.batch; });
  if (!slot.error) note_bad(slot);
  if (slot.error) std::rethrow_exception(slot.error);
  lock.unlock();  // no thread touches a complete batch until next_step_ moves on

  std::memcpy(x.data(), slot.x, x.size_bytes());
  std::memcpy(y.data(), slot.y, y.size_bytes());

  lock.lock();
  slot.done = 0;
  ++next_step_;
  lock.unlock();
  work_.notify_all();
}

}  // namespace ebb
