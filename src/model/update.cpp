#include "model/update.h"

#include <fmt/format.h>

#include "model/optimizer.h"
#include "model/structure.h"

namespace ebb {

Update::Update(Builder& b, const DitConfig& config, const StepSpec& spec,
               const std::vector<ParamSpec>& specs, const Params& params)
    : b_(b),
      config_(config),
      spec_(spec),
      specs_(specs),
      params_(params),
      storage_(spec.choices.storage) {}

// In the order of the tensors, whatever order they are updated in: checkpoints are written so.
void Update::declare_state(const Own& own) {
  for (const ParamSpec& spec : specs_) {
    if (!spec.trained() || !own(spec)) continue;
    std::vector<Buf>& updates = state_[spec.name];
    for (const StateBuffer& b : state_of(spec, spec_, storage_)) {
      if (!b.updated()) continue;
      updates.push_back(b.prefix.empty() ? params_.weight(spec.name)
                                         : b_.declare({b.prefix + spec.name, spec.layer, b.purpose,
                                                       b.type, b.shape, true}));
    }
  }
}

void Update::declare(const Own& own) {
  for (const ParamSpec& spec : specs_) {
    if (spec.trained()) numbers_.emplace(spec.name, static_cast<uint32_t>(numbers_.size()));
  }
  for (const NormSlot& slot : norm_slots(specs_, spec_.place, spec_.choices.shard)) {
    if (slot.part == spec_.place.part()) slots_[specs_[slot.spec].name] = norm_count_;
    ++norm_count_;
  }
  declare_state(own);
  norms_ = b_.buffer(kNorms, {norm_count_}, Purpose::activation, DType::f64);
  clip_ = b_.buffer(kClip, {2});
  b_.output(norms_);
  b_.output(clip_);
}

void Update::catch_up(Buf y) {
  for (const ParamSpec& spec : specs_) {
    const auto state = state_.find(spec.name);
    if (!storage_.in_rows(spec) || state == state_.end()) continue;
    const auto update = std::get<LabelRowsUpdate>(update_op(spec, spec_, storage_));
    const int64_t wanted = y ? element_count(b_.shape(y)) : 0;
    b_.emit("catch_up." + spec.name, LabelRowsCatchUp{wanted, update.rows, update.D, update.adam},
            y ? std::vector<Buf>{y} : std::vector<Buf>{}, {}, state->second);
  }
}

// Parts of a tensor are rounded at random each in its own way.
uint32_t Update::number(const ParamSpec& spec) const {
  constexpr uint32_t kParts = 1u << 20;
  const uint32_t number = numbers_.at(spec.name);
  return spec.slice.any() ? number + kParts * static_cast<uint32_t>(spec_.place.part()) : number;
}

// What ranks have alike counts once: the first of them says it.
void Update::norm(const ParamSpec& spec, Buf gradient) {
  const auto slot = slots_.find(spec.name);
  if (slot == slots_.end()) return;
  b_.emit("norm." + spec.name, norm_op(spec, storage_, slot->second), {gradient}, {norms_});
}

void Update::clip() { b_.emit("clip", ClipScale{0, norm_count_, spec_.clip}, {norms_}, {clip_}); }

void Update::apply_at_once(const ParamSpec& spec, Buf gradient) {
  norm(spec, gradient);
  const Buf own = b_.buffer("clip." + spec.name, {2});
  b_.emit("clip." + spec.name, ClipScale{slots_.at(spec.name), 1, 0}, {norms_}, {own});
  apply(spec, gradient, own);
}

void Update::apply(const ParamSpec& spec, Buf gradient, Buf clip) {
  const bool shrinks = ebb::shrinks(spec, spec_);
  std::vector<Buf> state = state_.at(spec.name);
  if (shrinks && spec_.ema) state.pop_back();  // which comes after that
  b_.emit("update." + spec.name, update_op(spec, spec_, storage_, number(spec)), {gradient, clip},
          {}, std::move(state));
  if (!shrinks) return;
  in_group(spec, spec_) ? shrink_group(spec, clip) : shrink(spec, {clip});
}

std::vector<Buf> Update::weight(const ParamSpec& spec) const {
  const std::vector<Buf>& state = state_.at(spec.name);
  return {state.begin(), state.begin() + (storage_.splits(spec) ? 2 : 1)};
}

void Update::shrink(const ParamSpec& spec, std::vector<Buf> reads) {
  std::vector<Buf> updates = weight(spec);
  if (spec_.ema) updates.push_back(state_.at(spec.name).back());
  b_.emit("shrink." + spec.name, shrink_op(spec, config_, spec_, storage_, number(spec)),
          std::move(reads), {}, std::move(updates));
}

// Structures lie in several tensors of a block: with the last of them they are complete.
void Update::shrink_group(const ParamSpec& spec, Buf clip) {
  const auto group_of = [&](const ParamSpec& p) {
    const Belonging place = belonging(p, config_);
    return fmt::format("block{}.{}", *place.block, structure_name(place.member->kind));
  };
  const std::string group = group_of(spec);
  std::vector<const ParamSpec*> members;
  for (const ParamSpec& p : specs_) {
    if (in_group(p, spec_) && group_of(p) == group) members.push_back(&p);
  }
  if (++updated_[group] < std::ssize(members)) return;
  const Belonging place = belonging(spec, config_);
  const int64_t count = structure_count(config_.blocks[*place.block], place.member->kind);
  const Buf squares = b_.buffer("squares." + group, {count}, Purpose::activation, DType::f64);
  for (const ParamSpec* p : members) {
    const bool begins = p == members.front();
    const std::vector<Buf> sums = {squares};
    b_.emit("squares." + p->name, squares_op(*p, config_, spec_, storage_, begins), weight(*p),
            begins ? sums : std::vector<Buf>{}, begins ? std::vector<Buf>{} : sums);
  }
  for (const ParamSpec* p : members) shrink(*p, {clip, squares});
}

}  // namespace ebb
