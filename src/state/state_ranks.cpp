#include "state/state_ranks.h"

#include <map>

#include "base/error.h"
#include "model/ranks.h"

namespace ebb {

OwnerOf owners_of(const DitConfig& config, const StepSpec& step) {
  struct Owners {
    int weight, state, first, root;
  };
  const std::vector<ParamSpec> params = parameters(config);
  RankPlace first = step.place;  // of the first group: it has all weights
  first.rank = 0;
  const std::vector<int> by_number = owners(params, first, step.choices.shard);
  const std::vector<int> roots = owners(params, first, Shard::grads);
  std::map<std::string, Owners> by_name;
  size_t trained = 0;
  for (const ParamSpec& param : params) {
    const int has = first.at(0, first.stage_of(param.layer));
    const int owner = param.trained() ? by_number[trained] : has;
    const int root = param.trained() ? roots[trained++] : has;
    // Every group has the weights, unless they lie with their owner, as the lower half of split
    // ones does.
    const bool split = step.update && step.choices.storage.splits(param);
    const bool away = split || step.choices.shard == Shard::weights;
    by_name[param.name] = {away ? owner : has, owner, has, root};
  }
  const int stages = first.pipe;
  return [by_name = std::move(by_name), stages](const std::string& tensor) {
    if (const auto weight = by_name.find(tensor); weight != by_name.end()) {
      return weight->second.weight;
    }
    const auto param = by_name.find(tensor.substr(tensor.find('.') + 1));
    require(param != by_name.end(), "ranks: no tensor {} has an owner", tensor);
    // The rank of each group has its own rest, and all have what they begin the next code with.
    if (const auto rest = rest_in(tensor)) return param->second.first + rest->group * stages;
    if (tensor.starts_with(kWarm)) return param->second.first;
    if (tensor.starts_with(kSumRest)) return param->second.root;
    return tensor.starts_with(kMask) ? param->second.weight : param->second.state;
  };
}

}  // namespace ebb
