// Signatures of the operations on rows that labels pick.
#pragma once

#include "program/ops_label.h"
#include "program/signature.h"

namespace ebb {

Signature of(const LabelEmbed& op);
Signature of(const LabelEmbedBackward& op);
Signature of(const LabelRowsBackward& op);
Signature of(const AddLabelRows& op);
Signature of(const LabelRowsNorm& op);
Signature of(const LabelRowsUpdate& op);
Signature of(const LabelRowsCatchUp& op);

}  // namespace ebb
