// What is measured of the machine before anything is planned.
#include <algorithm>
#include <vector>

#include "kernels/cpu/device.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/pages.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/vec.h"

namespace ebb {

int64_t warm_up_cpu(const Linear& shape) {
  const LinearBackwardInput input{shape.R, shape.K, shape.N};
  const LinearBackwardWeight weight{shape.R, shape.K, shape.N};
  const int64_t x_bytes = cpu::whole_lines(shape.R * shape.K * 4);
  const int64_t w_bytes = cpu::whole_lines(shape.N * shape.K * 4);
  const int64_t y_bytes = cpu::whole_lines(shape.R * shape.N * 4);
  const int64_t b_bytes = cpu::whole_lines(shape.N * 4);
  const int64_t scratch_bytes =
      std::max({cpu::scratch(shape), cpu::scratch(input), cpu::scratch(weight), int64_t{64}});
  const int64_t bytes = x_bytes + w_bytes + y_bytes + b_bytes + scratch_bytes;
  const cpu::Pages pages(bytes);
  std::byte* x = pages.data();
  std::byte* w = x + x_bytes;
  std::byte* y = w + w_bytes;
  std::byte* b = y + y_bytes;
  const auto run = [&](const auto& op, std::vector<const std::byte*> reads,
                       std::vector<std::byte*> writes, std::vector<std::byte*> updates) {
    Call call;
    call.reads = reads;
    call.writes = writes;
    call.updates = updates;
    call.scratch = {b + b_bytes, static_cast<size_t>(scratch_bytes)};
    cpu::run(op, call);
  };
  run(shape, {x, w, b}, {y}, {});
  run(input, {y, w}, {x}, {});
  run(weight, {y, x}, {}, {w});
  return bytes;
}

void plain_copy(float* to, const float* from, int64_t n) {
  cpu::parallel_range(n, 4096, 1, [&](int64_t begin, int64_t end) {
    cpu::for_lanes(begin, end, [&](int64_t i, auto get, auto put) { put(to + i, get(from + i)); });
  });
}

}  // namespace ebb
