#include "prune/scores.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "base/error.h"
#include "base/rng.h"
#include "base/text.h"
#include "model/storage.h"
#include "state/matrix_stream.h"

namespace ebb {

namespace {

constexpr int64_t kPart = 1 << 18;  // numbers of a tensor that are read at once

// The second moments of a tensor, one part after the other: as they are stored, or made of
// Adafactor's means of rows and columns.
class SecondMoments {
 public:
  SecondMoments(const SafetensorsReader& file, const ParamSpec& spec) : columns_(spec.columns()) {
    if (file.find(kProjector + spec.name) != nullptr) {
      fail(Exit::usage,
           fmt::format("--by fisher: {} has moments of --galore, which say nothing of single "
                       "weights (tensor {}{})",
                       printable(file.path().string()), kProjector, spec.name),
           "choose --by l2");
    }
    if (file.find(kSecondMoment + spec.name) != nullptr) {
      stream_.emplace(file, spec, kSecondMoment);
      return;
    }
    rows_ = whole(file, "v_row." + spec.name);
    of_columns_ = whole(file, "v_col." + spec.name);
    double sum = 0;
    for (const float row : rows_) sum += row;
    by_mean_ = sum > 0 ? static_cast<double>(rows_.size()) / sum : 0;
  }

  // From number `first` on, where the part before ended.
  void read(int64_t first, std::vector<float>& out, int64_t count) {
    out.resize(static_cast<size_t>(count));
    if (stream_) return stream_->read(out.data(), count);
    for (int64_t i = 0; i < count; ++i) {
      const int64_t row = (first + i) / columns_, column = (first + i) % columns_;
      out[i] = static_cast<float>(rows_[row] * by_mean_ * of_columns_[column]);
    }
  }

 private:
  static std::vector<float> whole(const SafetensorsReader& file, const std::string& name) {
    const TensorEntry* entry = file.find(name);
    if (entry == nullptr) {
      fail(Exit::disk,
           fmt::format("{}: no second moments (no tensor {}), which --by fisher needs",
                       printable(file.path().string()), name),
           "lion keeps none, and weights alone have none: choose --by l2");
    }
    std::vector<float> values(static_cast<size_t>(entry->count()));
    TensorStream(file, *entry).read(values.data(), entry->bytes());
    return values;
  }

  int64_t columns_;
  std::optional<MatrixStream> stream_;
  std::vector<float> rows_, of_columns_;
  double by_mean_ = 0;
};

// Eight sums side by side: one would wait for itself.
double sum_of(const double* values, int64_t count) {
  double sums[8] = {};
  int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    for (int k = 0; k < 8; ++k) sums[k] += values[i + k];
  }
  for (; i < count; ++i) sums[0] += values[i];
  return ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
}

class Scorer {
 public:
  Scorer(const SafetensorsReader& file, const DitConfig& config, ScoreBy by, const Scored& wanted)
      : file_(file), config_(config), by_(by), wanted_(wanted) {
    for (const BlockShape& shape : config.blocks) {
      scores_.blocks.push_back({std::vector<double>(static_cast<size_t>(shape.heads)),
                                std::vector<double>(static_cast<size_t>(shape.mlp)), 0});
    }
    scores_.comparable = by == ScoreBy::fisher;
  }

  Scores run() {
    for (const ParamSpec& spec : parameters(config_)) {
      const Belonging place = belonging(spec, config_);
      if (!place.block) continue;
      if (!wanted_.blocks && !(place.member && wanted_.of(place.member->kind))) continue;
      add_tensor(spec, place);
    }
    double all = 0;
    for (BlockScores& block : scores_.blocks) {
      if (by_ == ScoreBy::l2) {
        for (std::vector<double>* each : {&block.heads, &block.mlp}) {
          for (double& score : *each) score = std::sqrt(score);
        }
        block.block = std::sqrt(block.block);
      }
      all += block.block;
    }
    if (by_ == ScoreBy::fisher && all == 0) {
      fail(Exit::disk,
           fmt::format("{}: its second moments are all zero: no update has made any",
                       printable(file_.path().string())),
           "train some steps first, or choose --by l2");
    }
    return std::move(scores_);
  }

 private:
  void add_tensor(const ParamSpec& spec, const Belonging& place) {
    const int64_t all = element_count(spec.shape), columns = spec.columns();
    MatrixStream stream(file_, spec);
    std::optional<SecondMoments> second;
    if (by_ == ScoreBy::fisher) second.emplace(file_, spec);
    BlockScores& block = scores_.blocks[*place.block];
    double whole = 0;
    for (int64_t first = 0; first < all; first += kPart) {
      const int64_t count = std::min(kPart, all - first);
      weights_.resize(static_cast<size_t>(count));
      stream.read(weights_.data(), count);
      if (second) second->read(first, moments_, count);
      measure(count);
      if (place.member) {
        std::vector<double>& to = place.member->kind == Structure::head ? block.heads : block.mlp;
        place.member->columns ? add_columns(to, *place.member, first, count, columns)
                              : add_rows(to, *place.member, first, count, columns);
      }
      whole += sum_of(values_.data(), count);
    }
    if (!std::isfinite(whole)) {
      fail(Exit::numbers,
           fmt::format("{}: {} or its moments have a value that is not finite",
                       printable(file_.path().string()), spec.name),
           "use an earlier checkpoint");
    }
    block.block += whole;
  }

  // What every weight of a part adds.
  void measure(int64_t count) {
    values_.resize(static_cast<size_t>(count));
    const float* const w = weights_.data();
    double* const to = values_.data();
    switch (by_) {
      case ScoreBy::l1:
        for (int64_t i = 0; i < count; ++i) to[i] = std::abs(static_cast<double>(w[i]));
        break;
      case ScoreBy::l2:
        for (int64_t i = 0; i < count; ++i) to[i] = static_cast<double>(w[i]) * w[i];
        break;
      case ScoreBy::fisher:
        for (int64_t i = 0; i < count; ++i) to[i] = static_cast<double>(w[i]) * w[i] * moments_[i];
        break;
      default:
        throw Bug("prune: not a score of a checkpoint's tensors");
    }
  }

  void add_rows(std::vector<double>& to, const Membership& member, int64_t first, int64_t count,
                int64_t columns) const {
    for (int64_t i = 0; i < count;) {
      const int64_t row = (first + i) / columns;
      const int64_t n = std::min(count - i, (row + 1) * columns - (first + i));
      to[(row / member.width) % std::ssize(to)] += sum_of(values_.data() + i, n);
      i += n;
    }
  }

  void add_columns(std::vector<double>& to, const Membership& member, int64_t first, int64_t count,
                   int64_t columns) const {
    for (int64_t i = 0; i < count;) {
      const int64_t column = (first + i) % columns;
      const int64_t n = std::min(count - i, columns - column);
      if (member.width == 1) {
        for (int64_t k = 0; k < n; ++k) to[column + k] += values_[i + k];
        i += n;
        continue;
      }
      const int64_t head = column / member.width;
      const int64_t within = std::min(n, (head + 1) * member.width - column);
      to[head] += sum_of(values_.data() + i, within);
      i += within;
    }
  }

  const SafetensorsReader& file_;
  const DitConfig& config_;
  const ScoreBy by_;
  const Scored wanted_;
  Scores scores_;
  std::vector<float> weights_, moments_;
  std::vector<double> values_;
};

}  // namespace

namespace {

const std::vector<std::string>& score_words() {
  static const std::vector<std::string> kWords = split(kScoreWords, '|');
  return kWords;
}

}  // namespace

ScoreBy parse_score(const std::string& word) {
  const std::vector<std::string>& words = score_words();
  const auto found = std::find(words.begin(), words.end(), word);
  require(found != words.end(), "no score '{}'", word);
  return static_cast<ScoreBy>(found - words.begin());
}

const char* score_name(ScoreBy by) { return score_words()[static_cast<size_t>(by)].c_str(); }

bool needs_data(ScoreBy by) {
  return by == ScoreBy::taylor || by == ScoreBy::activation || by == ScoreBy::fluctuation;
}

Scores checkpoint_scores(const SafetensorsReader& file, const DitConfig& config, ScoreBy by,
                         const Scored& wanted) {
  return Scorer(file, config, by, wanted).run();
}

Scores random_scores(const DitConfig& config, const PrunedRecord& record, uint64_t seed) {
  const PrunedRecord& numbers = record.empty() ? in_first_parent(all_of(config), {}) : record;
  // Kinds 0 and 1 are structures, 2 is the block.
  const auto draw = [&](uint32_t kind, int64_t block, int64_t index) {
    return open_unit(philox(seed, static_cast<uint32_t>(Stream::prune), kind,
                            static_cast<uint32_t>(block), static_cast<uint32_t>(index))[0]);
  };
  Scores scores;
  for (const PrunedBlock& block : numbers) {
    BlockScores made;
    for (const int64_t i : indices_of(block.heads)) made.heads.push_back(draw(0, block.block, i));
    for (const int64_t i : indices_of(block.mlp)) made.mlp.push_back(draw(1, block.block, i));
    made.block = draw(2, block.block, 0);
    scores.blocks.push_back(std::move(made));
  }
  return scores;
}

Scores scores_of(const SafetensorsReader& file, const CheckpointInfo& info, ScoreBy by,
                 const Scored& wanted, uint64_t seed) {
  if (by != ScoreBy::random) return checkpoint_scores(file, info.config, by, wanted);
  const PrunedRecord record =
      info.pruned.empty()
          ? PrunedRecord{}
          : pruned_from_json(info.pruned, info.config, file.path().string(), Exit::disk);
  return random_scores(info.config, record, seed);
}

}  // namespace ebb
