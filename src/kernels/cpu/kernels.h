// The table of this device: one kernel for each op, and the scratch of those that need some.
// Adding an op is one struct in program/ops.h and one line here; a missing kernel does not link.
#pragma once

#include "kernels/cpu/call.h"

namespace ebb::cpu {

[[noreturn]] void run(const TakeSamples& op, const Call& call);  // the run's feed has them
void run(const ReadSamples& op, const Call& call);
void run(const FillNormal& op, const Call& call);
void run(const DrawTimes& op, const Call& call);
void run(const DropLabels& op, const Call& call);
void run(const Diffuse& op, const Call& call);
void run(const FillTime& op, const Call& call);
void run(const Patchify& op, const Call& call);
void run(const Unpatchify& op, const Call& call);
void run(const UnpatchifyBackward& op, const Call& call);
void run(const AddPositions& op, const Call& call);
void run(const TimeEmbed& op, const Call& call);
void run(const LabelEmbed& op, const Call& call);
void run(const LabelEmbedBackward& op, const Call& call);
void run(const LabelRowsBackward& op, const Call& call);
void run(const AddLabelRows& op, const Call& call);
void run(const LabelRowsNorm& op, const Call& call);
void run(const LabelRowsUpdate& op, const Call& call);
void run(const LabelRowsCatchUp& op, const Call& call);
void run(const Linear& op, const Call& call);
void run(const LinearBackwardInput& op, const Call& call);
void run(const LinearBackwardParams& op, const Call& call);
void run(const Silu& op, const Call& call);
void run(const SiluBackward& op, const Call& call);
void run(const Gelu& op, const Call& call);
void run(const Add& op, const Call& call);
void run(const AddTo& op, const Call& call);
void run(const Repeat& op, const Call& call);
void run(const CopyColumns& op, const Call& call);
void run(const Zero& op, const Call& call);
void run(const AdaLN& op, const Call& call);
void run(const AdaLNBackward& op, const Call& call);
void run(const AddGated& op, const Call& call);
void run(const AddGatedBackward& op, const Call& call);
void run(const QkNorm& op, const Call& call);
void run(const QkNormBackward& op, const Call& call);
void run(const Attention& op, const Call& call);
void run(const AttentionBackward& op, const Call& call);
void run(const DdpmLoss& op, const Call& call);
void run(const FlowLoss& op, const Call& call);
void run(const SumLosses& op, const Call& call);
void run(const SquaredNorm& op, const Call& call);
void run(const ClipScale& op, const Call& call);
void run(const AdamW& op, const Call& call);
void run(const Lion& op, const Call& call);
void run(const Adafactor& op, const Call& call);
void run(const GaloreAdamW& op, const Call& call);
void run(const StructureSquares& op, const Call& call);
void run(const Shrink& op, const Call& call);
void run(const LabelsAndNull& op, const Call& call);
void run(const Guide& op, const Call& call);
void run(const DiffusionStep& op, const Call& call);
void run(const FlowStep& op, const Call& call);
void run(const ColumnSums& op, const Call& call);
void run(const EncodeBf16& op, const Call& call);
void run(const EncodeBf16Feedback& op, const Call& call);
void run(const AddBf16& op, const Call& call);
void run(const EncodeInt8& op, const Call& call);
void run(const AddInt8& op, const Call& call);
void run(const EncodeTopK& op, const Call& call);
void run(const AddTopK& op, const Call& call);
void run(const PowerProject& op, const Call& call);
void run(const Orthonormalize& op, const Call& call);
void run(const PowerBack& op, const Call& call);
void run(const PowerSum& op, const Call& call);
void run(const PowerKeep& op, const Call& call);
void run(const GateCodes& op, const Call& call);
void run(const SignEncode& op, const Call& call);
void run(const SignMomentum& op, const Call& call);
void run(const SignKeep& op, const Call& call);
void run(const SignAdd& op, const Call& call);
[[noreturn]] void run(const Transfer& op, const Call& call);  // a file is not this device's,
[[noreturn]] void run(const Exchange& op, const Call& call);  // nor is another rank

// Bytes that dissolve with the op. No overload: none.
template <typename AnyOp>
int64_t scratch(const AnyOp&) {
  return 0;
}
int64_t scratch(const LabelRowsNorm& op);
int64_t scratch(const LabelRowsCatchUp& op);
int64_t scratch(const Linear& op);
int64_t scratch(const LinearBackwardInput& op);
int64_t scratch(const LinearBackwardParams& op);
int64_t scratch(const AdaLNBackward& op);
int64_t scratch(const AddGatedBackward& op);
int64_t scratch(const QkNormBackward& op);
int64_t scratch(const Attention& op);
int64_t scratch(const AttentionBackward& op);
int64_t scratch(const SquaredNorm& op);
int64_t scratch(const Adafactor& op);
int64_t scratch(const GaloreAdamW& op);
int64_t scratch(const StructureSquares& op);
int64_t scratch(const Shrink& op);
int64_t scratch(const EncodeTopK& op);
int64_t scratch(const PowerProject& op);
int64_t scratch(const Orthonormalize& op);
int64_t scratch(const PowerBack& op);
int64_t scratch(const PowerSum& op);
int64_t scratch(const SignEncode& op);
int64_t scratch(const SignMomentum& op);

// Of any op, with the team's threads.
void run_op(const OpParams& params, const Call& call);
int64_t scratch_of(const OpParams& params);

}  // namespace ebb::cpu
