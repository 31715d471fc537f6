#include "op_case.h"

#include "kernels/cpu/kernels.h"

#include <complex>
#include <cstring>
#include <optional>
#include <span>

#include "cut_work.h"
#include "guarded_bytes.h"

namespace ebb {

Scalars test_scalars() {
  Scalars s;
  s.seed = 0x123456789abcdef0;
  s.step = 41;
  s.lr = 3e-3f;
  s.bias1 = 0.271f;
  s.bias2 = 0.002997f;
  s.ema_decay = 0.99f;
  s.guidance = 2.5f;
  s.time = {731, 0.25f};
  s.coef = {1.25f, 0.75f, 0.5f, 0.4f, 0.3f, -3.5f, -2.0f, 0.125f};
  return s;
}

std::string describe(const OpParams& params) {
  std::string text = std::visit([](const auto& op) { return op.kName; }, params);
  const Signature s = signature(params);
  for (const auto* args : {&s.reads, &s.writes, &s.updates}) {
    for (const Arg& arg : *args) text += fmt::format(" {}{}", arg.name, shape_text(arg.shape));
  }
  return text;
}

void expect_close(const std::string& what, const Column& got, const Column& want,
                  double tolerance) {
  double error = 0, size = 0, worst = 0, largest = 0;
  size_t worst_at = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    if (std::isnan(want[i])) {
      ASSERT_TRUE(std::isnan(got[i])) << what << "[" << i << "] is not the op's to set";
      continue;
    }
    ASSERT_TRUE(std::isfinite(got[i])) << what << "[" << i << "] is " << got[i];
    const double off = std::abs(got[i] - want[i]);
    if (off > worst) worst_at = i;
    worst = std::max(worst, off);
    largest = std::max(largest, std::abs(want[i]));
    error += off * off;
    size += want[i] * want[i];
  }
  EXPECT_LE(std::sqrt(error), tolerance * std::sqrt(size))
      << what << ": relative error " << std::sqrt(error / size) << ", worst at [" << worst_at
      << "]: " << got[worst_at] << ", wanted " << want[worst_at];
  EXPECT_LE(worst, 10 * tolerance * largest)
      << what << "[" << worst_at << "]: " << got[worst_at] << ", wanted " << want[worst_at];
}

// ---- the device against the twin ---------------------------------------------------------------

namespace {

using Bytes = std::span<std::byte>;

template <typename T>
void put(Bytes to, const Column& from) {
  std::vector<T> values(from.begin(), from.end());
  std::memcpy(to.data(), values.data(), to.size());
}

template <typename T>
Column get(Bytes from) {
  std::vector<T> values(from.size() / sizeof(T));
  std::memcpy(values.data(), from.data(), from.size());
  Column column;
  for (const T& x : values) column.push_back(static_cast<double>(x));
  return column;
}

template <typename S>
void put_narrow(Bytes to, const Column& from) {
  std::vector<S> values;
  for (const double x : from) values.push_back(S::nearest(static_cast<float>(x)));
  std::memcpy(to.data(), values.data(), to.size());
}

void to_device(Bytes to, DType type, const Column& values) {
  if (type == DType::i32) put<int32_t>(to, values);
  if (type == DType::f32) put<float>(to, values);
  if (type == DType::f64) put<double>(to, values);
  if (type == DType::bf16) put_narrow<Bf16>(to, values);
  if (type == DType::f16) put_narrow<F16>(to, values);
  if (type == DType::i16) put<int16_t>(to, values);
  if (type == DType::u8) put<uint8_t>(to, values);
}

Column from_device(Bytes from, DType type) {
  if (type == DType::i32) return get<int32_t>(from);
  if (type == DType::bf16) return get<Bf16>(from);
  if (type == DType::f16) return get<F16>(from);
  if (type == DType::i16) return get<int16_t>(from);
  if (type == DType::u8) return get<uint8_t>(from);
  return type == DType::f32 ? get<float>(from) : get<double>(from);
}

}  // namespace

std::vector<Places> other_places(const OpParams& params) {
  const Signature s = signature(params);
  const size_t scratch = 1;
  const auto n = static_cast<int>(s.reads.size() + s.writes.size() + s.updates.size() + scratch);
  std::vector<Places> places = {{.between = 64}};  // pages lie upon each other in a cache then
  for (int k = 1; k <= order_count(n); ++k) places.push_back({.between = 0, .order = k});
  return places;
}

OpValues<double> run_on_device(const OpParams& params, const OpValues<double>& inputs,
                               const Scalars& scalars, std::byte scratch_fill,
                               const Places& places) {
  const Signature s = signature(params);
  OpValues<double> values = inputs;
  // body(argument, its values, its place among all operands)
  const auto each = [&](auto body) {
    size_t at = 0;
    const auto of = [&](const std::vector<Arg>& args, std::vector<Column>& columns) {
      for (size_t i = 0; i < args.size(); ++i) body(args[i], columns[i], at++);
    };
    of(s.reads, values.reads);
    of(s.writes, values.writes);
    of(s.updates, values.updates);
  };
  std::vector<size_t> sizes;
  each([&](const Arg& arg, const Column& column, size_t) {
    sizes.push_back(column.size() * dtype_bytes(arg.type));
  });
  sizes.push_back(cpu_device().scratch_bytes(params));
  GuardedBytes bytes(sizes, places.between, places.order);
  each([&](const Arg& arg, const Column& column, size_t at) {
    to_device(bytes.at(at), arg.type, column);
  });
  const Bytes scratch = bytes.at(sizes.size() - 1);
  std::ranges::fill(scratch, scratch_fill);

  std::vector<std::byte*> all;
  for (size_t i = 0; i < sizes.size(); ++i) all.push_back(bytes.at(i).data());
  const size_t reads = s.reads.size(), writes = s.writes.size();
  const std::vector<const std::byte*> read_at(all.begin(), all.begin() + reads);
  const std::span<std::byte*> write_at(all.data() + reads, writes);
  if (places.write >= 0) write_at[places.write] = all[places.over_read];
  Call call;
  call.reads = read_at;
  call.writes = write_at;
  call.updates = {all.data() + reads + writes, s.updates.size()};
  call.scratch = scratch;
  call.scalars = &scalars;
  cpu::run_op(params, call);

  EXPECT_TRUE(bytes.guards_hold()) << "an operand or the scratch was overrun";
  each([&](const Arg& arg, Column& column, size_t at) {
    column = from_device(bytes.at(at), arg.type);
  });
  if (places.write >= 0) std::swap(values.writes[places.write], values.reads[places.over_read]);
  return values;
}

namespace {

// What rounding to the nearest is off by at most, and what it may come to when that was an input.
double rounding_of(DType type) {
  if (type == DType::bf16) return 0x1p-8;
  return type == DType::f16 ? 0x1p-11 : 0;
}

bool same_bits(const std::vector<Column>& a, const std::vector<Column>& b) {
  for (size_t i = 0; i < a.size(); ++i) {
    if (std::memcmp(a[i].data(), b[i].data(), a[i].size() * sizeof(double)) != 0) return false;
  }
  return true;
}

}  // namespace

bool same_results(const OpValues<double>& a, const OpValues<double>& b) {
  return same_bits(a.writes, b.writes) && same_bits(a.updates, b.updates);
}

void check_against_reference(const OpParams& params, const Check& check) {
  SCOPED_TRACE(describe(params));
  Random random(params.index() + 1);
  OpValues<double> inputs = make_inputs(params, random, check.scale);
  if (check.adjust) check.adjust(inputs);
  OpValues<double> want = inputs;
  run_reference(params, want.refs(check.scalars));
  const Signature s = signature(params);
  const double work = std::visit([](const auto& op) { return op.flops(); }, params);
  const bool is_quick = work < 2e4;  // what is larger runs the same loops
  const CutWork cut;
  std::optional<OpValues<double>> alone;
  for (const int threads : {1, 2, 3}) {
    SCOPED_TRACE(testing::Message() << threads << " threads");
    set_team_threads(threads);
    const auto got = run_on_device(params, inputs, check.scalars, std::byte{0xff});
    const auto again = run_on_device(params, inputs, check.scalars, std::byte{0});
    EXPECT_TRUE(same_bits(got.reads, inputs.reads)) << "a read buffer was changed";
    EXPECT_TRUE(same_results(got, again)) << "a second run gave other bits";
    for (const Places& other :
         threads == 1 && is_quick ? other_places(params) : std::vector<Places>()) {
      const auto there = run_on_device(params, inputs, check.scalars, std::byte{0xff}, other);
      EXPECT_TRUE(same_results(got, there)) << "buffers at other places gave other bits";
    }
    if (!alone) alone = got;
    EXPECT_TRUE(same_results(*alone, got)) << "one thread gave other bits";
    for (size_t w = 0; w < s.writes.size(); ++w) {
      for (const int r : s.writes[w].over) {
        const auto over = run_on_device(params, inputs, check.scalars, std::byte{0xff},
                                        {.write = static_cast<int>(w), .over_read = r});
        EXPECT_TRUE(same_results(got, over))
            << s.writes[w].name << " in the place of " << s.reads[r].name << " gave other bits";
      }
    }
    const auto compare = [&](const std::vector<Arg>& args, const std::vector<Column>& found,
                             const std::vector<Column>& wanted) {
      for (size_t i = 0; i < args.size(); ++i) {
        expect_close(args[i].name, found[i], wanted[i],
                     std::max(check.tolerance, rounding_of(args[i].type)));
      }
    };
    compare(s.writes, got.writes, want.writes);
    compare(s.updates, got.updates, want.updates);
  }
}

// ---- the backward twin against the complex step ------------------------------------------------

namespace {

class GradientChecker {
 public:
  GradientChecker(const OpParams& forward, const GradientCheck& check)
      : forward_(forward), signature_(signature(forward)), random_(forward.index() + 1) {
    values_ = make_inputs(forward, random_, 1);
    if (check.adjust) check.adjust(values_);
    run_reference(forward, values_.refs(scalars_));
    for (size_t i = 0; i < signature_.reads.size(); ++i) {
      known_[signature_.reads[i].name] = values_.reads[i];
    }
    for (size_t i = 0; i < signature_.writes.size(); ++i) {
      const std::string name = signature_.writes[i].name;
      known_[name] = values_.writes[i];
      const auto constant = check.cotangents.find(name);
      if (constant != check.cotangents.end()) {
        cotangents_[gradient_name(name)] = Column(values_.writes[i].size(), constant->second);
      }
    }
  }

  // Activation gradients find NaN in their place and parameter gradients find numbers, so setting
  // the first and adding to the second is proven on the way.
  void run_backward(const OpParams& backward) {
    const Signature s = signature(backward);
    OpValues<double> v;
    for (const Arg& arg : s.reads) {
      Column& c = known_.contains(arg.name) ? known_[arg.name] : cotangents_[arg.name];
      if (c.empty()) c = random_column(element_count(arg.shape), random_);
      v.reads.push_back(c);
    }
    for (const Arg& arg : s.writes) v.writes.push_back(unset_column(arg));
    for (const Arg& arg : s.updates) {
      v.updates.push_back(random_column(element_count(arg.shape), random_));
    }
    const std::vector<Column> before = v.updates;
    run_reference(backward, v.refs(scalars_));
    for (size_t i = 0; i < s.writes.size(); ++i) keep_gradient(s.writes[i].name, v.writes[i]);
    for (size_t i = 0; i < s.updates.size(); ++i) {
      for (size_t k = 0; k < before[i].size(); ++k) v.updates[i][k] -= before[i][k];
      keep_gradient(s.updates[i].name, v.updates[i]);
    }
  }

  void compare() {
    ASSERT_FALSE(gradients_.empty());
    for (size_t input = 0; input < signature_.reads.size(); ++input) {
      const std::string name = signature_.reads[input].name;
      const auto found = gradients_.find(name);
      if (found == gradients_.end()) continue;
      Column want = complex_step(input);
      if (name == "x" && cotangents_.contains("dres")) {
        for (size_t i = 0; i < want.size(); ++i) want[i] += cotangents_["dres"][i];
      }
      double size = 0;
      for (const double g : want) size += g * g / static_cast<double>(want.size());
      for (size_t i = 0; i < want.size(); ++i) {
        const double got = std::isnan(found->second[i]) ? 0 : found->second[i];  // a part not set
        ASSERT_NEAR(got, want[i], 1e-10 * (std::abs(want[i]) + std::sqrt(size)))
            << "d" << name << "[" << i << "]";
      }
    }
  }

 private:
  static std::string gradient_name(const std::string& name) { return fmt::format("d{}", name); }

  void keep_gradient(const std::string& name, const Column& values) {
    for (const Arg& input : signature_.reads) {
      if (name == gradient_name(input.name)) gradients_[input.name] = values;
    }
    ASSERT_TRUE(known_.contains(name) || gradients_.contains(name.substr(1)))
        << name << " is no gradient of an input";
  }

  // The derivative of sum(cotangent * output) by every element of one input.
  Column complex_step(size_t input) {
    using Complex = std::complex<double>;
    const double h = 1e-50;
    OpValues<Complex> v;
    for (const Column& c : values_.reads) v.reads.emplace_back(c.begin(), c.end());
    for (const Column& c : values_.writes) v.writes.emplace_back(c.begin(), c.end());
    Column derivative(values_.reads[input].size());
    for (size_t i = 0; i < derivative.size(); ++i) {
      v.reads[input][i] += Complex(0, h);
      run_reference(forward_, v.refs(scalars_));
      v.reads[input][i] = values_.reads[input][i];
      for (size_t o = 0; o < v.writes.size(); ++o) {
        const auto found = cotangents_.find(gradient_name(signature_.writes[o].name));
        if (found == cotangents_.end()) continue;
        for (size_t k = 0; k < v.writes[o].size(); ++k) {
          derivative[i] += found->second[k] * (v.writes[o][k].imag() / h);
        }
      }
    }
    return derivative;
  }

  OpParams forward_;
  Signature signature_;
  Random random_;
  Scalars scalars_ = test_scalars();
  OpValues<double> values_;
  std::map<std::string, Column> known_, cotangents_, gradients_;
};

}  // namespace

void check_gradient(const OpParams& forward, const std::vector<OpParams>& backward,
                    const GradientCheck& check) {
  SCOPED_TRACE(describe(forward));
  GradientChecker checker(forward, check);
  for (const OpParams& op : backward) checker.run_backward(op);
  checker.compare();
}

}  // namespace ebb
