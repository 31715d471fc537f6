#include <algorithm>
#include <utility>

#include "base/error.h"
#include "plan/profile.h"

namespace ebb {

Estimate estimate(const Profile& p, const DitConfig& config, const Schedule& schedule) {
  // The last action that reads the block input that action i made; `count` is the embedding.
  const auto count = static_cast<int>(schedule.size());
  std::vector<int> last_reader(count + 1, -1);
  std::vector<int> maker(config.depth() + 1, count);
  std::vector<KeepSet> kept(config.depth());
  for (int i = 0; i < count; ++i) {
    const Action& a = schedule[i];
    const int64_t read = a.kind == Action::Kind::turn ? config.depth() : a.block;
    last_reader[maker[read]] = i;
    if (a.kind == Action::Kind::forward) maker[a.block + 1] = i;
  }
  const auto option_of = [&](const KeepSet& keep) {
    const auto found = std::find(p.options.begin(), p.options.end(), keep);
    if (found == p.options.end()) throw Bug("estimate: no profile of " + keep.recomputed());
    return found - p.options.begin();
  };
  Estimate e{p.embed_peak, p.fixed_seconds, p.fixed_own_bytes};
  int64_t live = p.start_bytes, first_stored = p.first_stored;
  maker.assign(config.depth() + 1, count);
  for (int i = 0; i < count; ++i) {
    const Action& a = schedule[i];
    Stage stage = p.turn;
    if (a.kind == Action::Kind::forward) {
      stage = p.at(a.block).forward[option_of(a.keep)];
      kept[a.block] = a.keep;
      if (last_reader[maker[a.block]] == i) stage.delta -= p.input_bytes;
      maker[a.block + 1] = i;
    } else if (a.kind == Action::Kind::backward) {
      stage = p.at(a.block).backward[option_of(kept[a.block])];
    }
    e.bytes = std::max(e.bytes, live + stage.peak);
    live += stage.delta;
    if (a.kind == Action::Kind::backward) live += std::exchange(first_stored, 0);
    e.seconds += stage.seconds;
    e.own_bytes += stage.own_bytes;
  }
  e.bytes = std::max(e.bytes, live + p.embed_backward.peak);
  live += p.embed_backward.delta;
  e.bytes = std::max(e.bytes, live + p.update.peak);
  return e;
}

}  // namespace ebb
