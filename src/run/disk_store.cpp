#include "run/disk_store.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <system_error>
#include <vector>

#include "base/error.h"
#include "base/median.h"
#include "base/text.h"
#include "kernels/cpu/pages.h"

namespace ebb {

namespace {

namespace fs = std::filesystem;

constexpr int64_t kBlock = 4096;

int64_t rounded_down(int64_t n) { return n / kBlock * kBlock; }
int64_t rounded_up(int64_t n) { return rounded_down(n + kBlock - 1); }

[[noreturn]] void fail_with_errno(const fs::path& directory, const std::string& what,
                                  const std::string& hint) {
  fail(Exit::disk,
       fmt::format("--offload: {}: {}: {}", printable(directory.string()), what,
                   std::strerror(errno)),
       hint);
}

// A file that no other process can find, and that is gone with this one.
int open_nameless(const fs::path& directory, bool& direct) {
  std::string name = (directory / ("ebb-offload-" + std::string(6, 'X'))).string();
  int file = mkostemp(name.data(), O_CLOEXEC | (direct ? O_DIRECT : 0));
  if (file < 0 && errno == EINVAL && direct) {
    direct = false;
    return open_nameless(directory, direct);
  }
  if (file < 0) {
    fail_with_errno(directory, "no file can be made there",
                    "--offload wants a directory on a disk, that is there and can be written");
  }
  unlink(name.c_str());
  return file;
}

std::span<std::byte> whole_blocks(std::span<std::byte> memory) {
  const auto begin = reinterpret_cast<uintptr_t>(memory.data());
  const auto skipped = static_cast<int64_t>((kBlock - begin % kBlock) % kBlock);
  const int64_t left = static_cast<int64_t>(memory.size()) - skipped;
  require(left >= kBlock, "disk store: {} bytes to work in", memory.size());
  return memory.subspan(skipped, rounded_down(left));
}

}  // namespace

DiskStore::DiskStore(fs::path directory, int64_t bytes, std::span<std::byte> memory)
    : directory_(std::move(directory)), blocks_(whole_blocks(memory)) {
  file_ = open_nameless(directory_, direct_);
  const int64_t size = rounded_up(bytes);
  // Room that is taken now cannot be missing later. Some file systems cannot promise it.
  const bool reserved = fallocate(file_, 0, 0, size) == 0;
  if (!reserved && (errno != EOPNOTSUPP || ftruncate(file_, size) != 0)) {
    const int reason = errno;
    close(file_);
    errno = reason;
    fail_with_errno(directory_, fmt::format("no room for {}", format_size(size)),
                    "free space there, or name another directory");
  }
  thread_ = std::thread([this] { work(); });
}

DiskStore::~DiskStore() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
  }
  asked_.notify_one();
  thread_.join();
  close(file_);
}

Lane::Ticket DiskStore::fetch(DeviceMemory& memory, Place to, int64_t offset, int64_t bytes) {
  return ask({true, &memory, to, nullptr, offset, bytes});
}

Lane::Ticket DiskStore::store(DeviceMemory& memory, Place from, int64_t offset, int64_t bytes) {
  return ask({false, &memory, from, nullptr, offset, bytes});
}

void DiskStore::read(void* to, int64_t offset, int64_t bytes) {
  wait(ask({true, nullptr, {}, static_cast<std::byte*>(to), offset, bytes}));
}

void DiskStore::write(const void* from, int64_t offset, int64_t bytes) {
  auto* values = static_cast<std::byte*>(const_cast<void*>(from));
  wait(ask({false, nullptr, {}, values, offset, bytes}));
}

Lane::Ticket DiskStore::ask(const Request& request) {
  Ticket ticket = 0;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    queue_.push_back(request);
    ticket = ++last_asked_;
  }
  asked_.notify_one();
  return ticket;
}

void DiskStore::wait(Ticket ticket) {
  std::unique_lock<std::mutex> lock(mutex_);
  done_.wait(lock, [&] { return last_done_ >= ticket; });
  if (failure_.empty()) return;
  fail(Exit::disk, failure_, "what was saved before is intact: --resume goes on from there");
}

void DiskStore::work() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    asked_.wait(lock, [&] { return stopping_ || !queue_.empty(); });
    if (queue_.empty()) return;
    const Request request = queue_.front();
    queue_.pop_front();
    const bool failed = !failure_.empty();
    lock.unlock();
    std::string failure;
    try {
      if (!failed) carry_out(request);
    } catch (const Error& error) {
      failure = error.what();
    }
    lock.lock();
    if (failure_.empty()) failure_ = failure;
    ++last_done_;
    done_.notify_all();
  }
}

// Whole blocks at a time. What a store covers in part is read first.
void DiskStore::carry_out(const Request& request) {
  const int64_t end = request.offset + request.bytes;
  for (int64_t at = request.offset; at < end;) {
    const int64_t begin = rounded_down(at);
    const int64_t stop = std::min(end, begin + static_cast<int64_t>(blocks_.size()));
    const int64_t length = rounded_up(stop) - begin;
    std::byte* inside = blocks_.data() + (at - begin);
    const int64_t done = at - request.offset;
    const Place place{request.place.piece, request.place.offset + done};
    const bool partial = at != begin || stop % kBlock != 0;
    if (request.fetches || partial) read_blocks(begin, length);
    if (request.fetches) {
      request.memory != nullptr ? request.memory->write(place, inside, stop - at)
                                : void(std::memcpy(request.host + done, inside, stop - at));
    } else {
      request.memory != nullptr ? request.memory->read(inside, place, stop - at)
                                : void(std::memcpy(inside, request.host + done, stop - at));
      write_blocks(begin, length);
    }
    at = stop;
  }
}

void DiskStore::read_blocks(int64_t offset, int64_t bytes) {
  for (int64_t done = 0; done < bytes;) {
    const ssize_t got = pread(file_, blocks_.data() + done, bytes - done, offset + done);
    if (got < 0 && errno == EINTR) continue;
    if (got == 0) errno = EIO;
    if (got <= 0) fail_with_errno(directory_, "reading what was kept there", "");
    done += got;
  }
  if (!direct_) posix_fadvise(file_, offset, bytes, POSIX_FADV_DONTNEED);
}

void DiskStore::write_blocks(int64_t offset, int64_t bytes) {
  for (int64_t done = 0; done < bytes;) {
    const ssize_t put = pwrite(file_, blocks_.data() + done, bytes - done, offset + done);
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) fail_with_errno(directory_, "writing there", "");
    done += put;
  }
  if (direct_) return;
  constexpr unsigned kWritten =
      SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER;
  sync_file_range(file_, offset, bytes, kWritten);
  posix_fadvise(file_, offset, bytes, POSIX_FADV_DONTNEED);
}

LaneKind disk_lane(const fs::path& directory) {
  LaneKind lane;
  lane.name = "disk";
  lane.memory_bytes = kDiskMemory;
  lane.where = directory.string();
  lane.open = [directory](int64_t bytes, std::span<std::byte> memory) {
    return std::make_unique<DiskStore>(directory, bytes, memory);
  };
  return lane;
}

bool is_in_memory(const fs::path& directory) {
  constexpr long kTmpfs = 0x01021994, kRamfs = 0x858458f6;
  struct statfs info {};
  if (statfs(directory.c_str(), &info) != 0) return false;
  return info.f_type == kTmpfs || info.f_type == kRamfs;
}

std::string disk_identity(const fs::path& directory) {
  struct stat info {};
  if (stat(directory.c_str(), &info) != 0) return "no disk";
  return fmt::format("disk of device {}", info.st_dev);
}

DiskSpeed measure_disk(const fs::path& directory) {
  // Through less memory than a run's transfers: a budget that holds those must hold this too.
  constexpr int64_t kPart = 1 << 20, kParts = 48;
  constexpr int kRounds = 3;
  // Mapped, not of the heap: a large block that was freed makes the heap keep others.
  const cpu::Pages memory(2 * kPart);
  DiskStore store(directory, kPart * kParts, {memory.data(), static_cast<size_t>(kPart)});
  std::byte* values = memory.data() + kPart;
  const auto rate = [&](auto&& one) {
    const auto start = std::chrono::steady_clock::now();
    for (int64_t i = 0; i < kParts; ++i) one(i * kPart);
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
    return static_cast<double>(kPart * kParts) / taken.count();
  };
  std::vector<double> reads, writes;
  for (int round = 0; round < kRounds; ++round) {
    writes.push_back(rate([&](int64_t offset) { store.write(values, offset, kPart); }));
    reads.push_back(rate([&](int64_t offset) { store.read(values, offset, kPart); }));
  }
  return {median(reads), median(writes)};
}

}  // namespace ebb
