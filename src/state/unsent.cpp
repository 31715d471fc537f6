#include "state/unsent.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/error.h"
#include "base/text.h"

namespace ebb {

namespace {

bool is_warm(const StateTensor& tensor) { return tensor.name.starts_with(kWarm); }

// The same on every rank.
void begin_warm(State& state, const StateTensor& tensor, const DitConfig& config) {
  const ParamSpec start{tensor.name, tensor.layer, tensor.shape, Init::normal};
  state.fill_whole(tensor, [&](float* all) { initialise(all, start, 0, config); });
}

// Of every group of the run that wrote the file, in their order.
std::vector<const TensorEntry*> rests_of(const SafetensorsReader& file, const std::string& name) {
  std::vector<std::pair<int, const TensorEntry*>> found;
  for (const TensorEntry& entry : file.tensors()) {
    const auto rest = rest_in(entry.name);
    if (rest && rest->tensor == name) found.emplace_back(rest->group, &entry);
  }
  std::sort(found.begin(), found.end());
  std::vector<const TensorEntry*> entries;
  for (const auto& [group, entry] : found) entries.push_back(entry);
  return entries;
}

// The group `own` of `groups` goes on with what every so manieth had.
void load_rest(const SafetensorsReader& file, State& state, const StateTensor& tensor,
               const RestName& own) {
  const std::vector<const TensorEntry*> all = rests_of(file, own.tensor);
  constexpr int64_t kPart = 16 * kMomentBlock;
  std::array<float, kPart> sum, part;
  for (int64_t first = 0; first < tensor.count(); first += kPart) {
    const int64_t count = std::min(kPart, tensor.count() - first);
    sum.fill(0);
    for (size_t i = own.group; i < all.size(); i += state.groups()) {
      if (all[i]->shape != tensor.shape) {
        fail(Exit::disk,
             fmt::format("{}: {} has shape {}, wanted {}", file.path().string(), all[i]->name,
                         shape_text(all[i]->shape), shape_text(tensor.shape)),
             "the file is of another model");
      }
      file.read_f32_part(*all[i], first, part.data(), count);
      for (int64_t k = 0; k < count; ++k) sum[k] += part[k];
    }
    state.write(tensor, first, sum.data(), count);
  }
}

}  // namespace

std::set<std::string> unsent_in(const SafetensorsReader& file) {
  std::set<std::string> names;
  for (const TensorEntry& entry : file.tensors()) {
    if (const auto rest = rest_in(entry.name)) names.insert(rest->tensor);
  }
  return names;
}

std::string without_place(const std::set<std::string>& unsent, const DitConfig& config,
                          const StepSpec& step) {
  std::set<std::string> left = unsent;
  for (const ParamSpec& param : parameters(config)) {
    const bool kept =
        step.codes_gradients() && !exchange_state(param, step.choices.storage, 0).empty();
    if (kept) left.erase(param.name);
  }
  return left.empty() ? "" : *left.begin();
}

void load_unsent(const SafetensorsReader& file, State& state, const DitConfig& config) {
  for (const StateTensor& tensor : state.tensors()) {
    if (const auto own = rest_in(tensor.name)) load_rest(file, state, tensor, *own);
    if (!is_warm(tensor)) continue;
    const TensorEntry* entry = file.find(tensor.name);
    if (entry == nullptr || entry->shape != tensor.shape) {
      begin_warm(state, tensor, config);
      continue;
    }
    state.fill(tensor, [&](float* values, int64_t first, int64_t count) {
      file.read_f32_part(*entry, first, values, count);
    });
  }
}

void begin_codes(State& state, const DitConfig& config) {
  for (const StateTensor& tensor : state.tensors()) {
    if (is_warm(tensor)) begin_warm(state, tensor, config);
  }
}

}  // namespace ebb
