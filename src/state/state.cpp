#include "state/state.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "base/float16.h"
#include "model/slices.h"

namespace ebb {

namespace {

StateTensor described(const ParamSpec& param, const StateBuffer& b) {
  StateTensor tensor{b.prefix + param.name, param.layer, b.purpose, b.shape, b.type, b.coding, {}};
  tensor.slice = param.slice;
  if (param.sparse()) {
    tensor.matrix = param.shape;
    tensor.left = param.left;
  }
  if (tensor.is_mask()) tensor.shape = {param.rows(), mask_bytes(param.columns())};
  return tensor;
}

// What ranks have not sent yet, of each of them, and what all have alike once.
template <typename Each>
void each_of_exchange(const ParamSpec& param, const StepSpec& spec, Each each) {
  if (!spec.codes_gradients()) return;
  for (int group = 0; group < spec.place.data; ++group) {
    for (const StateBuffer& b : exchange_state(param, spec.choices.storage, group)) {
      if (group == 0 || rest_in(b.prefix)) each(param, b);
    }
  }
}

// Each buffer that is a tensor by itself, in the order of files.
template <typename Each>
void each_state_buffer(const std::vector<ParamSpec>& params, const StepSpec& spec, Each each) {
  for (const bool weights : {true, false}) {
    for (const ParamSpec& param : params) {
      for (const StateBuffer& b : state_of(param, spec, spec.choices.storage)) {
        if (b.coding == Coding::beside || (b.purpose == Purpose::weight) != weights) continue;
        each(param, b);
      }
    }
  }
  for (const ParamSpec& param : params) each_of_exchange(param, spec, each);
}

}  // namespace

std::vector<StateTensor> state_tensors(const DitConfig& config, const StepSpec& spec) {
  std::vector<StateTensor> tensors;
  each_state_buffer(parameters(config), spec, [&](const ParamSpec& param, const StateBuffer& b) {
    tensors.push_back(described(param, b));
  });
  return tensors;
}

State::State(const Plan& plan, RunMemory& memory, const DitConfig& config, const StepSpec& spec)
    : plan_(plan),
      memory_(memory),
      groups_(spec.place.data),
      sends_momenta_(spec.codes_gradients() && spec.choices.storage.exchange.freezes()) {
  const Program& program = plan.program;
  const std::vector<ParamSpec> params = sliced_parameters(config, spec.place);
  each_state_buffer(params, spec, [&](const ParamSpec& param, const StateBuffer& b) {
    StateTensor tensor = described(param, b);
    tensor.values = program.find(tensor.name);
    if (!tensor.values) return;
    if (!b.other.empty()) tensor.beside = program.find(b.other + param.name);
    require(tensor.beside || b.other.empty() || b.coding == Coding::split,
            "state: {} without its {}", tensor.name, b.other);
    if (param.sparse()) tensor.mask = program.at(kMask + param.name);
    tensors_.push_back(std::move(tensor));
  });
}

const StateTensor* State::find(const std::string& name) const {
  const auto found = std::find_if(tensors_.begin(), tensors_.end(),
                                  [&](const StateTensor& t) { return t.name == name; });
  return found == tensors_.end() ? nullptr : &*found;
}

const StateTensor& State::at(const std::string& name) const {
  const StateTensor* found = find(name);
  require(found != nullptr, "state: no tensor named {}", name);
  return *found;
}

template <typename T>
void State::get(Buf b, int64_t first, T* values, int64_t count) const {
  constexpr auto kSize = static_cast<int64_t>(sizeof(T));
  memory_.read(values, plan_, b, first * kSize, count * kSize);
}

template <typename T>
void State::put(Buf b, int64_t first, const T* values, int64_t count) {
  constexpr auto kSize = static_cast<int64_t>(sizeof(T));
  memory_.write(plan_, b, first * kSize, values, count * kSize);
}

namespace {

// Numbers of one type, a part at a time: part(first, count) with a count of kPart at most.
constexpr int64_t kPart = 64 * kMomentBlock;
template <typename Part>
void in_parts(int64_t count, Part part) {
  for (int64_t at = 0; at < count; at += kPart) part(at, std::min(kPart, count - at));
}

// A part of a coded moment, taken out of its buffers.
struct CodedPart {
  uint8_t codes[kPart];
  float scales[kPart / kMomentBlock];
  CodedBlock block(int64_t first) { return {codes + first, scales + first / kMomentBlock}; }
};
int64_t block_count(int64_t count) { return (count + kMomentBlock - 1) / kMomentBlock; }

void decode(CodedPart& part, float* values, int64_t count, bool second) {
  for (int64_t i = 0; i < count; i += kMomentBlock) {
    const int64_t n = std::min(kMomentBlock, count - i);
    second ? decode_second(values + i, part.block(i), n)
           : decode_first(values + i, part.block(i), n);
  }
}

void encode(CodedPart& part, const float* values, int64_t count, bool second) {
  const auto nearest = [](int64_t) { return 0.5f; };
  for (int64_t i = 0; i < count; i += kMomentBlock) {
    const int64_t n = std::min(kMomentBlock, count - i);
    if (!second) {
      encode_first(part.block(i), values + i, n, nearest);
      continue;
    }
    float roots[kMomentBlock];
    for (int64_t k = 0; k < n; ++k) roots[k] = std::sqrt(std::max(0.0f, values[i + k]));
    encode_second(part.block(i), roots, n, nearest);
  }
}

}  // namespace

void State::read(const StateTensor& t, int64_t first, float* values, int64_t count) const {
  require(t.complete(), "state: of {} only the upper half is here", t.name);
  switch (t.type) {
    case DType::f32:
      get(t.values, first, values, count);
      return;
    case DType::bf16:
      in_parts(count, [&](int64_t at, int64_t n) {
        Bf16 high[kPart];
        int16_t low[kPart];
        get(t.values, first + at, high, n);
        if (t.beside) get(t.beside, first + at, low, n);
        for (int64_t i = 0; i < n; ++i) {
          values[at + i] =
              t.beside ? SplitFloat{high[i], low[i]}.whole() : static_cast<float>(high[i]);
        }
      });
      return;
    case DType::u8: {
      const auto decoded = [&](int64_t from, float* to, int64_t n) {
        CodedPart part;
        get(t.values, from, part.codes, n);
        get(t.beside, from / kMomentBlock, part.scales, block_count(n));
        decode(part, to, n, t.coding == Coding::second_moment);
      };
      const int64_t into = first % kMomentBlock;  // the block that it begins in
      const int64_t head = into == 0 ? 0 : std::min(count, kMomentBlock - into);
      if (head > 0) {
        float block[kMomentBlock];
        decoded(first - into, block, into + head);
        std::copy_n(block + into, head, values);
      }
      in_parts(count - head,
               [&](int64_t at, int64_t n) { decoded(first + head + at, values + head + at, n); });
      return;
    }
    default:
      throw Bug("state: " + t.name + " is stored as " + dtype_name(t.type));
  }
}

void State::write(const StateTensor& t, int64_t first, const float* values, int64_t count) {
  switch (t.type) {
    case DType::f32:
      put(t.values, first, values, count);
      return;
    case DType::bf16:
      in_parts(count, [&](int64_t at, int64_t n) {
        Bf16 high[kPart];
        int16_t low[kPart];
        for (int64_t i = 0; i < n; ++i) {
          const SplitFloat parts = SplitFloat::of(values[at + i]);
          high[i] = t.coding == Coding::split ? parts.high : Bf16::nearest(values[at + i]);
          low[i] = parts.low;
        }
        put(t.values, first + at, high, n);
        if (t.beside) put(t.beside, first + at, low, n);
      });
      return;
    case DType::u8:
      in_parts(count, [&](int64_t at, int64_t n) {
        CodedPart part;
        encode(part, values + at, n, t.coding == Coding::second_moment);
        put(t.values, first + at, part.codes, n);
        put(t.beside, (first + at) / kMomentBlock, part.scales, block_count(n));
      });
      return;
    default:
      throw Bug("state: " + t.name + " is stored as " + dtype_name(t.type));
  }
}

namespace {

// A row of a mask as it lies in memory: how many are left before it, then its bits.
struct MaskRow {
  int64_t before = 0;
  std::vector<uint64_t> words;

  explicit MaskRow(int64_t columns) : words((columns + 63) / 64) {}
  uint8_t* bytes() { return reinterpret_cast<uint8_t*>(words.data()); }
  bool has(int64_t column) const { return (words[column / 64] >> (column % 64) & 1) != 0; }
  int64_t count() const {
    int64_t sum = 0;
    for (const uint64_t word : words) sum += std::popcount(word);
    return sum;
  }
};

}  // namespace

void State::read_stored(const StateTensor& t, int64_t offset, void* bytes, int64_t count) const {
  memory_.read(bytes, plan_, t.values, offset, count);
}

void State::read_as_filed(const StateTensor& t, int64_t offset, void* bytes, int64_t count) const {
  if (t.is_mask()) return read_mask(t, offset, static_cast<uint8_t*>(bytes), count);
  constexpr auto kSize = static_cast<int64_t>(sizeof(float));
  read(t, offset / kSize, static_cast<float*>(bytes), count / kSize);
}

void State::read_mask(const StateTensor& t, int64_t offset, uint8_t* bytes, int64_t count) const {
  const int64_t columns = t.matrix[1], row_bytes = mask_bytes(columns);
  for (int64_t done = 0; done < count;) {
    const int64_t row = (offset + done) / row_bytes, at = (offset + done) % row_bytes;
    const int64_t n = std::min(count - done, row_bytes - at);
    memory_.read(bytes + done, plan_, t.values, row * mask_row_bytes(columns) + 8 + at, n);
    done += n;
  }
}

int64_t State::write_mask(const StateTensor& t, const RowOf& row_of) {
  const int64_t columns = t.matrix[1];
  MaskRow row(columns);
  const auto words = static_cast<int64_t>(row.words.size());
  for (int64_t i = 0; i < t.matrix[0]; ++i) {
    row.words.back() = 0;
    row_of(i, row.bytes());
    const int64_t rest = columns % 64;
    if (rest != 0 && row.words.back() >> rest != 0) return -1;
    const int64_t at = i * mask_row_bytes(columns);
    memory_.write(plan_, t.values, at, &row.before, 8);
    memory_.write(plan_, t.values, at + 8, row.words.data(), 8 * words);
    row.before += row.count();
  }
  return row.before;
}

void State::spread(const StateTensor& t, const float* left, int64_t first, float* values,
                   int64_t count) const {
  const int64_t columns = t.matrix[1];
  MaskRow row(columns);
  const auto words = static_cast<int64_t>(row.words.size());
  for (int64_t done = 0; done < count;) {
    const int64_t i = (first + done) / columns, begin = (first + done) % columns;
    const int64_t end = std::min(columns, begin + count - done);
    const int64_t at = i * mask_row_bytes(columns);
    memory_.read(&row.before, plan_, t.mask, at, 8);
    memory_.read(row.words.data(), plan_, t.mask, at + 8, 8 * words);
    const float* next = left + row.before;
    for (int64_t k = 0; k < end; ++k) {
      const float value = row.has(k) ? *next++ : 0;
      if (k >= begin) values[done++] = value;
    }
  }
}

}  // namespace ebb
