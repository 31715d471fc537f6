#include <cmath>

#include "kernels/cpu/adam.h"
#include "kernels/cpu/adam_moments.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/norm_chunks.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/parameter.h"

namespace ebb::cpu {

namespace {

template <typename S>
void squared_norm(const SquaredNorm& op, const Call& call) {
  const S* g = call.read<S>(0);
  auto* partial = reinterpret_cast<double*>(call.scratch.data());
  parallel_range(norm_chunks(op.n), 1, kNormChunk, [&](int64_t begin, int64_t end) {
    for (int64_t chunk = begin; chunk < end; ++chunk) {
      const int64_t first = chunk * kNormChunk;
      partial[chunk] = chunk_squares(g + first, std::min(op.n - first, kNormChunk));
    }
  });
  double total = 0;
  for (int64_t chunk = 0; chunk < norm_chunks(op.n); ++chunk) total += partial[chunk];
  call.write<double>(0)[op.slot] = total;
}

}  // namespace

int64_t scratch(const SquaredNorm& op) { return norm_chunks(op.n) * 8; }

void run(const SquaredNorm& op, const Call& call) {
  with_storage(op.g, [&](auto element) { squared_norm<decltype(element)>(op, call); });
}

void run(const ClipScale& op, const Call& call) {
  double total = 0;
  for (int64_t i = 0; i < op.count; ++i) total += call.read<double>(0)[op.first + i];
  const double scale = call.scalars->loss_scale;
  const double norm = std::sqrt(total) / scale;
  call.write(0)[0] = static_cast<float>(norm);
  // The 1e-6 is PyTorch's, so that runs can be compared.
  const double factor = op.limit > 0 ? std::min(1.0, op.limit / (norm + 1e-6)) : 1.0;
  call.write(0)[1] = static_cast<float>(factor / scale);
}

namespace {

// The tensors of one update, and a block of each on its way through fp32.
class AdamBlocks {
 public:
  AdamBlocks(const AdamW& op, const Call& call)
      : rates_(op, call.read(1)[1], *call.scalars),
        parameter_(op, call, AdamMoments::updates(op)),
        moments_(op, call, parameter_.first_own()) {}

  void run(int64_t first, int64_t n) const {
    alignas(64) float g[kMomentBlock], w[kMomentBlock], m[kMomentBlock], v[kMomentBlock],
        ema[kMomentBlock];
    AdamBlock b{nullptr, nullptr, nullptr, nullptr, nullptr, n};
    b.g = parameter_.gradient(g, first, n);
    b.w = parameter_.weight(w, first, n);
    b.m = moments_.first(m, first, n);
    b.v = moments_.second(v, first, n);
    if (parameter_.averages()) b.ema = parameter_.average(ema, first, n);
    adam(b, rates_);
    parameter_.put_weight(b.w, first, n);
    if (moments_.coded()) {
      uint32_t words[kRandomWords];
      parameter_.random(words, Stream::moment_rounding, first);
      moments_.put_at_random(b.m, b.v, first, n, words);
    }
    if (b.ema != nullptr) parameter_.put_average(b.ema, first, n);
  }

 private:
  const AdamRates rates_;
  const Parameter<AdamW> parameter_;
  const AdamMoments moments_;
};

}  // namespace

void run(const AdamW& op, const Call& call) { run_blocks<AdamBlocks>(op, call); }

}  // namespace ebb::cpu
