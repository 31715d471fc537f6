#include "data/loader.h"

#include <pthread.h>

#include <algorithm>
#include <csignal>
#include <cstring>

#include "base/error.h"

namespace ebb {
namespace {

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
      source_.load(slot.x + sample * source_.sample_values(), slot.y + sample, order_.at(position),
                   options_.flip && order_.flip_at(position), scratch);
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

void Loader::next(float* x, int32_t* y, int64_t step) {
  std::unique_lock lock(mutex_);
  require(step == next_step_, "loader: asked for batch {}, the next is {}", step, next_step_);
  Slot& slot = slot_of(step);
  finished_.wait(lock, [&] { return slot.done == options_.batch; });
  if (slot.error) std::rethrow_exception(slot.error);
  lock.unlock();  // no thread touches a complete batch until next_step_ moves on

  const auto count = static_cast<size_t>(options_.batch);
  std::memcpy(x, slot.x, count * static_cast<size_t>(source_.sample_values()) * sizeof(float));
  std::memcpy(y, slot.y, count * sizeof(int32_t));

  lock.lock();
  slot.done = 0;
  ++next_step_;
  lock.unlock();
  work_.notify_all();
}

}  // namespace ebb
