#include "model/coded.h"

#include <fmt/format.h>

#include <cmath>

#include "base/error.h"
#include "model/optimizer.h"

namespace ebb {

Coded::Coded(Builder& b, Messages& messages, const StepSpec& step,
             const std::vector<ParamSpec>& specs)
    : Sums(b, messages, step, specs), step_(step), code_(storage_.exchange) {
  const std::vector<int> roots = owners(specs, step.place, Shard::grads);
  size_t next = 0;
  for (const ParamSpec& spec : specs) {
    if (!spec.trained()) continue;
    numbers_[spec.name] = static_cast<uint32_t>(next);
    roots_[spec.name] = roots[next++];
    if (!place_.has(spec.layer)) continue;
    for (const StateBuffer& own : exchange_state(spec, storage_, place_.group())) {
      const std::string name = own.prefix + spec.name;
      kept_[name] = b_.declare({name, spec.layer, own.purpose, own.type, own.shape, true});
    }
  }
}

Purpose Coded::purpose(const ParamSpec&) const {
  const bool stays = code_.feedback || accumulates(step_, step_.choices.micro_batch);
  return stays ? Purpose::gradient : Purpose::exchange;
}

bool Coded::adds(const ParamSpec& spec, int group) const {
  return to_all() || owner(spec) == place_.in_group(group);
}

bool Coded::is_low_rank(const ParamSpec& spec) const {
  return code_.kind == ExchangeCode::Kind::low_rank && storage_.sends_coded(spec);
}

// ---- one tensor's code --------------------------------------------------------------------------

Coded::Code Coded::declare(const ParamSpec& spec, Buf gradient) {
  const auto buffer = [&](const char* what, Shape shape, DType type) {
    return b_.declare_numbered({fmt::format("code.{}{}", what, spec.name), spec.layer,
                                Purpose::exchange, type, std::move(shape)});
  };
  const int64_t n = element_count(b_.shape(gradient));
  const Shape all = {n}, sent = {code_.sent(n)};
  using Kind = ExchangeCode::Kind;
  if (!storage_.sends_coded(spec)) return {buffer("", b_.shape(gradient), b_.type(gradient))};
  switch (code_.kind) {
    case Kind::bf16:
      return {buffer("", all, DType::bf16)};
    case Kind::int8:
      return {buffer("", all, DType::u8), buffer("scales.", {code_blocks(n)}, DType::f32)};
    case Kind::top:
    case Kind::some:
      return {buffer("places.", sent, DType::i32), buffer("", sent, DType::f32)};
    case Kind::whole:
    case Kind::low_rank:
    case Kind::signs:
      break;
  }
  throw Bug("exchange: no code of this kind");
}

// This rank's own. What is not coded is its code as it is.
Coded::Code Coded::encode(const ParamSpec& spec, Buf gradient) {
  if (!storage_.sends_coded(spec)) return {gradient};
  const Code code = declare(spec, gradient);
  const int64_t n = element_count(b_.shape(gradient));
  const uint32_t number = numbers_.at(spec.name);
  const std::string name = "encode." + spec.name;
  using Kind = ExchangeCode::Kind;
  if (code_.kind == Kind::int8) {
    // Random bits of its own for every group.
    const auto own = static_cast<uint32_t>(number + numbers_.size() * place_.group());
    b_.emit(name, EncodeInt8{n, own}, {gradient}, code);
  } else if (code_.kind != Kind::bf16) {
    const EncodeTopK op{n, code_.sent(n), code_.kind == Kind::some, number};
    b_.emit(name, op, {gradient, gate_}, code, {rest(spec)});
  } else if (code_.feedback) {
    b_.emit(name, EncodeBf16Feedback{n}, {gradient, gate_}, code, {rest(spec)});
  } else {
    b_.emit(name, EncodeBf16{n}, {gradient}, code);
  }
  return code;
}

void Coded::add_code(const ParamSpec& spec, const Code& code, Buf sum) {
  if (!storage_.sends_coded(spec)) return add(spec, sum, code[0]);
  const int64_t n = element_count(b_.shape(sum));
  using Kind = ExchangeCode::Kind;
  const OpParams op = code_.kind == Kind::bf16   ? OpParams(AddBf16{n, code_.feedback})
                      : code_.kind == Kind::int8 ? OpParams(AddInt8{n})
                                                 : OpParams(AddTopK{n, code_.sent(n)});
  b_.emit("sum." + spec.name, op, code, {}, {sum});
}

// ---- on their way -------------------------------------------------------------------------------

// Own codes to all who add them up, those of others from wherever they are made.
void Coded::start(const ParamSpec& spec, Buf gradient) {
  Coming coming{&spec, gradient, std::vector<Code>(place_.data)};
  const int own = place_.group();
  coming.of[own] = encode(spec, gradient);
  each_other_group([&](int from) {
    if (!adds(spec, own)) return;
    coming.of[from] = declare(spec, gradient);
    for (const Buf part : coming.of[from]) {
      messages_.receive_begin({spec.name, part, place_.in_group(from), kPartialSums});
    }
  });
  each_other_group([&](int to) {
    if (!adds(spec, to)) return;
    for (const Buf part : coming.of[own]) {
      messages_.send({spec.name, part, place_.in_group(to), kPartialSums});
    }
  });
  if (adds(spec, own)) coming_.push_back(std::move(coming));
}

// All but so many of those that are coming are added up.
void Coded::arrive(size_t but_for) {
  while (coming_.size() > but_for) {
    const Coming c = std::move(coming_.front());
    coming_.pop_front();
    each_other_group([&](int from) {
      for (const Buf part : c.of[from]) {
        messages_.receive_end({c.spec->name, part, place_.in_group(from), kPartialSums});
      }
    });
    const Buf sum = zeros(*c.spec, c.like);
    for (const Code& code : c.of) add_code(*c.spec, code, sum);
    is_whole(*c.spec, sum);
  }
}

void Coded::complete(const ParamSpec& spec, Buf gradient) {
  if (code_.feedback) {
    made_.push_back({&spec, gradient});
    return;
  }
  start(spec, gradient);
  arrive(kOnTheirWay);
}

void Coded::finish() {
  if (code_.feedback) see_that_all_are_finite();
  std::vector<LowRank> matrices;
  for (const auto& [spec, gradient] : std::exchange(made_, {})) {
    if (is_low_rank(*spec)) {
      matrices.push_back({spec, gradient, {}, {}});
      continue;
    }
    visit_rest(*spec);
    start(*spec, gradient);
    arrive(kOnTheirWay);
  }
  arrive(0);
  low_rank(std::move(matrices));
}

// What is not sent now is sent later, unless the step does not count: so that is known first. And a
// rank's gradients are clipped before they are coded, each to its part of the limit: what waits
// long is old when it goes (Lin et al. 2018).
void Coded::see_that_all_are_finite() {
  const float limit = code_.is_few() ? step_.clip / std::sqrt(static_cast<float>(place_.data)) : 0;
  gate_ = code_gates(b_, messages_, step_, made_, {limit})[0];
}

// ---- products of narrow matrices ----------------------------------------------------------------

// PowerSGD (Vogels et al. 2019): one step of a power iteration that goes on from step to step.
void Coded::low_rank(std::vector<LowRank> matrices) {
  const auto each = [&](auto body) {
    for (LowRank& m : matrices) {
      body(m, m.spec->rows(), m.spec->columns(), m.spec->name);
    }
  };
  const int64_t R = code_.columns;
  each([&](LowRank& m, int64_t N, int64_t K, const std::string& name) {
    m.left = b_.buffer("code.left." + name, {N, R}, Purpose::exchange);
    visit_rest(*m.spec);
    b_.emit("project." + name, PowerProject{N, K, R}, {m.gradient, gate_, warm(*m.spec)}, {m.left},
            {rest(*m.spec)});
  });
  sum_narrow(matrices, &LowRank::left, [&](const ParamSpec& spec, Buf left) {
    b_.emit("orthonormal." + spec.name, Orthonormalize{spec.rows(), R}, {}, {}, {left});
  });
  each([&](LowRank& m, int64_t N, int64_t K, const std::string& name) {
    m.right = b_.buffer("code.right." + name, {K, R}, Purpose::exchange);
    visit_rest(*m.spec);
    b_.emit("project_back." + name, PowerBack{N, K, R}, {gate_, m.left}, {m.right},
            {rest(*m.spec)});
  });
  sum_narrow(matrices, &LowRank::right, [](const ParamSpec&, Buf) {});
  each([&](LowRank& m, int64_t N, int64_t K, const std::string& name) {
    b_.emit("warm." + name, PowerKeep{K, R}, {gate_, m.right}, {}, {warm(*m.spec)});
    if (!adds(*m.spec, place_.group())) return;
    const Buf sum = declare_whole(*m.spec, m.gradient);
    b_.emit("sum." + name, PowerSum{N, K, R}, {m.left, m.right}, {sum});
    is_whole(*m.spec, sum);
  });
}

// One side of each, summed by one rank, each by another, and handed on to all.
void Coded::sum_narrow(std::vector<LowRank>& matrices, Buf LowRank::*side, const Finish& finish) {
  std::map<std::string, Code> parts;  // by group, where they are added up
  const auto is_root = [&](const LowRank& m) { return roots_.at(m.spec->name) == place_.rank; };
  for (const LowRank& m : matrices) {
    const std::string& name = m.spec->name;
    if (!is_root(m)) {
      messages_.send({name, m.*side, roots_.at(name), kPartialSums});
      continue;
    }
    Code& of = parts[name];
    of.resize(place_.data);
    of[place_.group()] = m.*side;
    each_other_group([&](int group) {
      of[group] = b_.declare_numbered(
          {"code." + name, m.spec->layer, Purpose::exchange, DType::f32, b_.shape(m.*side)});
      messages_.receive_begin({name, of[group], place_.in_group(group), kPartialSums});
    });
  }
  for (LowRank& m : matrices) {
    const std::string& name = m.spec->name;
    const Shape shape = b_.shape(m.*side);
    m.*side = b_.declare_numbered(
        {"code.sum." + name, m.spec->layer, Purpose::exchange, DType::f32, shape});
    if (is_root(m)) {
      each_other_group([&](int group) {
        messages_.receive_end({name, parts[name][group], place_.in_group(group), kPartialSums});
      });
      b_.emit("zero." + name, Zero{element_count(shape)}, {}, {m.*side});
      for (const Buf part : parts[name]) {
        b_.emit("sum." + name, AddTo{element_count(shape)}, {part}, {}, {m.*side});
      }
      finish(*m.spec, m.*side);
    }
    messages_.hand_on(name, m.*side, kFinishedSums, ring_from(roots_.at(name)));
  }
}

}  // namespace ebb
