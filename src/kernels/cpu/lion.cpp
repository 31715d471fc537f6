#include "kernels/cpu/kernels.h"
#include "kernels/cpu/parameter.h"
#include "kernels/moment_code.h"

namespace ebb::cpu {

namespace {

class LionBlocks {
 public:
  LionBlocks(const Lion& op, const Call& call)
      : op_(op),
        call_(call),
        parameter_(op, call, is_coded() ? 2 : 1),
        factor_(splat(call.read(1)[1])),
        share1_(splat(static_cast<float>(1 - op.beta1))),
        share2_(splat(static_cast<float>(1 - op.beta2))),
        keep_(splat(static_cast<float>(1 - call.scalars->lr * op.decay))),
        ema_share_(splat(static_cast<float>(1 - call.scalars->ema_decay))) {}

  void run(int64_t first, int64_t n) const {
    alignas(64) float g[kMomentBlock], w[kMomentBlock], m[kMomentBlock], ema[kMomentBlock];
    const float* from = parameter_.gradient(g, first, n);
    float* weight = parameter_.weight(w, first, n);
    float* moment = m;
    if (is_coded()) {
      decode_first(m, coded(first), n);
    } else {
      moment = call_.update(parameter_.first_own()) + first;
    }
    const float lr = call_.scalars->lr;
    for_lanes(0, n, [&](int64_t i, auto get, auto put) {
      const Vec last = get(moment + i);
      const Vec change = multiply_less(get(from + i), factor_, last);
      const Vec way = multiply_add(share1_, change, last);
      const Vec step = way > 0.0f ? splat(lr) : way < 0.0f ? splat(-lr) : splat(0.0f);
      put(moment + i, multiply_add(share2_, change, last));
      put(weight + i, multiply_less(get(weight + i), keep_, step));
    });
    parameter_.put_weight(weight, first, n);
    if (is_coded()) encode(m, first, n);
    if (!parameter_.averages()) return;
    float* average = parameter_.average(ema, first, n);
    for_lanes(0, n, [&](int64_t i, auto get, auto put) {
      const Vec off = get(weight + i) - get(average + i);
      put(average + i, multiply_add(ema_share_, off, get(average + i)));
    });
    parameter_.put_average(average, first, n);
  }

 private:
  bool is_coded() const { return op_.moments == Moments::coded; }
  CodedBlock coded(int64_t first) const {
    const int codes = parameter_.first_own();
    return {call_.update<uint8_t>(codes) + first, call_.update(codes + 1) + first / kMomentBlock};
  }
  void encode(const float* m, int64_t first, int64_t n) const {
    uint32_t words[kRandomWords];
    parameter_.random(words, Stream::moment_rounding, first);
    encode_first(coded(first), m, n,
                 [&](int64_t i) { return static_cast<float>(words[i] & 0xffff) * 0x1p-16f; });
  }

  const Lion& op_;
  const Call& call_;
  const Parameter<Lion> parameter_;
  const Vec factor_, share1_, share2_, keep_, ema_share_;
};

}  // namespace

void run(const Lion& op, const Call& call) { run_blocks<LionBlocks>(op, call); }

}  // namespace ebb::cpu
