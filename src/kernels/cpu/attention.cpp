// Attention tile by tile: the T x T matrix never exists. Work is cut over samples and heads, and
// over tiles of queries (forward) or keys (backward), by a rule of the shape alone, so that the
// result does not depend on the number of threads.
#include <cmath>
#include <cstring>
#include <limits>

#include "base/threads.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/tile_gemm.h"

namespace ebb::cpu {

namespace {

constexpr int64_t kQueries = 48;  // rows of a tile: a multiple of kTileRows
constexpr int64_t kKeys = 128;    // columns of a tile
constexpr float kLog2E = 1.44269504f;
constexpr int64_t kWantedTasks = 16;  // of fewer heads, each is cut into several tasks

// Where one head of one sample begins, in elements: in qkv (B*T, 3*H*d) and o (B*T, H*d).
struct HeadPlace {
  int64_t qkv, qkv_row, o, o_row, part;  // part: from q to k, and from k to v
  HeadPlace(int64_t head, int64_t T, int64_t H, int64_t d)
      : qkv(head / H * T * 3 * H * d + head % H * d),
        qkv_row(3 * H * d),
        o(head / H * T * H * d + head % H * d),
        o_row(H * d),
        part(H * d) {}
};

// T rows of d numbers in fp32, `row` apart.
struct Rows {
  const float* data;
  int64_t row;
  const float* at(int64_t i) const { return data + i * row; }
};

// Rows of fp32 are read where they lie; others are widened into memory of their own.
template <typename S>
constexpr bool kInPlace = std::is_same_v<S, float>;

template <typename S>
Rows rows_of(const S* from, int64_t row, int64_t T, int64_t d, float* memory) {
  if constexpr (kInPlace<S>) {
    return {from, row};
  } else {
    for (int64_t i = 0; i < T; ++i) widen(memory + i * d, from + i * row, d);
    return {memory, d};
  }
}
int64_t widened_floats(DType type, int64_t T, int64_t d) {
  return type == DType::f32 ? 0 : round_up(T * d, 16);
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
  float* wide[3];  // q, k, v
  static int64_t floats(const Attention& op) {
    const int64_t T = op.T;
    const int64_t d = op.d;
    return 3 * widened_floats(op.type, T, d) +
           key_tiles(T) * (packed_size(d, kKeys) + packed_size(kKeys, d)) + kQueries * kKeys +
           kQueries * padded(d) + 3 * kQueries + 7 * 16;
  }
  ForwardScratch(float* memory, const Attention& op) {
    const int64_t T = op.T;
    const int64_t d = op.d;
    Pieces pieces(memory);
    for (float*& each : wide) each = pieces.take(widened_floats(op.type, T, d));
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
    const Vec p = exp2(multiply_less(load(s + j), factor, shift));
    store(s + j, p);
    sums += p;
  }
  float total = sum(sums);
  if (j < count) {
    const Vec p = exp2(multiply_less(load_part(s + j, count - j), factor, shift));
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
    w.total[i] = std::fma(w.total[i], w.rescale[i], total);
    if (w.rescale[i] == 1.0f) continue;
    float* o = w.o + i * o_width;
    const Vec factor = splat(w.rescale[i]);
    for (int64_t c = 0; c < o_width; c += kLanes) store(o + c, load(o + c) * factor);
  }
}

// o, lse: of the head.
template <typename S>
void forward_tile(const ForwardScratch& w, S* o, int64_t o_row, float* lse, const Rows& q,
                  int64_t first, int64_t T, int64_t d) {
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
    tile_gemm(w.s, kKeys, q.at(first), q.row, 1, w.kt + tile * packed_size(d, kKeys), rows, keys, d,
              false);
    softmax_tile(w, rows, keys, width, scale);
    tile_gemm(w.o, width, w.s, kKeys, 1, w.v + tile * packed_size(kKeys, d), rows, d, keys, true);
  }
  for (int64_t i = 0; i < rows; ++i) {
    const Vec inverse = splat(1.0f / w.total[i]);
    S* out = o + (first + i) * o_row;
    for_lanes(0, d, [&](int64_t c, auto get, auto put) {
      put(out + c, get(w.o + i * width + c) * inverse);
    });
    lse[first + i] = w.peak[i] / kLog2E + std::log(w.total[i]);
  }
}

template <typename S>
void attention(const Attention& op, const Call& call) {
  const int64_t T = op.T;
  const int64_t d = op.d;
  const int64_t heads = op.B * op.H;
  const int64_t tiles = query_tiles(T);
  const int64_t cuts = std::min(tiles, (kWantedTasks + heads - 1) / heads);
  parallel_tasks(heads * cuts, [&](int64_t task, int thread) {
    const int64_t head = task / cuts;
    const HeadPlace at(head, T, op.H, d);
    const ForwardScratch w(
        reinterpret_cast<float*>(call.scratch.data()) + thread * ForwardScratch::floats(op), op);
    const auto part = [&](int i) {
      return rows_of(call.read<S>(0) + at.qkv + i * at.part, at.qkv_row, T, d, w.wide[i]);
    };
    const Rows q = part(0);
    const Rows k = part(1);
    const Rows v = part(2);
    for (int64_t tile = 0; tile < key_tiles(T); ++tile) {
      const int64_t first = tile * kKeys;
      const int64_t keys = std::min(kKeys, T - first);
      pack_panels(w.kt + tile * packed_size(d, kKeys), k.at(first), 1, k.row, d, keys);
      pack_panels(w.v + tile * packed_size(kKeys, d), v.at(first), v.row, 1, keys, d);
    }
    const int64_t cut = task % cuts;
    for (int64_t tile = tiles * cut / cuts; tile < tiles * (cut + 1) / cuts; ++tile) {
      forward_tile(w, call.write<S>(0) + at.o, at.o_row, call.write(1) + head * T, q,
                   tile * kQueries, T, d);
    }
  });
}

}  // namespace

int64_t scratch(const Attention& op) { return team_threads() * ForwardScratch::floats(op) * 4; }

void run(const Attention& op, const Call& call) {
  with_storage(op.type, [&](auto element) { attention<decltype(element)>(op, call); });
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
  float* wide[5];                // q, k, v, do, o
  float* dq_sum;                 // of the parts so far, where dqkv cannot hold it
  static int64_t floats(const AttentionBackward& op) {
    const int64_t T = op.T;
    const int64_t d = op.d;
    return 6 * widened_floats(op.type, T, d) + 2 * query_tiles(T) * packed_size(kQueries, d) + T +
           3 * kKeys * padded(d) + 2 * kQueries * kKeys + 2 * kKeys * padded(d) + T * padded(d) +
           11 * 16;
  }
  BackwardScratch(float* memory, const AttentionBackward& op) {
    const int64_t T = op.T;
    const int64_t d = op.d;
    Pieces pieces(memory);
    for (float*& each : wide) each = pieces.take(widened_floats(op.type, T, d));
    dq_sum = pieces.take(widened_floats(op.type, T, d));
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

template <typename S>
struct BackwardTask {
  const AttentionBackward& op;
  const BackwardScratch w;
  const HeadPlace place;
  const Rows q, k, v, dout, o;
  const float* lse;  // of the head
  S* dqkv;           // of the head: rows place.qkv_row apart
  const float scale = 1.0f / std::sqrt(static_cast<float>(op.d));

  BackwardTask(const AttentionBackward& made_of, const Call& call, int64_t head, float* memory)
      : op(made_of),
        w(memory, op),
        place(head, op.T, op.H, op.d),
        q(qkv_part(call, 0)),
        k(qkv_part(call, 1)),
        v(qkv_part(call, 2)),
        dout(head_rows(call, 0, 3)),
        o(head_rows(call, 2, 4)),
        lse(call.read(3) + head * op.T),
        dqkv(call.write<S>(0) + place.qkv) {}

  Rows qkv_part(const Call& call, int i) const {
    return rows_of(call.read<S>(1) + place.qkv + i * place.part, place.qkv_row, op.T, op.d,
                   w.wide[i]);
  }
  Rows head_rows(const Call& call, int read, int i) const {
    return rows_of(call.read<S>(read) + place.o, place.o_row, op.T, op.d, w.wide[i]);
  }

  void prepare_queries() const {
    for (int64_t tile = 0; tile < query_tiles(op.T); ++tile) {
      const int64_t first = tile * kQueries;
      const int64_t rows = std::min(kQueries, op.T - first);
      const int64_t at = tile * packed_size(kQueries, op.d);
      pack_panels(w.q + at, q.at(first), q.row, 1, rows, op.d);
      pack_panels(w.dout + at, dout.at(first), dout.row, 1, rows, op.d);
    }
    for (int64_t i = 0; i < op.T; ++i) {
      Vec total{};
      for_lanes(0, op.d, [&](int64_t c, auto get, auto) {
        total = multiply_add(get(dout.at(i) + c), get(o.at(i) + c), total);
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
        const Vec value = exp2(multiply_less(get(p + j), splat(kLog2E * scale), shift));
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

  // The part's dq as it is, for whoever adds the parts.
  void keep_dq(float* kept) const {
    for (int64_t i = 0; i < op.T; ++i) {
      std::copy_n(w.dq + i * padded(op.d), op.d, kept + i * op.d);
    }
  }

  // Adds the part's dq to the parts' before it; the last makes it complete.
  void add_dq(bool first, bool last) const {
    const int64_t sum_row = kInPlace<S> ? place.qkv_row : op.d;
    float* sums = w.dq_sum;
    if constexpr (kInPlace<S>) sums = dqkv;
    for (int64_t i = 0; i < op.T; ++i) {
      const float* part = w.dq + i * padded(op.d);
      float* so_far = sums + i * sum_row;
      S* out = dqkv + i * place.qkv_row;
      for_lanes(0, op.d, [&](int64_t c, auto get, auto put) {
        const Vec sum = first ? get(part + c) : get(so_far + c) + get(part + c);
        last ? put(out + c, sum * splat(scale)) : put(so_far + c, sum);
      });
    }
  }

  void key_tile(int64_t first_key) const {
    const int64_t d = op.d;
    const int64_t width = padded(d);
    const int64_t keys = std::min(kKeys, op.T - first_key);
    pack_panels(w.kt, k.at(first_key), 1, k.row, d, keys);
    pack_panels(w.vt, v.at(first_key), 1, v.row, d, keys);
    pack_panels(w.k, k.at(first_key), k.row, 1, keys, d);
    for (int64_t tile = 0; tile < query_tiles(op.T); ++tile) {
      const int64_t first = tile * kQueries;
      const int64_t rows = std::min(kQueries, op.T - first);
      const int64_t packed = tile * packed_size(kQueries, d);
      tile_gemm(w.p, kKeys, q.at(first), q.row, 1, w.kt, rows, keys, d, false);
      tile_gemm(w.dp, kKeys, dout.at(first), dout.row, 1, w.vt, rows, keys, d, false);
      probabilities(first, rows, keys);
      tile_gemm(w.dv, width, w.p, 1, kKeys, w.dout + packed, keys, d, rows, tile > 0);
      tile_gemm(w.dk, width, w.dp, 1, kKeys, w.q + packed, keys, d, rows, tile > 0);
      tile_gemm(w.dq + first * width, width, w.dp, kKeys, 1, w.k, rows, d, keys, true);
    }
    for (int64_t j = 0; j < keys; ++j) {
      S* row = dqkv + (first_key + j) * place.qkv_row;
      for_lanes(0, d, [&](int64_t c, auto get, auto put) {
        put(row + place.part + c, get(w.dk + j * width + c) * splat(scale));
        put(row + 2 * place.part + c, get(w.dv + j * width + c));
      });
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

template <typename S>
void attention_backward(const AttentionBackward& op, const Call& call) {
  const KeyParts parts(op);
  const int64_t heads = op.B * op.H;
  auto* memory = reinterpret_cast<float*>(call.scratch.data());
  float* kept = memory + team_threads() * BackwardScratch::floats(op);
  const auto task = [&](int64_t head, int thread) {
    const BackwardTask<S> made(op, call, head, memory + thread * BackwardScratch::floats(op));
    made.prepare_queries();
    return made;
  };
  if (!parts.apart) {
    parallel_tasks(heads, [&](int64_t head, int thread) {
      const BackwardTask<S> work = task(head, thread);
      for (int64_t part = 0; part < parts.count; ++part) {
        work.key_part(part, parts.count);
        work.add_dq(part == 0, part + 1 == parts.count);
      }
    });
    return;
  }
  parallel_tasks(heads * parts.count, [&](int64_t index, int thread) {
    const BackwardTask<S> work = task(index / parts.count, thread);
    work.key_part(index % parts.count, parts.count);
    work.keep_dq(kept + index * op.T * op.d);
  });
  const Vec scale = splat(1.0f / std::sqrt(static_cast<float>(op.d)));
  parallel_range(heads * op.T, 1, parts.count * op.d, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const int64_t head = r / op.T;
      const int64_t i = r % op.T;
      const HeadPlace at(head, op.T, op.H, op.d);
      const float* first = kept + (head * parts.count * op.T + i) * op.d;
      S* out = call.write<S>(0) + at.qkv + i * at.qkv_row;
      for_lanes(0, op.d, [&](int64_t c, auto get, auto put) {
        Vec total = get(first + c);
        for (int64_t part = 1; part < parts.count; ++part) {
          total += get(first + part * op.T * op.d + c);
        }
        put(out + c, total * scale);
      });
    }
  });
}

}  // namespace

int64_t scratch(const AttentionBackward& op) {
  const KeyParts parts(op);
  const int64_t kept = parts.apart ? op.B * op.H * parts.count * op.T * op.d : 0;
  return (team_threads() * BackwardScratch::floats(op) + kept) * 4;
}

void run(const AttentionBackward& op, const Call& call) {
  with_storage(op.type, [&](auto element) { attention_backward<decltype(element)>(op, call); });
}

}  // namespace ebb::cpu
