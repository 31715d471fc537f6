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

bool is_sum_rest(const std::string& name) { return name.starts_with(kSumRest); }

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
               const std::vector<const TensorEntry*>& all, size_t own) {
  constexpr int64_t kPart = 16 * kMomentBlock;
  std::array<float, kPart> sum, part;
  for (int64_t first = 0; first < tensor.count(); first += kPart) {
    const int64_t count = std::min(kPart, tensor.count() - first);
    sum.fill(0);
    for (size_t i = own; i < all.size(); i += state.groups()) {
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

Unsent unsent_in(const SafetensorsReader& file) {
  Unsent found;
  for (const TensorEntry& entry : file.tensors()) {
    if (const auto rest = rest_in(entry.name)) found.tensors.insert(rest->tensor);
    if (is_sum_rest(entry.name)) found.of_momenta = true;
  }
  return found;
}

std::string without_place(const Unsent& unsent, const DitConfig& config, const StepSpec& step) {
  std::set<std::string> left = unsent.tensors;
  const bool of_momenta = step.codes_gradients() && step.choices.storage.exchange.freezes();
  if (!left.empty() && unsent.of_momenta != of_momenta) return *left.begin();
  for (const ParamSpec& param : parameters(config)) {
    const bool kept =
        step.codes_gradients() && !exchange_state(param, step.choices.storage, 0).empty();
    if (kept) left.erase(param.name);
  }
  return left.empty() ? "" : *left.begin();
}

void load_unsent(const SafetensorsReader& file, State& state, const DitConfig& config) {
  using Entries = std::vector<const TensorEntry*>;
  const bool of_use = unsent_in(file).of_momenta == state.sends_momenta();
  for (const StateTensor& tensor : state.tensors()) {
    if (const auto own = rest_in(tensor.name)) {
      load_rest(file, state, tensor, of_use ? rests_of(file, own->tensor) : Entries(), own->group);
    }
    if (is_sum_rest(tensor.name)) {
      const TensorEntry* entry = file.find(tensor.name);
      load_rest(file, state, tensor, entry != nullptr ? Entries{entry} : Entries(), 0);
    }
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

void thaw_moments(State& state, const DitConfig& config, double factor) {
  const ExchangeCode signs = *parse_exchange("onebit");
  for (const ParamSpec& param : parameters(config)) {
    const StateTensor* tensor = state.find(kSecondMoment + param.name);
    if (tensor == nullptr || !signs.codes(param)) continue;
    constexpr int64_t kPart = 16 * kMomentBlock;
    std::array<float, kPart> part;
    for (int64_t first = 0; first < tensor->count(); first += kPart) {
      const int64_t count = std::min(kPart, tensor->count() - first);
      state.read(*tensor, first, part.data(), count);
      for (int64_t k = 0; k < count; ++k) part[k] = static_cast<float>(part[k] * factor);
      state.write(*tensor, first, part.data(), count);
    }
  }
}

void begin_codes(State& state, const DitConfig& config) {
  for (const StateTensor& tensor : state.tensors()) {
    if (is_warm(tensor)) begin_warm(state, tensor, config);
  }
}

}  // namespace ebb
