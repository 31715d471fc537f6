#include "program/signature_exchange.h"

#include "program/signature_args.h"

namespace ebb {

namespace {

Arg bf16(const char* name, Shape shape) { return typed(DType::bf16, name, std::move(shape)); }
Arg u8(const char* name, Shape shape) { return typed(DType::u8, name, std::move(shape)); }
Arg gate() { return f32("gate", {2}); }

}  // namespace

Signature of(const GateCodes& op) {
  return {{f32("clip", {2}), f32("norms", {op.others})}, {gate()}, {}};
}

Signature of(const EncodeBf16& op) { return {{f32("g", {op.n})}, {bf16("code", {op.n})}, {}}; }

Signature of(const EncodeBf16Feedback& op) {
  return {{f32("g", {op.n}), gate()}, {bf16("code", {op.n})}, {bf16("residual", {op.n})}};
}

Signature of(const AddBf16& op) { return {{bf16("code", {op.n})}, {}, {f32("sum", {op.n})}}; }

Signature of(const EncodeInt8& op) {
  return {{f32("g", {op.n})}, {u8("code", {op.n}), f32("scales", {code_blocks(op.n)})}, {}};
}

Signature of(const AddInt8& op) {
  return {{u8("code", {op.n}), f32("scales", {code_blocks(op.n)})}, {}, {f32("sum", {op.n})}};
}

Signature of(const EncodeTopK& op) {
  return {{f32("g", {op.n}), gate()},
          {i32("indices", {op.k}), f32("values", {op.k})},
          {f32("residual", {op.n})}};
}

Signature of(const AddTopK& op) {
  return {{i32("indices", {op.k}), f32("values", {op.k})}, {}, {f32("sum", {op.n})}};
}

Signature of(const PowerProject& op) {
  return {{f32("g", {op.N, op.K}), gate(), f32("q", {op.K, op.R})},
          {f32("p", {op.N, op.R})},
          {f32("residual", {op.N, op.K})}};
}

Signature of(const Orthonormalize& op) { return {{}, {}, {f32("p", {op.N, op.R})}}; }

Signature of(const PowerBack& op) {
  return {
      {gate(), f32("p", {op.N, op.R})}, {f32("q", {op.K, op.R})}, {f32("residual", {op.N, op.K})}};
}

Signature of(const PowerSum& op) {
  return {{f32("p", {op.N, op.R}), f32("q", {op.K, op.R})}, {f32("sum", {op.N, op.K})}, {}};
}

Signature of(const PowerKeep& op) {
  return {{gate(), f32("q", {op.K, op.R})}, {}, {f32("warm", {op.K, op.R})}};
}

Signature of(const SignEncode& op) {
  return {{f32("x", {op.n}), gate()},
          {u8("bits", {sign_bytes(op.n)}), f32("scale", {1})},
          {f32("residual", {op.n})}};
}

Signature of(const SignMomentum& op) {
  return {{f32("g", {op.n}), gate(), f32("m", {op.n})},
          {u8("bits", {sign_bytes(op.n)}), f32("scale", {1})},
          {f32("residual", {op.n})}};
}

Signature of(const SignKeep& op) {
  return {{u8("bits", {sign_bytes(op.n)}), f32("scale", {1}), f32("clip", {2})},
          {},
          {f32("m", {op.n})}};
}

Signature of(const SignAdd& op) {
  return {{u8("bits", {sign_bytes(op.n)}), f32("scale", {1})}, {}, {f32("sum", {op.n})}};
}

}  // namespace ebb
