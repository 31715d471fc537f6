#include "cli/bench_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/text.h"
#include "plan/layout.h"
#include "train/rank_seconds.h"

namespace ebb {

namespace {

template <typename Value>
Value most(const std::vector<RankBench>& ranks, Value RankBench::*value) {
  Value most = 0;
  for (const RankBench& rank : ranks) most = std::max(most, rank.*value);
  return most;
}

std::string layout_of(const BenchReport& r) { return layout_text(r.place); }

nlohmann::ordered_json ranks_json(const BenchReport& r) {
  auto list = nlohmann::ordered_json::array();
  for (size_t i = 0; i < r.ranks.size(); ++i) {
    const RankBench& rank = r.ranks[i];
    list.push_back({{"rank", i},
                    {"step_seconds", rank.step_seconds},
                    {"compute_seconds", rank.seconds.computing},
                    {"wait_seconds", rank.seconds.waiting},
                    {"exchange_seconds", rank.seconds.exchanging},
                    {"sent_bytes", rank.sent_bytes},
                    {"planned_sent_bytes", rank.planned_sent_bytes},
                    {"process_peak_bytes", rank.peak_bytes},
                    {"planned_process_bytes", rank.planned_bytes}});
  }
  return list;
}

std::string ranks_text(const BenchReport& r) {
  std::string text =
      fmt::format("\n  {:>4} {:>10} {:>10} {:>10} {:>11} {:>11} {:>11}\n", "rank", "computing",
                  "waiting", "exchanging", "sent a step", "planned", "peak");
  for (size_t i = 0; i < r.ranks.size(); ++i) {
    const RankBench& rank = r.ranks[i];
    text +=
        fmt::format("  {:>4} {:>10} {:>10} {:>10} {:>11} {:>11} {:>11}\n", i,
                    format_seconds(rank.seconds.computing), format_seconds(rank.seconds.waiting),
                    format_seconds(rank.seconds.exchanging), format_size(rank.sent_bytes),
                    format_size(rank.planned_sent_bytes), format_size(rank.peak_bytes));
  }
  text += "\n";
  for (const std::string& line : rank_lines(r.rank_seconds())) text += fmt::format("  {}\n", line);
  return text;
}

}  // namespace

double BenchReport::step_seconds() const { return most(ranks, &RankBench::step_seconds); }
int64_t BenchReport::peak_bytes() const { return most(ranks, &RankBench::peak_bytes); }
int64_t BenchReport::planned_bytes() const { return most(ranks, &RankBench::planned_bytes); }

double BenchReport::sgemm_flops_per_second() const {
  double sum = 0;
  for (const RankBench& rank : ranks) sum += rank.sgemm_flops_per_second;
  return sum;
}

std::vector<RankSeconds> BenchReport::rank_seconds() const {
  std::vector<RankSeconds> all;
  for (const RankBench& rank : ranks) all.push_back(rank.seconds);
  return all;
}

std::vector<RankBench> told_by_all(Peers& peers, const RankBench& own) {
  const double numbers[] = {own.step_seconds,
                            own.seconds.computing,
                            own.seconds.waiting,
                            own.seconds.exchanging,
                            static_cast<double>(own.sent_bytes),
                            static_cast<double>(own.peak_bytes),
                            own.sgemm_flops_per_second,
                            static_cast<double>(own.planned_bytes),
                            static_cast<double>(own.planned_sent_bytes)};
  std::vector<double> all;
  peers.any(0, numbers, all);
  std::vector<RankBench> ranks;
  for (size_t i = 0; i < all.size(); i += std::size(numbers)) {
    const double* n = &all[i];
    const auto bytes = [&](int at) { return static_cast<int64_t>(n[at]); };
    ranks.push_back({n[0], {n[1], n[2], n[3]}, bytes(4), bytes(5), n[6], bytes(7), bytes(8)});
  }
  return ranks;
}

std::string bench_text(const BenchReport& r) {
  const bool alone = r.place.alone();
  std::string text = fmt::format("{} batch {}, {} tokens, {}{} threads, {}\n", r.model, r.batch,
                                 r.tokens, alone ? "" : layout_of(r) + " with ", r.threads, r.isa);
  text += fmt::format("  step   {:>10}   {}, {} predicted\n", format_seconds(r.step_seconds()),
                      format_rate(static_cast<double>(r.batch) / r.step_seconds()),
                      format_seconds(r.predicted_seconds));
  if (r.recalibrated_seconds > 0) {
    text +=
        fmt::format("         {:>10}   predicted, for the machine as it was between the steps\n",
                    format_seconds(r.recalibrated_seconds));
  }
  text += fmt::format("  model  {:>7.1f} GFLOP/s\n", r.model_gflops());
  text += fmt::format("  sgemm  {:>7.1f} GFLOP/s at the step's own shapes{}\n",
                      r.sgemm_flops_per_second() * 1e-9, alone ? "" : ", all ranks at once");
  text += fmt::format("  ratio  {:>7.3f}\n", r.of_sgemm());
  text += fmt::format("  peak   {:>10} of the {}, {} planned\n", format_size(r.peak_bytes()),
                      alone ? "process" : "fullest rank", format_size(r.planned_bytes()));
  if (!alone) text += ranks_text(r);
  if (r.profile == nullptr) return text;
  if (!alone) text += "\n  rank 0 by operation:\n";
  return text + r.profile->text(measure_limits());
}

std::string bench_json(const BenchReport& r) {
  nlohmann::ordered_json j;
  j["model"] = r.model;
  j["batch"] = r.batch;
  j["tokens"] = r.tokens;
  j["step_seconds"] = r.step_seconds();
  j["model_gflops"] = r.model_gflops();
  j["sgemm_gflops"] = r.sgemm_flops_per_second() * 1e-9;
  j["of_sgemm"] = r.of_sgemm();
  j["process_peak_bytes"] = r.peak_bytes();
  j["predicted_step_seconds"] = r.predicted_seconds;
  if (r.recalibrated_seconds > 0) j["recalibrated_step_seconds"] = r.recalibrated_seconds;
  j["planned_process_bytes"] = r.planned_bytes();
  j["threads"] = r.threads;
  j["isa"] = r.isa;
  if (!r.place.alone()) {
    j["images_per_second"] = static_cast<double>(r.batch) / r.step_seconds();
    j["layout"] = layout_of(r);
    j["link_bytes_per_second"] = r.link.bytes_per_second;
    j["link_latency_seconds"] = r.link.latency_seconds;
    j["slowest_rank"] = slowest_rank(r.rank_seconds());
    j["ranks"] = ranks_json(r);
  }
  if (r.profile != nullptr) j["profile"] = r.profile->json(measure_limits());
  return j.dump(2);
}

}  // namespace ebb
