// What an op makes of an element depends on what it is made of, and not on where it stands: pruned
// tensors and shares of ranks have their elements at other places, and the same bits.
#include <set>

#include "guarded_bytes.h"
#include "op_case.h"

namespace ebb {
namespace {

struct RowOp {
  OpParams params;
  int64_t width;  // of a row: what has a multiple of so many elements is rows
};

// Those in which an element of a row meets only those at the same place of other rows, or sums over
// whole rows. Not the ones that round at random: that is keyed by the place.
std::vector<RowOp> row_ops() {
  constexpr int64_t kN = 1003, kD = 200;
  constexpr DType kBf16 = DType::bf16;
  const AdamW adam{kN, 0.9, 0.999, 1e-8, 0.1, true};
  const Lion lion{kN, 0.9, 0.99, 0.1, true};
  AdamW split_adam = adam;
  split_adam.g = kBf16;
  split_adam.split = true;
  Lion split_lion = lion;
  split_lion.g = kBf16;
  split_lion.split = true;
  std::vector<RowOp> ops = {
      {Silu{kN}, kN},
      {SiluBackward{kN}, kN},
      {Add{kN}, kN},
      {AddTo{kN}, kN},
      {adam, kN},
      {split_adam, kN},
      {lion, kN},
      {split_lion, kN},
      {Adafactor{1, kN, 0.1, true}, kN},
      {Adafactor{3, kD, 0.1, true}, kD},
      {Shrink{1, kN, 0.1, true}, kN},
      {Shrink{6, kD, 0.1, true, 0.3, 3, 2}, kD},
      {Shrink{6, kD, 0.1, true, 0.3, kD, 1, true}, kD},
      {Diffuse{3, kN, Objective::ddpm}, kN},
      {Diffuse{3, kN, Objective::flow}, kN},
      {DdpmLoss{3, 2, kN, true, 0.25f}, kN},
      {FlowLoss{3, 2, kN, true, 0.25f}, kN},
      {Guide{3, 4, kN, 2}, kN},
      {DiffusionStep{3, 2, kN, true, true, true}, kN},
      {FlowStep{3, 2, kN, true, true, 0}, kN},
      {LabelEmbedBackward{7, kD, 3}, kD},
      {LabelRowsCatchUp{5, 9, kD, adam}, kD},
      {ColumnSums{3, 7, kD}, kD},
      {EncodeBf16{kN}, kN},
      {EncodeBf16Feedback{kN}, kN},
      {AddBf16{kN, true}, kN},
      {PowerProject{7, kN, 3}, kN},
      {PowerBack{7, kN, 1}, kN},
      {PowerSum{7, kN, 1}, kN},
  };
  for (const DType type : {DType::f32, kBf16, DType::f16}) {
    const std::vector<RowOp> stored = {{Gelu{kN, type}, kN},
                                       {AddPositions{3, 7, kD, type}, kD},
                                       {AdaLN{3, 7, kD, 6, 3, 4, type}, kD},
                                       {AdaLNBackward{3, 7, kD, 6, 3, 4, true, type}, kD},
                                       {AdaLNBackward{3, 7, kD, 6, 3, 4, false, type}, kD},
                                       {AddGated{3, 7, kD, 6, 5, type}, kD},
                                       {AddGatedBackward{3, 7, kD, 6, 5, type}, kD},
                                       {QkNorm{3, 7, 2, kD, QkNormKind::layer, type}, kD},
                                       {QkNormBackward{3, 7, 2, kD, QkNormKind::layer, type}, kD},
                                       {QkNormBackward{3, 7, 2, kD, QkNormKind::rms, type}, kD}};
    ops.insert(ops.end(), stored.begin(), stored.end());
  }
  return ops;
}

// Within each row the same elements again and again; odd, so that they come to stand in every lane.
constexpr int64_t kPeriod = 61;

void repeat_in_rows(Column& column, int64_t width) {
  if (std::ssize(column) % width != 0) return;
  for (size_t i = 0; i < column.size(); ++i) {
    const size_t place = i % width;
    if (place >= kPeriod) column[i] = column[i - kPeriod];
  }
}

TEST(OpPlaces, EachOperandComesToLieRightBeforeEachOther) {
  for (const int n : {1, 2, 3, 6, 9}) {
    std::set<std::pair<int, int>> neighbours;
    for (int k = 1; k <= order_count(n); ++k) {
      const std::vector<int> order = order_of(n, k);
      EXPECT_EQ(std::ssize(std::set<int>(order.begin(), order.end())), n);
      for (size_t i = 1; i < order.size(); ++i) neighbours.insert({order[i - 1], order[i]});
    }
    EXPECT_EQ(std::ssize(neighbours), n * (n - 1));
  }
}

TEST(OpPlaces, AnElementHasTheSameBitsWhereverInItsRowItStands) {
  for (const RowOp& op : row_ops()) {
    SCOPED_TRACE(describe(op.params));
    Random random(op.params.index() + 1);
    OpValues<double> inputs = make_inputs(op.params, random, 1);
    for (auto* columns : {&inputs.reads, &inputs.updates}) {
      for (Column& column : *columns) repeat_in_rows(column, op.width);
    }
    const auto found = run_on_device(op.params, inputs, test_scalars(), std::byte{0xff});
    OpValues<double> repeated = found;
    for (auto* columns : {&repeated.writes, &repeated.updates}) {
      for (Column& column : *columns) repeat_in_rows(column, op.width);
    }
    EXPECT_TRUE(same_results(found, repeated));
  }
}

}  // namespace
}  // namespace ebb
