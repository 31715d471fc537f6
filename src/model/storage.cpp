#include "model/storage.h"

#include <fmt/ranges.h>

#include "program/offload.h"

namespace ebb {

Program Offload::moved(Program program, const std::vector<Home>& homes) const {
  return offloaded(std::move(program), homes, std::vector<int64_t>(lane + 1, memory_bytes));
}

std::string storage_text(const Storage& s) {
  const auto name = [](DType type) { return type == DType::f16 ? "fp16" : "bf16"; };
  std::vector<std::string> parts;
  if (s.activation != DType::f32)
    parts.push_back(fmt::format("activations {}", name(s.activation)));
  if (s.gradient != DType::f32) parts.push_back(fmt::format("gradients {}", name(s.gradient)));
  if (s.moments != Moments::f32) parts.emplace_back("moments 8-bit");
  if (s.galore_rank > 0) parts.push_back(fmt::format("moments of rank {}", s.galore_rank));
  if (s.ema != DType::f32) parts.push_back(fmt::format("average {}", name(s.ema)));
  return parts.empty() ? "fp32" : fmt::format("{}", fmt::join(parts, ", "));
}

}  // namespace ebb
