#include "train/json_log.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstring>
#include <fstream>

#include "base/error.h"
#include "base/text.h"
#include "train/rank_seconds.h"

namespace ebb {

namespace {

// The bytes of the leading lines that are whole records of steps up to `last_step`. No record is as
// long as the buffer: whatever the file is, no more is held of it.
int64_t bytes_to_keep(const std::filesystem::path& path, int64_t last_step) {
  std::ifstream in(path, std::ios::binary);
  int64_t keep = 0;
  for (char line[4096]; in.getline(line, sizeof(line)) && !in.eof();) {
    int64_t step = 0;
    if (std::sscanf(line, "{\"step\":%ld,", &step) != 1 || step > last_step) break;
    keep += in.gcount();
  }
  return keep;
}

// JSON has no word for what is not finite.
std::string json_number(double x) { return std::isfinite(x) ? fmt::format("{:.9g}", x) : "null"; }

// The rank that the others wait for, and where the time goes: the mean of all ranks.
std::string ranks_text(const std::vector<RankSeconds>& ranks) {
  const int slowest = slowest_rank(ranks);
  const RankSeconds mean = mean_of(ranks);
  return fmt::format(
      ",\"slowest_rank\":{},\"slowest_compute_seconds\":{:.6f},\"compute_seconds\":{:.6f},"
      "\"wait_seconds\":{:.6f},\"exchange_seconds\":{:.6f}",
      slowest, ranks[slowest].computing, mean.computing, mean.waiting, mean.exchanging);
}

}  // namespace

JsonLog::JsonLog(const std::filesystem::path& path, int64_t last_step) : path_(path) {
  const int64_t keep = bytes_to_keep(path, last_step);
  file_ = open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (file_ < 0 || ftruncate(file_, keep) != 0) {
    fail(Exit::disk, fmt::format("{}: cannot be written: {}", path.string(), std::strerror(errno)),
         "choose another --out");
  }
}

JsonLog::~JsonLog() { close(file_); }

void JsonLog::step(const StepRecord& r) {
  std::string line = fmt::format(
      "{{\"step\":{},\"loss\":{},\"lr\":{:.9g},\"grad_norm\":{},\"seconds\":{:.6f},"
      "\"images_per_second\":{:.3f},\"arena_peak_bytes\":{},\"process_peak_bytes\":{}",
      r.step, json_number(r.loss), r.lr, json_number(r.grad_norm), r.seconds, r.images_per_second,
      r.arena_peak_bytes, r.process_peak_bytes);
  if (r.loss_scale != 0) line += fmt::format(",\"loss_scale\":{}", r.loss_scale);
  if (r.skipped) line += ",\"skipped\":true";
  if (!r.ranks.empty()) line += ranks_text(r.ranks);
  line += "}\n";
  if (::write(file_, line.data(), line.size()) != static_cast<ssize_t>(line.size())) {
    fail(Exit::disk, fmt::format("{}: cannot be written: {}", path_.string(), std::strerror(errno)),
         "free some disk space and --resume");
  }
}

}  // namespace ebb
