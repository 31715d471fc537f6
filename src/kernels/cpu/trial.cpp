#include "kernels/cpu/trial.h"

#include <immintrin.h>

#include <algorithm>
#include <chrono>
#include <string_view>

#include "kernels/cpu/kernels.h"
#include "kernels/cpu/parallel.h"

namespace ebb::cpu {

namespace {

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

int64_t arg_bytes(const Arg& arg) { return element_count(arg.shape) * dtype_bytes(arg.type); }

// Numbers that suit any op: positive and below one, so also variances and norms; times in the
// middle, for the first one takes another path of the loss; labels 0. By all threads, as the op
// before would have: one that waited for long is woken late, and often on a CPU that is taken.
void fill(const Arg& arg, std::byte* place) {
  const bool is_float = arg.type == DType::f32;
  const bool times = std::string_view(arg.name) == "t";
  constexpr int64_t kLine = 64;
  const int64_t bytes = arg_bytes(arg);
  parallel_range((bytes + kLine - 1) / kLine, 1, kLine, [&](int64_t begin, int64_t end) {
    const int64_t first = begin * kLine;
    const int64_t last = std::min(end * kLine, bytes);
    if (!is_float) {
      std::fill(place + first, place + last, std::byte{0});
      return;
    }
    auto* values = reinterpret_cast<float*>(place);
    constexpr int64_t kFloat = sizeof(float);
    for (int64_t i = first / kFloat; i < last / kFloat; ++i) {
      values[i] = times ? 500.0f : 0.01f * static_cast<float>(i % 64 + 1);
    }
  });
}

// Out of all caches, written back to memory.
void flush(const Arg& arg, const std::byte* place) {
  constexpr int64_t kLine = 64;
  parallel_range((arg_bytes(arg) + kLine - 1) / kLine, 1, kLine, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) _mm_clflush(place + i * kLine);
  });
}

}  // namespace

Trial::Trial(const OpParams& params) : params_(params), signature_(signature(params)) {
  for (const auto* args : {&signature_.reads, &signature_.writes, &signature_.updates}) {
    for (const Arg& arg : *args) bytes_ += whole_lines(arg_bytes(arg));
  }
  scratch_bytes_ = scratch_of(params);
}

bool Trial::has_left(const Arg& arg) const {
  using Name = std::string_view;
  constexpr Name kAlways[] = {"w",   "low",   "dw",     "m", "v",
                              "ema", "table", "dtable", "u", "residual"};
  constexpr std::pair<Name, Name> kOfSome[] = {
      {Zero::kName, "x"},
      {SquaredNorm::kName, "g"},
      {AdamW::kName, "g"},
      {Lion::kName, "g"},
      {Adafactor::kName, "g"},
      {Shrink::kName, "squares"},
      {LinearBackwardParams::kName, "x"},
      {AdaLNBackward::kName, "x"},
      {AddGatedBackward::kName, "y"},
      {QkNormBackward::kName, "qkv"},
      {AttentionBackward::kName, "qkv"},
      {AttentionBackward::kName, "o"},
      {EncodeInt8::kName, "g"},
      {EncodeTopK::kName, "g"},
      {PowerProject::kName, "g"},
  };
  const Name op = std::visit([](const auto& each) { return each.kName; }, params_);
  return std::find(std::begin(kAlways), std::end(kAlways), arg.name) != std::end(kAlways) ||
         std::find(std::begin(kOfSome), std::end(kOfSome), std::pair{op, Name(arg.name)}) !=
             std::end(kOfSome);
}

double Trial::run(std::byte* memory) const {
  std::vector<const std::byte*> reads;
  std::vector<std::byte*> writes, updates;
  std::vector<std::pair<const Arg*, std::byte*>> all;
  std::byte* next = memory;
  const auto take = [&](const Arg& arg) {
    all.emplace_back(&arg, next);
    next += whole_lines(arg_bytes(arg));
    return all.back().second;
  };
  for (const Arg& arg : signature_.reads) reads.push_back(take(arg));
  for (const Arg& arg : signature_.writes) writes.push_back(take(arg));
  for (const Arg& arg : signature_.updates) updates.push_back(take(arg));
  for (const auto& [arg, place] : all) {
    if (!has_left(*arg)) continue;
    fill(*arg, place);
    flush(*arg, place);
  }
  for (const auto& [arg, place] : all) {
    if (!has_left(*arg)) fill(*arg, place);
  }
  const Scalars scalars;
  Call call;
  call.reads = reads;
  call.writes = writes;
  call.updates = updates;
  call.scratch = {next, static_cast<size_t>(scratch_bytes_)};
  call.scalars = &scalars;
  const double start = now();
  run_op(params_, call);
  return now() - start;
}

}  // namespace ebb::cpu
