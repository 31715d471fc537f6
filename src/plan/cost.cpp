#include "plan/cost.h"

#include <algorithm>
#include <map>

#include "base/median.h"
#include "program/signature.h"

namespace ebb {

namespace {

// Where an op stands in the table of its kind, and how many of the table's seconds it takes.
struct Place {
  double x, y, units;
};

template <typename AnyOp>
Place linear_place(const AnyOp& op) {
  return {static_cast<double>(op.R), static_cast<double>(op.K * op.N), 1};
}

// A token of a head meets T keys of width d: its time is nearly a straight line in both.
template <typename AnyOp>
Place attention_place(const AnyOp& op) {
  return {static_cast<double>(op.T), static_cast<double>(op.d),
          static_cast<double>(op.B * op.H * op.T)};
}

// Only as many rows of the table as there are labels.
template <typename AnyOp>
Place label_place(const AnyOp& op) {
  return {static_cast<double>(op.B * op.D), 1, 1};
}

template <typename AnyOp>
Place place(const AnyOp& op) {
  return {static_cast<double>(bytes_moved(op)), 1, 1};
}
Place place(const Linear& op) { return linear_place(op); }
Place place(const LinearBackwardInput& op) { return linear_place(op); }
Place place(const LinearBackwardParams& op) { return linear_place(op); }
Place place(const Attention& op) { return attention_place(op); }
Place place(const AttentionBackward& op) { return attention_place(op); }
Place place(const LabelEmbed& op) { return label_place(op); }
Place place(const LabelEmbedBackward& op) { return label_place(op); }

// A pass over the matrix, in which each element meets R numbers.
template <typename AnyOp>
Place power_place(const AnyOp& op) {
  return {static_cast<double>(op.R), static_cast<double>(op.N * op.K), 1};
}
Place place(const PowerProject& op) { return power_place(op); }
Place place(const PowerBack& op) { return power_place(op); }
Place place(const PowerSum& op) { return power_place(op); }
Place place(const Orthonormalize& op) {
  return {static_cast<double>(op.R * op.R), static_cast<double>(op.N), 1};
}

Place place_of(const OpParams& params) {
  return std::visit([](const auto& op) { return place(op); }, params);
}

template <typename AnyOp>
bool is_tall(const AnyOp& op) {
  if constexpr (requires { op.K > op.N; }) return op.K > op.N;
  return false;
}

// Its largest operands are stored in fewer bits: another kernel. Products of fp16 are those of
// fp32, which packing widens to; those of bf16 can be the machine's own.
template <typename AnyOp>
bool is_narrow(const AnyOp& op) {
  if constexpr (requires { op.type; }) return op.type != DType::f32;
  return false;
}
bool is_narrow(const Linear& op) { return op.x == DType::bf16; }
bool is_narrow(const LinearBackwardInput& op) { return op.dy == DType::bf16; }
bool is_narrow(const LinearBackwardParams& op) { return op.dy == DType::bf16; }
bool is_narrow(const AdamW& op) { return op.moments == Moments::coded; }
bool is_narrow(const Lion& op) { return op.moments == Moments::coded; }
bool is_narrow(const EncodeTopK& op) { return op.random; }  // another kernel: it searches nothing

// Elements of a gelu, or of its slope, at the end of a product.
template <typename AnyOp>
int64_t gelu_count(const AnyOp&) {
  return 0;
}
int64_t gelu_count(const Linear& op) { return op.end != LinearEnd::plain ? op.R * op.N : 0; }
int64_t gelu_count(const LinearBackwardInput& op) { return op.gelu ? op.R * op.K : 0; }

// Of every kind eight: as most are, and any of these.
constexpr size_t kTall = 1, kNarrow = 2, kEnded = 4, kVariants = 8;

size_t table_of(const OpParams& params) {
  return std::visit(
      [&](const auto& op) {
        return kVariants * params.index() + (is_tall(op) ? kTall : 0) +
               (is_narrow(op) ? kNarrow : 0) + (gelu_count(op) > 0 ? kEnded : 0);
      },
      params);
}

// The tables' names, in order.
template <size_t... kIndex>
std::array<std::string, kVariants * sizeof...(kIndex)> table_names(std::index_sequence<kIndex...>) {
  std::array<std::string, kVariants * sizeof...(kIndex)> names;
  ((names[kVariants * kIndex] = std::variant_alternative_t<kIndex, OpParams>::kName), ...);
  for (size_t i = 0; i < names.size(); ++i) {
    names[i] = names[i / kVariants * kVariants];
    if (i & kTall) names[i] += " tall";
    if (i & kNarrow) names[i] += " narrow";
    if (i & kEnded) names[i] += " ended";
  }
  return names;
}

const auto& table_names() {
  static const auto kNames = table_names(std::make_index_sequence<std::variant_size_v<OpParams>>());
  return kNames;
}

// An op that was not measured costs what another does.
OpParams measured_as(const OpParams& params) {
  return std::visit(
      [](const auto& op) -> OpParams {
        if constexpr (requires { op.measured_as(); }) return op.measured_as();
        return op;
      },
      params);
}

double nominal_seconds(const OpParams& params) {
  constexpr double kFlops = 1e11, kBytes = 1e10;  // per second
  constexpr double kOverhead = 1e-6;
  const double flops = std::visit([](const auto& op) { return op.flops(); }, params);
  return kOverhead + std::max(flops / kFlops, static_cast<double>(bytes_moved(params)) / kBytes);
}

// Of a step in a small space, on the mean over a period: its two products, the optimizer's pass
// over the small space, and one over the weight and the average, as fast as AdamW's is by bytes.
template <typename SecondsOf>
double galore_seconds(const GaloreAdamW& op, SecondsOf seconds) {
  const int64_t m = op.long_side(), n = op.short_side(), r = op.rank;
  AdamW whole = op.adam;
  whole.moments = Moments::f32;
  const int64_t each = dtype_bytes(DType::f32) + (op.adam.ema ? dtype_bytes(op.adam.average) : 0);
  constexpr int64_t kOfAdam = 18;  // bytes an element, half of what is moved
  whole.n = std::max<int64_t>(1, op.n() * each / kOfAdam);
  const double into = seconds(Linear{m, n, r}), back = seconds(Linear{m, r, n});
  // Rows at right angles, summed in double: as many multiply-adds as four products of rows, each
  // several times as slow.
  constexpr double kSlow = 4 * 4;
  const double begin = GaloreAdamW::kPasses * (into + back + kSlow * seconds(Linear{r, n, r})) +
                       2 * seconds(Linear{m, r, r});
  return into + back + seconds(op.adam) + seconds(whole) + begin / static_cast<double>(op.refresh);
}

// Between (x0, y0) and (x1, y1).
double interpolate(double x, double x0, double y0, double x1, double y1) {
  return y0 + (y1 - y0) * (x - x0) / (x1 - x0);
}

}  // namespace

CostPoint cost_point(const OpParams& params, double seconds) {
  const Place at = place_of(params);
  return {table_names()[table_of(params)], at.x, at.y, seconds / at.units};
}

int64_t bytes_moved(const OpParams& params) {
  const Signature s = signature(measured_as(params));
  int64_t bytes = 0;
  const auto add = [&](const std::vector<Arg>& args, int64_t times) {
    for (const Arg& arg : args) bytes += times * element_count(arg.shape) * dtype_bytes(arg.type);
  };
  add(s.reads, 1);
  add(s.writes, 1);
  add(s.updates, 2);
  return bytes;
}

CostModel::CostModel(const Calibration& calibration) {
  if (!calibration.paces.empty()) pace_ = median(calibration.paces);
  const auto& names = table_names();
  std::map<size_t, std::map<double, std::map<double, double>>> sorted;  // by table, y, x
  for (const CostPoint& point : calibration.points) {
    const auto found = std::find(names.begin(), names.end(), point.kind);
    if (found != names.end()) sorted[found - names.begin()][point.y][point.x] = point.seconds;
  }
  for (const auto& [table, lines] : sorted) {
    for (const auto& [y, seconds] : lines) {
      Line line{y, {seconds.begin(), seconds.end()}};
      double most = 0;  // a smaller size that seemed to take longer was disturbed, or is as slow
      for (auto& [x, t] : line.points) t = most = std::max(most, t);
      tables_[table].push_back(std::move(line));
    }
  }
}

double CostModel::Line::at(double x) const {
  const auto& [last_x, last] = points.back();
  if (x >= last_x) return last * x / last_x;
  if (x <= points.front().first) return points.front().second;
  const auto above = std::lower_bound(points.begin(), points.end(), std::pair{x, 0.0});
  const auto below = above - 1;
  return interpolate(x, below->first, below->second, above->first, above->second);
}

double CostModel::seconds(const OpParams& params) const { return pace_ * op_seconds(params); }

double CostModel::op_seconds(const OpParams& given) const {
  const OpParams params = measured_as(given);
  if (std::holds_alternative<Transfer>(params) || std::holds_alternative<Exchange>(params) ||
      std::holds_alternative<TakeSamples>(params)) {
    return 0;
  }
  if (const auto* galore = std::get_if<GaloreAdamW>(&params)) {
    return galore_seconds(*galore, [&](const OpParams& part) { return op_seconds(part); });
  }
  const size_t table = table_of(params);
  if (!(table & kEnded) || !tables_[table & ~kNarrow].empty()) return table_seconds(params, table);
  // Not measured at the end of a product: what it costs by itself.
  const Gelu by_itself{std::visit([](const auto& op) { return gelu_count(op); }, params)};
  return table_seconds(params, table & ~kEnded) + table_seconds(by_itself, table_of(by_itself));
}

double CostModel::table_seconds(const OpParams& params, size_t at) const {
  // What was not measured in fewer bits is taken for as fast as in all of them.
  if (tables_[at].empty()) at &= ~kNarrow;
  const Table& table = tables_[at];
  if (table.empty()) return nominal_seconds(params);
  const Place wanted = place_of(params);
  const auto above = std::lower_bound(table.begin(), table.end(), wanted.y,
                                      [](const Line& line, double y) { return line.y < y; });
  double seconds;
  if (above == table.end()) {
    seconds = table.back().at(wanted.x) * wanted.y / table.back().y;
  } else if (above == table.begin()) {
    seconds = above->at(wanted.x);
  } else {
    const auto below = above - 1;
    seconds = interpolate(wanted.y, below->y, below->at(wanted.x), above->y, above->at(wanted.x));
  }
  return seconds * wanted.units;
}

}  // namespace ebb
