#include "data/loader.h"

#include <pthread.h>

#include <algorithm>
#include <csignal>

#include "base/error.h"

namespace ebb {
namespace {

constexpr uint32_t kMostAttempts = 100;  // to find a stand-in: all of them fail on bad data alone
constexpr int64_t kMostNames = 20;
constexpr int64_t kWorthBytes = 4 << 20;
constexpr int64_t kAlign = 64;  // a cache line: no two threads write to the same one

int64_t aligned(int64_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

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

int64_t Loader::worth_ahead(const Source& source, int64_t batch, int threads) {
  return std::min(batch, std::max<int64_t>(threads + 1, kWorthBytes / source.sample_bytes()));
}

int64_t Loader::memory_bytes(const Source& source, const Options& options) {
  return options.ahead * aligned(source.sample_bytes()) +
         options.threads * aligned(source.scratch_bytes());
}

Loader::Loader(const Source& source, const Options& options, int64_t first_step,
               std::span<std::byte> memory)
    : source_(source),
      options_(options),
      share_(options.taken()),
      order_(options.seed, source.info().count),
      slots_(static_cast<size_t>(options.ahead)),
      next_(first_step * share_.count),
      taken_(next_) {
  require(options.batch >= 1 && options.threads >= 1 && options.ahead >= 1 && first_step >= 0,
          "loader: batch {}, threads {}, {} ahead, first step {}", options.batch, options.threads,
          options.ahead, first_step);
  require(share_.first >= 0 && share_.count >= 1 && share_.first + share_.count <= options.batch,
          "loader: samples {} to {} of a batch of {}", share_.first, share_.first + share_.count,
          options.batch);
  require(std::ssize(memory) >= memory_bytes(source, options) &&
              reinterpret_cast<uintptr_t>(memory.data()) % kAlign == 0,
          "loader: {} bytes of memory, wanted {} aligned to {}", memory.size(),
          memory_bytes(source, options), kAlign);
  std::byte* at = memory.data();
  for (Slot& slot : slots_) {
    slot.values = at;
    at += aligned(source.sample_bytes());
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
    work_.wait(lock, [&] { return stopping_ || next_ < taken_ + std::ssize(slots_); });
    if (stopping_) return;
    const int64_t number = next_++;
    Slot& slot = slot_of(number);
    lock.unlock();

    std::exception_ptr error;
    try {
      load(slot, position(number), scratch);
    } catch (...) {
      error = std::current_exception();
    }

    lock.lock();
    slot.error = std::move(error);
    slot.ready = true;
    if (number == taken_) finished_.notify_one();
  }
}

void Loader::load(Slot& slot, int64_t position, std::span<std::byte> scratch) {
  for (uint32_t attempt = 0;; ++attempt) {
    const int64_t index =
        attempt == 0 ? order_.at(position) : order_.stand_in(position, attempt - 1);
    const bool last = attempt == kMostAttempts || source_.most_bad() == 0;
    std::string reason;
    if (last || !is_bad(index)) {
      try {
        source_.load(slot.values, &slot.label, index, scratch);
        return;
      } catch (const Error& error) {
        if (last || error.code() != Exit::data) throw;
        reason = error.what();
      }
    }
    const std::lock_guard lock(mutex_);
    reasons_.try_emplace(index, std::move(reason));
    slot.bad.push_back(index);
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

void Loader::note_bad(Slot& slot) {
  for (const int64_t index : slot.bad) {
    if (!counted_.insert(index).second) continue;
    notes_.push_back(reasons_.at(index));
    if (std::ssize(counted_) > source_.most_bad()) {
      slot.error = std::make_exception_ptr(too_many_bad(index));
      break;
    }
  }
  slot.bad.clear();
}

// No thread touches what it returns until taken_ moves on.
Loader::Slot& Loader::wait_for(int64_t number) {
  std::unique_lock lock(mutex_);
  Slot& slot = slot_of(number);
  finished_.wait(lock, [&] { return slot.ready; });
  if (!slot.error) note_bad(slot);
  if (slot.error) std::rethrow_exception(slot.error);
  return slot;
}

void Loader::free_slot(Slot& slot) {
  {
    const std::lock_guard lock(mutex_);
    slot.ready = false;
    ++taken_;
  }
  work_.notify_one();
}

void Loader::take(DeviceMemory& memory, Place values, const Place* labels, int64_t first,
                  int64_t count) {
  constexpr auto kLabel = static_cast<int64_t>(sizeof(int32_t));
  require(first == taken_ % share_.count && first + count <= share_.count,
          "loader: asked for samples {} to {} of {} in each batch, the next is {}", first,
          first + count, share_.count, taken_ % share_.count);
  for (int64_t i = 0; i < count; ++i) {
    Slot& slot = wait_for(taken_);
    memory.write({values.piece, values.offset + i * source_.sample_bytes()}, slot.values,
                 source_.sample_bytes());
    if (labels != nullptr) {
      memory.write({labels->piece, labels->offset + i * kLabel}, &slot.label, kLabel);
    }
    free_slot(slot);
  }
}

}  // namespace ebb
