// A file without a name that holds what is not in memory. A thread of its own carries out transfers
// in the order in which they are asked for, past the page cache where the file system allows it.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <mutex>
#include <span>
#include <string>
#include <thread>

#include "program/lane.h"

namespace ebb {

class DiskStore final : public Lane {
 public:
  // Of `bytes` zeros, in a directory. Transfers go through `memory`, which outlives it: at least
  // two blocks of the file, 8 KiB. Fails with Exit::disk, also when there is no room for the bytes.
  DiskStore(std::filesystem::path directory, int64_t bytes, std::span<std::byte> memory);
  ~DiskStore() override;
  DiskStore(const DiskStore&) = delete;
  DiskStore& operator=(const DiskStore&) = delete;

  Ticket fetch(DeviceMemory& memory, Place to, int64_t offset, int64_t bytes) override;
  Ticket store(DeviceMemory& memory, Place from, int64_t offset, int64_t bytes) override;
  void wait(Ticket ticket) override;
  void read(void* to, int64_t offset, int64_t bytes) override;
  void write(const void* from, int64_t offset, int64_t bytes) override;

 private:
  struct Request {
    bool fetches;
    DeviceMemory* memory;  // null: the host's, at `host`
    Place place;
    std::byte* host;  // read only, of a store
    int64_t offset, bytes;
  };
  Ticket ask(const Request& request);
  void work();
  void carry_out(const Request& request);
  void read_blocks(int64_t offset, int64_t bytes);
  void write_blocks(int64_t offset, int64_t bytes);

  const std::filesystem::path directory_;
  std::span<std::byte> blocks_;  // the whole blocks in `memory`
  int file_ = -1;
  bool direct_ = true;

  std::mutex mutex_;
  std::condition_variable asked_, done_;
  std::deque<Request> queue_;
  Ticket last_asked_ = 0, last_done_ = 0;
  std::string failure_;  // the first
  bool stopping_ = false;
  std::thread thread_;
};

// The lane to a directory's disk; its rates are not measured yet.
LaneKind disk_lane(const std::filesystem::path& directory);

// Files there are memory: tmpfs and the like.
bool is_in_memory(const std::filesystem::path& directory);

// The device that the directory's files are on.
std::string disk_identity(const std::filesystem::path& directory);

struct DiskSpeed {
  double read = 0, write = 0;  // bytes per second
};
// Some hundred megabytes, written and read. Fails as DiskStore does.
DiskSpeed measure_disk(const std::filesystem::path& directory);

}  // namespace ebb
