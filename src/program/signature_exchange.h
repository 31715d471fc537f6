// Signatures of the operations that code gradients for other ranks.
#pragma once

#include "program/ops_exchange.h"
#include "program/signature.h"

namespace ebb {

Signature of(const EncodeBf16& op);
Signature of(const EncodeBf16Feedback& op);
Signature of(const AddBf16& op);
Signature of(const EncodeInt8& op);
Signature of(const AddInt8& op);
Signature of(const EncodeTopK& op);
Signature of(const AddTopK& op);
Signature of(const PowerProject& op);
Signature of(const Orthonormalize& op);
Signature of(const PowerBack& op);
Signature of(const PowerSum& op);
Signature of(const PowerKeep& op);
Signature of(const GateCodes& op);
Signature of(const SignEncode& op);
Signature of(const SignMomentum& op);
Signature of(const SignKeep& op);
Signature of(const SignAdd& op);

}  // namespace ebb
