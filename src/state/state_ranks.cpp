#include "state/state_ranks.h"

#include <map>

#include "base/error.h"
#include "model/ranks.h"

namespace ebb {

OwnerOf owners_of(const DitConfig& config, const StepSpec& step) {
  struct Owners {
    int weight, rest;
  };
  const std::vector<ParamSpec> params = parameters(config);
  const std::vector<int> by_number = owners(params, step.place.ranks);
  std::map<std::string, Owners> by_name;
  size_t trained = 0;
  for (const ParamSpec& param : params) {
    const int owner = param.trained() ? by_number[trained++] : 0;
    const bool away = step.place.shard != Shard::off;
    // Every rank computes with the weights, but of split ones only the owner has the lower half.
    const bool split = step.update && step.choices.storage.splits(param);
    by_name[param.name] = {away && split ? owner : 0, away ? owner : 0};
  }
  return [by_name = std::move(by_name)](const std::string& tensor) {
    if (const auto weight = by_name.find(tensor); weight != by_name.end()) {
      return weight->second.weight;
    }
    if (tensor.starts_with(kMask)) return 0;  // with the weights
    const auto param = by_name.find(tensor.substr(tensor.find('.') + 1));
    require(param != by_name.end(), "ranks: no tensor {} has an owner", tensor);
    return param->second.rest;
  };
}

}  // namespace ebb
