#include "report/rank_timeline.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>

#include "base/error.h"
#include "plan/layout.h"
#include "plan/techniques.h"

namespace ebb {

namespace {

constexpr double kWidth = 960, kMargin = 24, kTop = 92, kBottom = 40, kLetter = 6.6;
// On a ground of its own, which suits light pages and dark ones.
constexpr const char *kInk = "#1f2933", *kPale = "#6b7785", *kLines = "#d5dbe1";

// What a rank does at a time, and last what its messages do meanwhile.
struct Layer {
  const char *name, *colour;
};
constexpr Layer kLayers[] = {
    {"forward", "#4f8fc0"}, {"backward", "#e0913f"},           {"gradients of matrices", "#7fb069"},
    {"update", "#8d6cb5"},  {"waiting for others", "#e4e8ec"}, {"bytes on their way", "#b03a48"}};
constexpr int kWaiting = 4, kMoving = 5;

int layer_of(const RankInterval& i) {
  using Kind = RankInterval::Kind;
  if (i.kind == Kind::computing) return static_cast<int>(i.work);
  return i.kind == Kind::waiting ? kWaiting : kMoving;
}

struct Row {
  double height, gap;
  double bytes_height() const { return std::max(1.0, height / 5); }
};

Row row_of(size_t ranks) {
  const auto n = static_cast<double>(ranks);
  const double height = std::clamp(560 / n, 3.0, 30.0);
  return {height, height >= 8 ? 6.0 : 0};
}

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '&') {
      out += "&amp;";
    } else if (c == '<') {
      out += "&lt;";
    } else {
      out += c;
    }
  }
  return out;
}

std::string text(double x, double y, const char* colour, const char* anchor,
                 const std::string& what, const char* more = "") {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" fill=\"{}\" text-anchor=\"{}\"{}>{}</text>\n",
                     x, y, colour, anchor, more, escaped(what));
}

// A step between ticks that is 1, 2 or 5 of a power of ten, so that there are four to ten.
double tick_step(double seconds) {
  const double power = std::pow(10, std::floor(std::log10(seconds / 4)));
  for (const double step : {5.0, 2.0}) {
    if (seconds / (step * power) >= 4) return step * power;
  }
  return power;
}

std::string tick_text(double seconds, double step) {
  if (step >= 1e-3)
    return fmt::format("{:.{}f} s", seconds,
                       step >= 1      ? 0
                       : step >= 0.1  ? 1
                       : step >= 0.01 ? 2
                                      : 3);
  return fmt::format("{:.6g} ms", seconds * 1e3);
}

class Picture {
 public:
  Picture(const TimelineText& text, const RankTimes& times)
      : text_(text), times_(times), row_(row_of(times.ranks.size())), rows_(times.ranks.size()) {
    size_t longest = 0;
    for (const std::string& name : text.rows) longest = std::max(longest, name.size());
    left_ = kMargin + kLetter * static_cast<double>(longest) + 10;
    scale_ = (kWidth - kMargin - left_) / times.seconds();
    for (const RankInterval& i : times.timeline) {
      rows_[i.rank].push_back({i.begin * scale_, i.end * scale_, layer_of(i)});
    }
    for (std::vector<Piece>& row : rows_) {
      std::sort(row.begin(), row.end(),
                [](const Piece& a, const Piece& b) { return a.begin < b.begin; });
    }
  }

  std::string svg() {
    const double height = bottom() + kBottom;
    out_ = fmt::format(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1:.0f}\" width=\"{0}\" "
        "height=\"{1:.0f}\" font-family=\"Helvetica, Arial, sans-serif\" font-size=\"13\">\n"
        "<rect width=\"{0}\" height=\"{1:.0f}\" rx=\"8\" fill=\"#ffffff\"/>\n",
        kWidth, height);
    out_ += text(kMargin, 28, kInk, "start", text_.title, " font-weight=\"bold\"");
    out_ += text(kMargin, 48, kPale, "start", text_.below_it);
    axis();
    legend(pieces());
    row_names();
    return out_ + "</svg>\n";
  }

 private:
  // A stretch of a row, in its pixels.
  struct Piece {
    double begin, end;
    int layer;
  };
  using Found = std::array<bool, std::size(kLayers)>;

  double top(size_t rank) const {
    return kTop + static_cast<double>(rank) * (row_.height + row_.gap);
  }
  double bottom() const { return top(rows_.size()); }

  void legend(const Found& found) {
    double x = kMargin;
    for (size_t i = 0; i < std::size(kLayers); ++i) {
      if (!found[i]) continue;
      out_ += fmt::format(
          "<rect x=\"{:.0f}\" y=\"61\" width=\"14\" height=\"12\" rx=\"2\" fill=\"{}\"/>\n", x,
          kLayers[i].colour);
      out_ += text(x + 20, 72, kInk, "start", kLayers[i].name);
      x += 40 + kLetter * static_cast<double>(std::string_view(kLayers[i].name).size());
    }
  }

  void axis() {
    const double step = tick_step(times_.seconds());
    for (int i = 0; i * step <= times_.seconds(); ++i) {
      const double x = left_ + i * step * scale_;
      out_ += fmt::format("<path d=\"M{0:.1f} {1:.1f}V{2:.1f}\" stroke=\"{3}\"/>\n", x, kTop - 6,
                          bottom() + 6, kLines);
      // The last one would leave the picture.
      const bool room = x + 14 <= kWidth - kMargin / 2;
      out_ += text(room ? x : kWidth - kMargin / 2, bottom() + 24, kPale, room ? "middle" : "end",
                   tick_text(i * step, step));
    }
  }

  void row_names() {
    const auto n = static_cast<double>(rows_.size());
    const auto every = static_cast<size_t>(std::exp2(std::ceil(std::log2(std::max(1.0, n / 32)))));
    for (size_t r = 0; r < rows_.size(); r += every) {
      out_ += text(left_ - 10, top(r) + row_.height / 2 + 4.5, kInk, "end", text_.rows[r]);
    }
  }

  // Lines as thick as a row: few of them, whatever the run.
  Found pieces() {
    std::array<std::string, std::size(kLayers)> paths;
    for (size_t r = 0; r < rows_.size(); ++r) {
      for (const bool moving : {false, true}) {
        const double height = moving ? row_.bytes_height() : row_.height - row_.bytes_height();
        const double middle = top(r) + height / 2 + (moving ? row_.height - height : 0);
        for (const Piece& p : seen(rows_[r], moving)) {
          const double length = std::max(p.end - p.begin, moving ? 1.0 : 0.0);
          paths[p.layer] += fmt::format("M{:.1f} {:.1f}h{:.1f}", left_ + p.begin, middle, length);
        }
      }
    }
    Found found{};
    for (size_t i = 0; i < paths.size(); ++i) {
      found[i] = !paths[i].empty();
      if (!found[i]) continue;
      const bool moving = i == kMoving;
      out_ +=
          fmt::format("<path stroke=\"{}\" stroke-width=\"{:.1f}\" d=\"{}\"/>\n", kLayers[i].colour,
                      moving ? row_.bytes_height() : row_.height - row_.bytes_height(), paths[i]);
    }
    return found;
  }

  // What follows each other closer than can be seen is one piece, of the layer that has most of it.
  static std::vector<Piece> seen(const std::vector<Piece>& row, bool moving) {
    constexpr double kSeen = 0.75;
    std::vector<Piece> all;
    std::array<double, std::size(kLayers)> share{};
    double begin = 0, end = 0;
    const auto finish = [&] {
      const double whole = end - begin;
      const auto most = std::max_element(share.begin(), share.end());
      const int layer = static_cast<int>(most - share.begin());
      share = {};
      if (!all.empty() && all.back().layer == layer && begin - all.back().end < kSeen) {
        all.back().end = end;
      } else if (moving || whole >= kSeen / 3) {
        all.push_back({begin, end, layer});
      }
      begin = end;
    };
    for (const Piece& p : row) {
      if ((p.layer == kMoving) != moving) continue;
      if (p.begin - end >= kSeen) {
        if (end > begin) finish();
        begin = end = p.begin;
      }
      share[p.layer] += p.end - p.begin;
      end = std::max(end, p.end);
      if (end - begin >= kSeen) finish();
    }
    if (end > begin) finish();
    return all;
  }

  const TimelineText& text_;
  const RankTimes& times_;
  const Row row_;
  std::vector<std::vector<Piece>> rows_;
  double left_ = 0, scale_ = 0;  // where seconds begin, and pixels of one
  std::string out_;
};

std::string row_name(const RankPlace& place, const DitConfig& config) {
  std::string name = fmt::format("rank {}", place.rank);
  if (place.tensor > 1) {
    name += fmt::format(", part {} of {}", place.part() + 1, place.tensor);
  }
  if (place.pipe == 1) return name;
  if (place.data > 1) name += fmt::format(", group {}", place.group());
  return name +
         fmt::format(", blocks {}-{}", place.first_block(), place.end_block(config.depth()) - 1);
}

std::string title_of(const std::string& model, const DitConfig& config, const PlannedRun& planned) {
  const RankPlace& place = planned.step.place;
  std::string title = fmt::format("{}, batch {}", model, planned.step.batch);
  if (!place.alone()) title += ", --ranks " + layout_text(place);
  if (planned.step.leaves > 0) title += fmt::format(" --sum tree:{}", planned.step.leaves);
  if (place.data > 1 && planned.step.leaves == 0) title += " --sum chain";
  if (place.pipe > 1) {
    constexpr const char* kOrders[] = {"1f1b", "zb-h1", "zb-h1+1"};
    title += " --stage-order ";
    title += kOrders[static_cast<int>(planned.step.choices.stage_order)];
  }
  std::string used;
  for (const TechniqueUse& use : techniques_in_use(config, planned.step)) {
    used += fmt::format("{}{} {}", used.empty() ? ": " : ", ", use.name, use.setting);
  }
  return title + used;
}

}  // namespace

std::string rank_timeline_svg(const RankTimes& times, const TimelineText& text) {
  require(!times.timeline.empty() && times.seconds() > 0, "ranks: no timeline was asked for");
  require(text.rows.size() == times.ranks.size(), "ranks: {} names for {} rows", text.rows.size(),
          times.ranks.size());
  return Picture(text, times).svg();
}

std::string plan_timeline_svg(const std::string& model, const DitConfig& config,
                              const PlannedRun& planned, const Machine& machine) {
  StepSpec step = planned.step;
  TimelineText text;
  std::vector<RankScript> scripts;
  for (int r = 0; r < step.place.ranks(); ++r) {
    step.place.rank = r;
    text.rows.push_back(row_name(step.place, config));
    scripts.push_back(
        script_of(write_step(config, step, *machine.device), machine, ScriptCut::works));
  }
  const RankTimes times = simulate(scripts, machine.link, {.timeline = true});
  double computing = 0;
  for (const RankTime& rank : times.ranks) computing += rank.computing;
  text.title = title_of(model, config, planned);
  const auto digits = [](double seconds) { return fmt::format("{:.3g} s", seconds); };
  const std::string first = digits(times.seconds()), later = digits(planned.seconds);
  text.below_it = fmt::format(
      "{}; ranks compute for {:.0f} % of it.{}",
      first == later ? "A step takes " + first
                     : fmt::format("The first step takes {}, later ones {} each", first, later),
      100 * computing / static_cast<double>(times.ranks.size()) / times.seconds(),
      step.place.alone() ? "" : " Link: " + link_text(machine.link) + ".");
  return rank_timeline_svg(times, text);
}

}  // namespace ebb
