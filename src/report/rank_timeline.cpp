#include "report/rank_timeline.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>

#include "base/error.h"

namespace ebb {

namespace {

constexpr double kWidth = 960, kLeft = 72, kRight = 24, kTop = 56, kBottom = 40;
constexpr double kPlot = kWidth - kLeft - kRight;
// On a ground of its own, which suits light pages and dark ones.
constexpr const char *kInk = "#1f2933", *kPale = "#6b7785", *kLines = "#e4e8ec";
constexpr const char* kColours[] = {"#2f6f9f", "#ccd5dd", "#d99a4e"};
constexpr const char* kNames[] = {"computing", "waiting for others", "bytes on their way"};

struct Row {
  double height, gap;
  double bytes_height() const { return std::max(1.0, height / 4); }
};

Row row_of(size_t ranks) {
  const auto n = static_cast<double>(ranks);
  const double height = std::clamp(560 / n, 3.0, 26.0);
  return {height, height >= 8 ? 4.0 : 0};
}

std::string text(double x, double y, const char* colour, const char* anchor,
                 const std::string& what) {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" fill=\"{}\" text-anchor=\"{}\">{}</text>\n",
                     x, y, colour, anchor, what);
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
  Picture(size_t ranks, const RankTimes& times)
      : ranks_(ranks), times_(times), row_(row_of(ranks)), scale_(kPlot / times.seconds()) {}

  std::string svg() {
    const double height = bottom() + kBottom;
    out_ = fmt::format(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1:.0f}\" width=\"{0}\" "
        "height=\"{1:.0f}\" font-family=\"Helvetica, Arial, sans-serif\" font-size=\"13\">\n"
        "<rect width=\"{0}\" height=\"{1:.0f}\" rx=\"8\" fill=\"#ffffff\"/>\n",
        kWidth, height);
    legend();
    axis();
    intervals();
    rank_names();
    return out_ + "</svg>\n";
  }

 private:
  double top(size_t rank) const {
    return kTop + static_cast<double>(rank) * (row_.height + row_.gap);
  }
  double bottom() const { return top(ranks_); }

  void legend() {
    constexpr double kPlaces[] = {kLeft, kLeft + 112, kLeft + 272};
    for (size_t i = 0; i < std::size(kNames); ++i) {
      const double x = kPlaces[i];
      out_ +=
          fmt::format("<rect x=\"{}\" y=\"20\" width=\"14\" height=\"12\" rx=\"2\" fill=\"{}\"/>\n",
                      x, kColours[i]);
      out_ += text(x + 20, 31, kInk, "start", kNames[i]);
    }
    double computing = 0;
    for (const RankTime& rank : times_.ranks) computing += rank.computing;
    out_ += text(kWidth - kRight, 31, kPale, "end",
                 fmt::format("{:.3g} s, {:.0f} % of it computing", times_.seconds(),
                             100 * computing / static_cast<double>(ranks_) / times_.seconds()));
  }

  void axis() {
    const double step = tick_step(times_.seconds());
    for (int i = 0; i * step <= times_.seconds(); ++i) {
      const double x = kLeft + i * step * scale_;
      out_ += fmt::format("<path d=\"M{0:.1f} {1:.1f}V{2:.1f}\" stroke=\"{3}\"/>\n", x, kTop - 6,
                          bottom() + 6, kLines);
      out_ += text(x, bottom() + 24, kPale, "middle", tick_text(i * step, step));
    }
  }

  void rank_names() {
    const auto n = static_cast<double>(ranks_);
    const auto every = static_cast<size_t>(std::exp2(std::ceil(std::log2(std::max(1.0, n / 32)))));
    for (size_t r = 0; r < ranks_; r += every) {
      const std::string name = r == 0 ? "rank 0" : fmt::format("{}", r);
      out_ += text(kLeft - 10, top(r) + row_.height / 2 + 4.5, kPale, "end", name);
    }
  }

  // What is nearer to each other than can be seen is one rectangle: few of them, whatever the run.
  void intervals() {
    for (const int layer : {1, 0, 2}) {
      std::vector<std::vector<std::pair<double, double>>> rows(ranks_);
      for (const RankInterval& i : times_.timeline) {
        if (layer_of(i.kind) == layer) rows[i.rank].push_back({i.begin * scale_, i.end * scale_});
      }
      std::string path;
      for (size_t r = 0; r < ranks_; ++r) {
        std::sort(rows[r].begin(), rows[r].end());
        add_row(path, rows[r], r, layer == 2);
      }
      out_ += fmt::format("<path fill=\"{}\" d=\"{}\"/>\n", kColours[layer], path);
    }
  }

  static int layer_of(RankInterval::Kind kind) {
    using Kind = RankInterval::Kind;
    return kind == Kind::computing ? 0 : kind == Kind::waiting ? 1 : 2;
  }

  void add_row(std::string& path, const std::vector<std::pair<double, double>>& sorted, size_t rank,
               bool bytes) const {
    constexpr double kSeen = 0.25;
    const double height = bytes ? row_.bytes_height() : row_.height - row_.bytes_height();
    const double y = top(rank) + (bytes ? row_.height - height : 0);
    for (size_t i = 0; i < sorted.size();) {
      auto [begin, end] = sorted[i++];
      while (i < sorted.size() && sorted[i].first - end < kSeen)
        end = std::max(end, sorted[i++].second);
      if (end - begin < kSeen) continue;
      path += fmt::format("M{:.2f} {:.2f}h{:.2f}v{:.2f}h{:.2f}z", kLeft + begin, y, end - begin,
                          height, begin - end);
    }
  }

  const size_t ranks_;
  const RankTimes& times_;
  const Row row_;
  const double scale_;  // of a second
  std::string out_;
};

}  // namespace

std::string rank_timeline_svg(const RankTimes& times) {
  require(!times.timeline.empty() && times.seconds() > 0, "ranks: no timeline was asked for");
  return Picture(times.ranks.size(), times).svg();
}

}  // namespace ebb
