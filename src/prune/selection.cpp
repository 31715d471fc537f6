#include "prune/selection.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"
#include "base/text.h"

namespace ebb {

namespace {

// Numbers in the order of their scores, the least first; of equals the lower number.
std::vector<int64_t> by_score(std::vector<int64_t> numbers, const std::vector<double>& scores) {
  std::stable_sort(numbers.begin(), numbers.end(),
                   [&](int64_t a, int64_t b) { return scores[a] < scores[b]; });
  return numbers;
}

// All but those at `gone`.
void remove_from(std::vector<int64_t>& numbers, std::vector<int64_t> gone) {
  std::sort(gone.begin(), gone.end());
  std::vector<int64_t> left;
  std::set_difference(numbers.begin(), numbers.end(), gone.begin(), gone.end(),
                      std::back_inserter(left));
  numbers = std::move(left);
}

int64_t rounded_up(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }

std::string asked(Structure kind, const Amount& amount) {
  return fmt::format("--{} {}", structure_name(kind), amount.text);
}

void remove_blocks(const DitConfig& config, const Scores& scores, const Amount& amount,
                   Survivors& kept) {
  const int64_t count = amount.of(config.depth());
  const int64_t most = std::max<int64_t>(0, config.depth() - 2);
  if (count > most) {
    fail(Exit::usage,
         fmt::format("--blocks {}: {} of {} blocks, but the first and the last stay: at most {}",
                     amount.text, count, config.depth(), most),
         "choose fewer; --mask can name any of them");
  }
  std::vector<double> of_blocks;
  for (const BlockScores& block : scores.blocks) of_blocks.push_back(block.block);
  std::vector<int64_t> inner(static_cast<size_t>(most));
  std::iota(inner.begin(), inner.end(), int64_t{1});
  inner = by_score(std::move(inner), of_blocks);
  inner.resize(static_cast<size_t>(count));
  std::erase_if(kept, [&](const Survivor& block) {
    return std::find(inner.begin(), inner.end(), block.block) != inner.end();
  });
}

[[noreturn]] void refuse_all(Structure kind, const Amount& amount, const std::string& of) {
  fail(
      Exit::usage,
      fmt::format("{}: that is all of {}: each block keeps at least one head and one panel of "
                  "its MLP",
                  asked(kind, amount), of),
      "choose a smaller amount; --blocks removes whole blocks, and --mask can name halves of them");
}

class WithinBlocks {
 public:
  WithinBlocks(const Scores& scores, const PruneRequest& request)
      : scores_(scores), request_(request) {}

  void remove(Structure kind, Selection& made) const {
    const Amount& amount = request_.of(kind);
    int64_t wanted = 0, gone = 0, emptied = 0;
    const int64_t with_some = std::ranges::count_if(
        made.kept, [&](const Survivor& block) { return !block.of(kind).empty(); });
    for (Survivor& block : made.kept) {
      std::vector<int64_t>& numbers = block.of(kind);
      if (numbers.empty()) continue;  // half a block
      const int64_t begun = begun_with(block, kind);
      const int64_t count = amount.of(begun);
      wanted += std::max<int64_t>(0, count - (begun - std::ssize(numbers)));
      if (count >= begun) {
        ++emptied;
        if (amount.number > 0 || emptied == with_some) {
          refuse_all(kind, amount, fmt::format("the {} of block {}", begun, block.block));
        }
      }
      const int64_t unit = kind == Structure::mlp ? request_.panel : 1;
      const int64_t left =
          std::min(std::ssize(numbers), rounded_up(std::max<int64_t>(1, begun - count), unit));
      std::vector<int64_t> least = by_score(numbers, scores_.blocks[block.block].of(kind));
      least.resize(numbers.size() - static_cast<size_t>(left));
      gone += std::ssize(least);
      remove_from(numbers, std::move(least));
    }
    if (gone != wanted) made.notes.push_back(note(kind, wanted, gone));
  }

 private:
  int64_t begun_with(const Survivor& block, Structure kind) const {
    if (request_.begun.empty()) return std::ssize(block.of(kind));
    return structure_count(request_.begun.at(static_cast<size_t>(block.block)), kind);
  }

  std::string note(Structure kind, int64_t wanted, int64_t gone) const {
    if (kind == Structure::head) {
      return fmt::format("{}: {} heads would go, {} do: each block keeps one",
                         asked(kind, request_.heads), wanted, gone);
    }
    return fmt::format(
        "{}: {} units would go, {} do: widths are rounded up to multiples of {}, "
        "which cost the same",
        asked(kind, request_.mlp), wanted, gone, request_.panel);
  }

  const Scores& scores_;
  const PruneRequest& request_;
};

void remove_over_model(const DitConfig& config, const Scores& scores, const PruneRequest& request,
                       Structure kind, Selection& made) {
  const Amount& amount = request.of(kind);
  int64_t total = 0;
  for (const Survivor& block : made.kept) total += std::ssize(block.of(kind));
  const int64_t wanted = amount.of(total);
  if (wanted >= total) {
    refuse_all(
        kind, amount,
        fmt::format("the model's {} {}", total, kind == Structure::head ? "heads" : "MLP units"));
  }
  const std::vector<Removal> order =
      removal_order(config, made.kept, scores, Scope::model, request.panel);
  std::vector<bool> marked(order.size());
  int64_t gone = 0;
  for (size_t i = 0; i < order.size(); ++i) {
    if (order[i].kind != kind) continue;
    if (gone + std::ssize(order[i].which) > wanted) break;
    marked[i] = true;
    gone += std::ssize(order[i].which);
  }
  made.kept = without(made.kept, order, marked);
  if (gone == wanted) return;
  made.notes.push_back(
      kind == Structure::head
          ? fmt::format("{}: {} heads would go, {} do: each block keeps one", asked(kind, amount),
                        wanted, gone)
          : fmt::format("{}: {} units would go, {} do: widths are multiples of {} where they "
                        "change",
                        asked(kind, amount), wanted, gone, request.panel));
}

}  // namespace

int64_t Amount::of(int64_t count) const {
  if (number > 0) return number;
  return std::llrint(share * static_cast<double>(count));  // half to even
}

Amount parse_amount(const std::string& text, const std::string& where) {
  const bool whole = !text.empty() && text.find_first_not_of("+-0123456789") == std::string::npos;
  Amount amount;
  amount.text = text;
  if (whole) {
    amount.number = parse_int(text, where);
    constexpr int64_t kMost = int64_t{1} << 44;
    if (amount.number >= 1 && amount.number <= kMost) return amount;
  } else {
    amount.share = parse_real(text, where);
    if (amount.share > 0 && amount.share < 1) return amount;
  }
  fail(
      Exit::usage,
      fmt::format("{}: found {}, wanted a share above 0 and below 1, such as 0.2, or a number from "
                  "1 on",
                  where, printable(text)),
      "a share is what is removed, not what stays");
}

Selection select(const DitConfig& config, const Scores& scores, const PruneRequest& request) {
  Selection made{all_of(config), {}};
  if (request.blocks.given()) remove_blocks(config, scores, request.blocks, made.kept);
  for (const Structure kind : kStructures) {
    if (!request.of(kind).given()) continue;
    if (request.scope == Scope::block) {
      WithinBlocks(scores, request).remove(kind, made);
    } else {
      remove_over_model(config, scores, request, kind, made);
    }
  }
  return made;
}

namespace {

struct Ranked {
  double key;
  Removal removal;
};

// The removals of one kind in one block, in their order.
void add_removals(const DitConfig& config, const Survivor& block, size_t place, Structure kind,
                  const Scores& scores, Scope scope, int64_t panel, std::vector<Ranked>& all) {
  const std::vector<double>& own = scores.blocks[block.block].of(kind);
  const std::vector<int64_t> least = by_score(block.of(kind), own);
  const int64_t count = std::ssize(least);
  double sum = 0;
  for (const int64_t i : least) sum += own[i];
  const double mean = sum > 0 ? sum / static_cast<double>(count) : 1;
  const double unit_of_score =
      scores.comparable ? static_cast<double>(structure_params(config, kind)) : mean;
  const int64_t unit = kind == Structure::mlp ? panel : 1;
  double before = 0;
  for (int64_t done = 0; count - done > unit;) {
    // The first makes the width a multiple; the last panel stays.
    const int64_t odd = (count - done) % unit;
    const int64_t size = odd > 0 ? odd : unit;
    Removal removal{kind, place, {least.begin() + done, least.begin() + done + size}};
    double score = 0;
    for (const int64_t i : removal.which) score += own[i];
    done += size;
    const double key = scope == Scope::block
                           ? static_cast<double>(done) / static_cast<double>(count)
                           : score / static_cast<double>(size) / unit_of_score;
    before = std::max(before, key);  // rounding must not put a later one first
    all.push_back({before, std::move(removal)});
  }
}

}  // namespace

std::vector<Removal> removal_order(const DitConfig& config, const Survivors& kept,
                                   const Scores& scores, Scope scope, int64_t panel) {
  std::vector<Ranked> all;
  for (size_t place = 0; place < kept.size(); ++place) {
    for (const Structure kind : kStructures) {
      add_removals(config, kept[place], place, kind, scores, scope, panel, all);
    }
  }
  // Stable: within one block and kind the order stays.
  std::stable_sort(all.begin(), all.end(),
                   [](const Ranked& a, const Ranked& b) { return a.key < b.key; });
  std::vector<Removal> order;
  order.reserve(all.size());
  for (Ranked& each : all) order.push_back(std::move(each.removal));
  return order;
}

Survivors without(const Survivors& kept, const std::vector<Removal>& order,
                  const std::vector<bool>& gone) {
  std::vector<Survivor> left = kept;
  for (const Structure kind : kStructures) {
    std::vector<std::vector<int64_t>> of_block(left.size());
    for (size_t i = 0; i < order.size(); ++i) {
      if (!gone[i] || order[i].kind != kind) continue;
      std::vector<int64_t>& to = of_block[order[i].place];
      to.insert(to.end(), order[i].which.begin(), order[i].which.end());
    }
    for (size_t place = 0; place < left.size(); ++place) {
      remove_from(left[place].of(kind), std::move(of_block[place]));
    }
  }
  return left;
}

std::optional<Survivors> remove_until(const Survivors& kept, const std::vector<Removal>& order,
                                      const std::function<bool(const Survivors&)>& fits) {
  const auto first = [&](size_t count) {
    std::vector<bool> gone(order.size());
    std::fill_n(gone.begin(), count, true);
    return gone;
  };
  if (fits(kept)) return kept;
  size_t too_few = 0, enough = order.size();
  if (order.empty() || !fits(without(kept, order, first(enough)))) return std::nullopt;
  while (enough - too_few > 1) {
    const size_t middle = too_few + (enough - too_few) / 2;
    (fits(without(kept, order, first(middle))) ? enough : too_few) = middle;
  }
  std::vector<bool> gone = first(enough);
  bool tried_in_vain[std::size(kStructures)] = {};
  tried_in_vain[static_cast<size_t>(order[enough - 1].kind)] = true;  // by the bisection
  for (size_t i = enough; i-- > 0;) {
    bool& in_vain = tried_in_vain[static_cast<size_t>(order[i].kind)];
    if (in_vain) continue;
    gone[i] = false;
    in_vain = !fits(without(kept, order, gone));
    if (in_vain) gone[i] = true;
  }
  return without(kept, order, gone);
}

}  // namespace ebb
