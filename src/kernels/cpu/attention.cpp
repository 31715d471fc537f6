// Attention tile by tile: the T x T matrix never exists. Work is cut over samples and heads, and
// over tiles of queries (forward) or keys (backward), by a rule of the shape alone, so that the
// result does not depend on the number of threads.
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/cpu/kernels.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/tile_gemm.h"

namespace ebb::cpu {

namespace {

constexpr int64_t kQueries = 48;  // rows of a tile: a multiple of kTileRows
constexpr int64_t kKeys = 128;    // columns of a tile
constexpr float kLog2E = 1.44269504f;
constexpr int64_t kWantedTasks = 16;  // of fewer heads, each is cut into several tasks

// One head of one sample in qkv (B*T, 3*H*d) and o (B*T, H*d).
struct Head {
  const float *q, *k, *v;
  int64_t qkv_row, o_row, o_offset;
};

Head head_of(const float* qkv, int64_t head, int64_t T, int64_t H, int64_t d) {
  const int64_t b = head / H;
  const int64_t h = head % H;
  const float* first = qkv + b * T * 3 * H * d + h * d;
  return {first, first + H * d, first + 2 * H * d, 3 * H * d, H * d, b * T * H * d + h * d};
}

// Hands out the planned scratch of one thread piece by piece.
class Pieces {
 public:
  explicit Pieces(float* memory) : next_(memory) {}
  float* take(int64_t floats) {
    float* piece = next_;
    next_ += round_up(floats, 16);
    return piece;
  }

 private:
  float* next_;
};

int64_t query_tiles(int64_t T) { return (T + kQueries - 1) / kQueries; }
int64_t key_tiles(int64_t T) { return (T + kKeys - 1) / kKeys; }

}  // namespace

// ---- forward ------------------------------------------------------------------------------------

namespace {

struct ForwardScratch {
  float *kt, *v, *s, *o, *peak, *total, *rescale;
  static int64_t floats(int64_t T, int64_t d) {
    return key_tiles(T) * (packed_size(d, kKeys) + packed_size(kKeys, d)) + kQueries * kKeys +
           kQueries * padded(d) + 3 * kQueries + 7 * 16;
  }
  ForwardScratch(float* memory, int64_t T, int64_t d) {
    Pieces pieces(memory);
    kt = pieces.take(key_tiles(T) * packed_size(d, kKeys));
    v = pieces.take(key_tiles(T) * packed_size(kKeys, d));
    s = pieces.take(kQueries * kKeys);
    o = pieces.take(kQueries * padded(d));
    peak = pieces.take(kQueries);
    total = pieces.take(kQueries);
    rescale = pieces.take(kQueries);
  }
};

float largest(const float* s, int64_t count) {
  Vec top = splat(-std::numeric_limits<float>::infinity());
  int64_t j = 0;
  for (; j + kLanes <= count; j += kLanes) top = max(top, load(s + j));
  float best = max_lane(top);
  for (; j < count; ++j) best = std::max(best, s[j]);
  return best;
}

// s = 2^(scale s - peak); the sum of it.
float exp2_row(float* s, int64_t count, float scale, float peak) {
  const Vec factor = splat(scale);
  const Vec shift = splat(peak);
  Vec sums{};
  int64_t j = 0;
  for (; j + kLanes <= count; j += kLanes) {
    const Vec p = exp2(load(s + j) * factor - shift);
    store(s + j, p);
    sums += p;
  }
  float total = sum(sums);
  if (j < count) {
    const Vec p = exp2(load_part(s + j, count - j) * factor - shift);
    store_part(s + j, p, count - j);
    for (int64_t l = 0; l < count - j; ++l) total += p[l];
  }
  return total;
}

// s (rows, keys) scores -> 2^(scale s - new peak); updates peak, total, and rescales o to the new
// peak.
void softmax_tile(const ForwardScratch& w, int64_t rows, int64_t keys, int64_t o_width,
                  float scale) {
  float* before = w.rescale;
  for (int64_t i = 0; i < rows; ++i) {
    before[i] = w.peak[i];
    w.peak[i] = std::max(w.peak[i], scale * largest(w.s + i * kKeys, keys));
  }
  for_lanes(0, rows, [&](int64_t i, auto get, auto put) {
    put(w.rescale + i, exp2(get(before + i) - get(w.peak + i)));
  });
  for (int64_t i = 0; i < rows; ++i) {
    const float total = exp2_row(w.s + i * kKeys, keys, scale, w.peak[i]);
    w.total[i] = w.total[i] * w.rescale[i] + total;
    if (w.rescale[i] == 1.0f) continue;
    float* o = w.o + i * o_width;
    const Vec factor = splat(w.rescale[i]);
    for (int64_t c = 0; c < o_width; c += kLanes) store(o + c, load(o + c) * factor);
  }
}

void forward_tile(const ForwardScratch& w, float* o, float* lse, const Head& head, int64_t first,
                  int64_t T, int64_t d) {
  const int64_t rows = std::min(kQueries, T - first);
  const int64_t width = padded(d);
  const float scale = kLog2E / std::sqrt(static_cast<float>(d));
  std::memset(w.o, 0, rows * width * sizeof(float));
  for (int64_t i = 0; i < rows; ++i) {
    w.peak[i] = -std::numeric_limits<float>::max();
    w.total[i] = 0;
  }
  for (int64_t tile = 0; tile < key_tiles(T); ++tile) {
    const int64_t keys = std::min(kKeys, T - tile * kKeys);
    tile_gemm(w.s, kKeys, head.q + first * head.qkv_row, head.qkv_row, 1,
              w.kt + tile * packed_size(d, kKeys), rows, keys, d, false);
    softmax_tile(w, rows, keys, width, scale);
    tile_gemm(w.o, width, w.s, kKeys, 1, w.v + tile * packed_size(kKeys, d), rows, d, keys, true);
  }
  for (int64_t i = 0; i < rows; ++i) {
    const float inverse = 1.0f / w.total[i];
    float* out = o + head.o_offset + (first + i) * head.o_row;
    for (int64_t c = 0; c < d; ++c) out[c] = w.o[i * width + c] * inverse;
    lse[first + i] = w.peak[i] / kLog2E + std::log(w.total[i]);
  }
}

}  // namespace

int64_t scratch(const Attention& op) {
  return omp_get_max_threads() * ForwardScratch::floats(op.T, op.d) * 4;
}

void run(const Attention& op, const Call& call) {
  const int64_t heads = op.B * op.H;
  const int64_t tiles = query_tiles(op.T);
  const int64_t cuts = std::min(tiles, (kWantedTasks + heads - 1) / heads);
  parallel_tasks(heads * cuts, [&](int64_t task, int thread) {
    const int64_t head_index = task / cuts;
    const Head head = head_of(call.read(0), head_index, op.T, op.H, op.d);
    const ForwardScratch w(
        reinterpret_cast<float*>(call.scratch.data()) + thread * ForwardScratch::floats(op.T, op.d),
        op.T, op.d);
    for (int64_t tile = 0; tile < key_tiles(op.T); ++tile) {
      const int64_t keys = std::min(kKeys, op.T - tile * kKeys);
      const int64_t at = tile * kKeys * head.qkv_row;
      pack_panels(w.kt + tile * packed_size(op.d, kKeys), head.k + at, 1, head.qkv_row, op.d, keys);
      pack_panels(w.v + tile * packed_size(kKeys, op.d), head.v + at, head.qkv_row, 1, keys, op.d);
    }
    const int64_t cut = task % cuts;
    for (int64_t tile = tiles * cut / cuts; tile < tiles * (cut + 1) / cuts; ++tile) {
      forward_tile(w, call.write(0), call.write(1) + head_index * op.T, head, tile * kQueries, op.T,
                   op.d);
    }
  });
}

// ---- backward -----------------------------------------------------------------------------------
// The keys of a head are cut into parts, by a rule of T alone: their dk and dv stand by themselves,
// and dq is the sum of what flows through each part, added in order. A task does all parts of one
// head or, where heads are few, one of them.

namespace {

struct BackwardScratch {
  float *q, *dout, *dr;          // the head's queries: packed tiles of q and do, rowsum(do * o)
  float *kt, *vt, *k;            // the key tile, packed
  float *p, *dp, *dk, *dv, *dq;  // dq: (T, padded(d)), of one part of the keys
  static int64_t floats(int64_t T, int64_t d) {
    return 2 * query_tiles(T) * packed_size(kQueries, d) + T + 3 * kKeys * padded(d) +
           2 * kQueries * kKeys + 2 * kKeys * padded(d) + T * padded(d) + 11 * 16;
  }
  BackwardScratch(float* memory, int64_t T, int64_t d) {
    Pieces pieces(memory);
    q = pieces.take(query_tiles(T) * packed_size(kQueries, d));
    dout = pieces.take(query_tiles(T) * packed_size(kQueries, d));
    dr = pieces.take(T);
    kt = pieces.take(packed_size(d, kKeys));
    vt = pieces.take(packed_size(d, kKeys));
    k = pieces.take(packed_size(kKeys, d));
    p = pieces.take(kQueries * kKeys);
    dp = pieces.take(kQueries * kKeys);
    dk = pieces.take(kKeys * padded(d));
    dv = pieces.take(kKeys * padded(d));
    dq = pieces.take(T * padded(d));
  }
};

struct BackwardTask {
  const AttentionBackward& op;
  const Head head;
  const float *dout, *o, *lse;  // of the head: rows head.o_row apart
  float* dqkv;                  // of the head: rows head.qkv_row apart
  const BackwardScratch w;
  const float scale = 1.0f / std::sqrt(static_cast<float>(op.d));

  void prepare_queries() const {
    for (int64_t tile = 0; tile < query_tiles(op.T); ++tile) {
      const int64_t first = tile * kQueries;
      const int64_t rows = std::min(kQueries, op.T - first);
      const int64_t at = tile * packed_size(kQueries, op.d);
      pack_panels(w.q + at, head.q + first * head.qkv_row, head.qkv_row, 1, rows, op.d);
      pack_panels(w.dout + at, dout + first * head.o_row, head.o_row, 1, rows, op.d);
    }
    for (int64_t i = 0; i < op.T; ++i) {
      const int64_t row = i * head.o_row;
      Vec total{};
      for_lanes(0, op.d, [&](int64_t c, auto get, auto) {
        total += get(dout + row + c) * get(o + row + c);
      });
      w.dr[i] = sum(total);
    }
  }

  // p = exp(scale s - lse), as a power of two, in w.p, ds = p (dp - dr) in w.dp, for `rows` queries
  // and `keys` keys.
  void probabilities(int64_t first, int64_t rows, int64_t keys) const {
    for (int64_t i = 0; i < rows; ++i) {
      float* p = w.p + i * kKeys;
      float* dp = w.dp + i * kKeys;
      const Vec shift = splat(kLog2E * lse[first + i]);
      const Vec dr = splat(w.dr[first + i]);
      for_lanes(0, keys, [&](int64_t j, auto get, auto put) {
        const Vec value = exp2(get(p + j) * splat(kLog2E * scale) - shift);
        put(p + j, value);
        put(dp + j, value * (get(dp + j) - dr));
      });
    }
  }

  void key_part(int64_t part, int64_t parts) const {
    const int64_t tiles = key_tiles(op.T);
    std::memset(w.dq, 0, op.T * padded(op.d) * sizeof(float));
    for (int64_t tile = tiles * part / parts; tile < tiles * (part + 1) / parts; ++tile) {
      key_tile(tile * kKeys);
    }
  }

  // Adds the part's dq to the others', which begin with it or go on after it.
  void take_dq(float* dq, int64_t row, bool begins, bool goes_on) const {
    for (int64_t i = 0; i < op.T; ++i) {
      const float* part = w.dq + i * padded(op.d);
      for_lanes(0, op.d, [&](int64_t c, auto get, auto put) {
        float* out = dq + i * row + c;
        const Vec sum = begins ? get(part + c) : get(out) + get(part + c);
        put(out, goes_on ? sum : sum * splat(scale));
      });
    }
  }

  void key_tile(int64_t first_key) const {
    const int64_t d = op.d;
    const int64_t width = padded(d);
    const int64_t keys = std::min(kKeys, op.T - first_key);
    const int64_t at = first_key * head.qkv_row;
    pack_panels(w.kt, head.k + at, 1, head.qkv_row, d, keys);
    pack_panels(w.vt, head.v + at, 1, head.qkv_row, d, keys);
    pack_panels(w.k, head.k + at, head.qkv_row, 1, keys, d);
    for (int64_t tile = 0; tile < query_tiles(op.T); ++tile) {
      const int64_t first = tile * kQueries;
      const int64_t rows = std::min(kQueries, op.T - first);
      const int64_t packed = tile * packed_size(kQueries, d);
      tile_gemm(w.p, kKeys, head.q + first * head.qkv_row, head.qkv_row, 1, w.kt, rows, keys, d,
                false);
      tile_gemm(w.dp, kKeys, dout + first * head.o_row, head.o_row, 1, w.vt, rows, keys, d, false);
      probabilities(first, rows, keys);
      tile_gemm(w.dv, width, w.p, 1, kKeys, w.dout + packed, keys, d, rows, tile > 0);
      tile_gemm(w.dk, width, w.dp, 1, kKeys, w.q + packed, keys, d, rows, tile > 0);
      tile_gemm(w.dq + first * width, width, w.dp, kKeys, 1, w.k, rows, d, keys, true);
    }
    const int64_t hd = op.H * d;
    for (int64_t j = 0; j < keys; ++j) {
      float* row = dqkv + (first_key + j) * head.qkv_row;
      for (int64_t c = 0; c < d; ++c) row[hd + c] = w.dk[j * width + c] * scale;
      for (int64_t c = 0; c < d; ++c) row[2 * hd + c] = w.dv[j * width + c];
    }
  }
};

// Parts of a head's keys, and whether they are tasks by themselves.
struct KeyParts {
  explicit KeyParts(const AttentionBackward& op)
      : count(std::min<int64_t>(4, key_tiles(op.T))),
        apart(count > 1 && op.B * op.H < kWantedTasks) {}
  int64_t count;
  bool apart;
};

}  // namespace

int64_t scratch(const AttentionBackward& op) {
  const KeyParts parts(op);
  const int64_t kept = parts.apart ? op.B * op.H * parts.count * op.T * op.d : 0;
  return (omp_get_max_threads() * BackwardScratch::floats(op.T, op.d) + kept) * 4;
}

void run(const AttentionBackward& op, const Call& call) {
  const KeyParts parts(op);
  const int64_t heads = op.B * op.H;
  auto* memory = reinterpret_cast<float*>(call.scratch.data());
  float* kept = memory + omp_get_max_threads() * BackwardScratch::floats(op.T, op.d);
  float* dqkv = call.write(0);
  const int64_t row = 3 * op.H * op.d;

  const auto task = [&](int64_t head_index, int64_t first, int64_t end, int thread) {
    const Head head = head_of(call.read(1), head_index, op.T, op.H, op.d);
    float* dhead = dqkv + (head.q - call.read(1));
    const BackwardTask work{
        op,
        head,
        call.read(0) + head.o_offset,
        call.read(2) + head.o_offset,
        call.read(3) + head_index * op.T,
        dhead,
        BackwardScratch(memory + thread * BackwardScratch::floats(op.T, op.d), op.T, op.d)};
    work.prepare_queries();
    for (int64_t part = first; part < end; ++part) {
      work.key_part(part, parts.count);
      if (parts.apart) {
        work.take_dq(kept + (head_index * parts.count + part) * op.T * op.d, op.d, true, true);
      } else {
        work.take_dq(dhead, row, part == 0, part + 1 < parts.count);
      }
    }
  };
  if (!parts.apart) {
    parallel_tasks(heads, [&](int64_t head, int thread) { task(head, 0, parts.count, thread); });
    return;
  }
  parallel_tasks(heads * parts.count, [&](int64_t index, int thread) {
    const int64_t part = index % parts.count;
    task(index / parts.count, part, part + 1, thread);
  });
  const float scale = 1.0f / std::sqrt(static_cast<float>(op.d));
  parallel_range(heads * op.T, 1, parts.count * op.d, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const int64_t head = r / op.T;
      const int64_t i = r % op.T;
      const float* first = kept + (head * parts.count * op.T + i) * op.d;
      float* out = dqkv + (head / op.H * op.T + i) * row + head % op.H * op.d;
      for (int64_t c = 0; c < op.d; ++c) {
        float total = first[c];
        for (int64_t part = 1; part < parts.count; ++part) total += first[part * op.T * op.d + c];
        out[c] = total * scale;
      }
    }
  });
}

}  // namespace ebb::cpu
