// Linear layers on oneDNN's matmul. Primitives are made once per role and shape; their scratchpad
// is the op's scratch, so the plan owns it wherever oneDNN lets it.
#include <dnnl.hpp>

#include <cstring>
#include <map>
#include <memory>
#include <tuple>

#include "base/error.h"
#include "kernels/cpu/device.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/vec.h"

namespace ebb {

namespace cpu {

namespace {

using Tag = dnnl::memory::format_tag;
constexpr auto kF32 = dnnl::memory::data_type::f32;

dnnl::engine& engine() {
  static dnnl::engine made(dnnl::engine::kind::cpu, 0);
  return made;
}

dnnl::stream& stream() {
  static dnnl::stream made(engine());
  return made;
}

// c (M, N) = a (M, K) b (K, N) [+ bias] or, with accumulate, c += a b. A transposed operand is
// stored the other way round.
struct MatmulShape {
  int64_t M, N, K;
  bool a_transposed, b_transposed, bias, accumulate;
  auto operator<=>(const MatmulShape&) const = default;
};

class Matmul {
 public:
  explicit Matmul(const MatmulShape& s) {
    const dnnl::memory::desc a({s.M, s.K}, kF32, s.a_transposed ? Tag::ba : Tag::ab);
    const dnnl::memory::desc b({s.K, s.N}, kF32, s.b_transposed ? Tag::ba : Tag::ab);
    const dnnl::memory::desc c({s.M, s.N}, kF32, Tag::ab);
    const dnnl::memory::desc bias({1, s.N}, kF32, Tag::ab);
    dnnl::primitive_attr attr;
    attr.set_scratchpad_mode(dnnl::scratchpad_mode::user);
    if (s.accumulate) {
      dnnl::post_ops sum;
      sum.append_sum(1.0f);
      attr.set_post_ops(sum);
    }
    const auto desc = s.bias ? dnnl::matmul::desc(a, b, bias, c) : dnnl::matmul::desc(a, b, c);
    made_ = dnnl::matmul::primitive_desc(desc, attr, engine());
    scratch_bytes_ = static_cast<int64_t>(made_.scratchpad_desc().get_size());
    const auto empty = [](const dnnl::memory::desc& d) {
      return dnnl::memory(d, engine(), DNNL_MEMORY_NONE);
    };
    args_ = {{DNNL_ARG_SRC, empty(a)},
             {DNNL_ARG_WEIGHTS, empty(b)},
             {DNNL_ARG_DST, empty(c)},
             {DNNL_ARG_SCRATCHPAD, empty(made_.scratchpad_desc())}};
    if (s.bias) args_.emplace(DNNL_ARG_BIAS, empty(bias));
  }

  int64_t scratch_bytes() const { return scratch_bytes_; }

  // The planner asks for the scratch of many shapes that never run: only here is code made.
  void prepare() {
    if (!primitive_) primitive_ = dnnl::matmul(made_);
  }

  void run(float* c, const float* a, const float* b, const float* bias, std::byte* scratch) {
    set(DNNL_ARG_SRC, a);
    set(DNNL_ARG_WEIGHTS, b);
    set(DNNL_ARG_DST, c);
    set(DNNL_ARG_SCRATCHPAD, scratch);
    if (bias) set(DNNL_ARG_BIAS, bias);
    prepare();
    primitive_.execute(stream(), args_);
    stream().wait();
  }

 private:
  // oneDNN's handles are not const; sources are only read.
  void set(int arg, const void* data) { args_.at(arg).set_data_handle(const_cast<void*>(data)); }

  dnnl::matmul::primitive_desc made_;
  dnnl::matmul primitive_;
  std::unordered_map<int, dnnl::memory> args_;
  int64_t scratch_bytes_ = 0;
};

using Matmuls = std::map<std::pair<int, MatmulShape>, std::unique_ptr<Matmul>>;

Matmuls& matmuls() {
  static Matmuls made;
  // oneDNN's own cache would keep what is forgotten here.
  static const bool uncached = [] {
    dnnl::set_primitive_cache_capacity(0);
    return true;
  }();
  static_cast<void>(uncached);
  return made;
}

Matmul& matmul(const MatmulShape& shape) {
  auto& found = matmuls()[{omp_get_max_threads(), shape}];
  if (!found) found = std::make_unique<Matmul>(shape);
  return *found;
}

MatmulShape shape_of(const Linear& op) { return {op.R, op.N, op.K, false, true, true, false}; }
MatmulShape shape_of(const LinearBackwardInput& op) {
  return {op.R, op.K, op.N, false, false, false, false};
}
MatmulShape shape_of(const LinearBackwardWeight& op) {
  return {op.N, op.K, op.R, true, false, false, !op.begins};
}

constexpr int64_t kBiasRows = 128;  // rows summed into one partial result
int64_t bias_chunks(const LinearBackwardBias& op) { return (op.R + kBiasRows - 1) / kBiasRows; }

}  // namespace

int64_t scratch(const Linear& op) { return matmul(shape_of(op)).scratch_bytes(); }
int64_t scratch(const LinearBackwardInput& op) { return matmul(shape_of(op)).scratch_bytes(); }
int64_t scratch(const LinearBackwardWeight& op) { return matmul(shape_of(op)).scratch_bytes(); }
int64_t scratch(const LinearBackwardBias& op) { return bias_chunks(op) * op.N * 4; }

void run(const Linear& op, const Call& call) {
  matmul(shape_of(op))
      .run(call.write(0), call.read(0), call.read(1), call.read(2), call.scratch.data());
}

void run(const LinearBackwardInput& op, const Call& call) {
  matmul(shape_of(op)).run(call.write(0), call.read(0), call.read(1), nullptr, call.scratch.data());
}

void run(const LinearBackwardWeight& op, const Call& call) {
  matmul(shape_of(op))
      .run(op.begins ? call.write(0) : call.update(0), call.read(0), call.read(1), nullptr,
           call.scratch.data());
}

void run(const LinearBackwardBias& op, const Call& call) {
  const float* dy = call.read(0);
  float* db = call.update(0);
  auto* partial = reinterpret_cast<float*>(call.scratch.data());
  const int64_t chunks = bias_chunks(op);
  parallel_range(chunks, 1, kBiasRows * op.N, [&](int64_t begin, int64_t end) {
    for (int64_t chunk = begin; chunk < end; ++chunk) {
      float* sums = partial + chunk * op.N;
      std::memset(sums, 0, op.N * sizeof(float));
      for (int64_t r = chunk * kBiasRows; r < std::min(op.R, (chunk + 1) * kBiasRows); ++r) {
        const float* row = dy + r * op.N;
        for (int64_t i = 0; i < op.N; ++i) sums[i] += row[i];
      }
    }
  });
  for (int64_t chunk = 0; chunk < chunks; ++chunk) {
    for (int64_t i = 0; i < op.N; ++i) db[i] += partial[chunk * op.N + i];
  }
}

}  // namespace cpu

void prepare_cpu(const OpParams& params) {
  if (const auto* forward = std::get_if<Linear>(&params)) {
    cpu::matmul(cpu::shape_of(*forward)).prepare();
  } else if (const auto* input = std::get_if<LinearBackwardInput>(&params)) {
    cpu::matmul(cpu::shape_of(*input)).prepare();
  } else if (const auto* weight = std::get_if<LinearBackwardWeight>(&params)) {
    cpu::matmul(cpu::shape_of(*weight)).prepare();
  }
}

void forget_cpu_kernels() { cpu::matmuls().clear(); }

bool cpu_packs_by_itself() { return dnnl::get_effective_cpu_isa() < dnnl::cpu_isa::avx512_core; }

std::string cpu_isa() {
  switch (dnnl::get_effective_cpu_isa()) {
    case dnnl::cpu_isa::avx2:
      return "AVX2";
    case dnnl::cpu_isa::avx512_core:
      return "AVX-512";
    case dnnl::cpu_isa::avx512_core_vnni:
      return "AVX-512 VNNI";
    case dnnl::cpu_isa::avx512_core_bf16:
      return "AVX-512 BF16";
    case dnnl::cpu_isa::avx512_core_amx:
      return "AVX-512 AMX";
    default:
      return "x86-64";
  }
}

void plain_sgemm(GemmRole role, int64_t R, int64_t K, int64_t N, const float* a, const float* b,
                 float* c) {
  switch (role) {
    case GemmRole::forward:  // c (R, N) = a (R, K) b (N, K)ᵀ
      dnnl_sgemm('N', 'T', R, N, K, 1.0f, a, K, b, K, 0.0f, c, N);
      return;
    case GemmRole::backward_input:  // c (R, K) = a (R, N) b (N, K)
      dnnl_sgemm('N', 'N', R, K, N, 1.0f, a, N, b, K, 0.0f, c, K);
      return;
    case GemmRole::backward_weight:  // c (N, K) += a (R, N)ᵀ b (R, K)
      dnnl_sgemm('T', 'N', N, K, R, 1.0f, a, N, b, K, 1.0f, c, K);
      return;
  }
}

}  // namespace ebb
