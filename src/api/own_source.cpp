#include "api/own_source.h"

#include <exception>

#include "base/error.h"

namespace ebb {

namespace {

class OwnSource final : public Source {
 public:
  explicit OwnSource(std::shared_ptr<const OwnSamples> samples) : samples_(std::move(samples)) {
    info_.kind = "own";
    info_.count = samples_->count();
    info_.channels = samples_->channels();
    info_.height = info_.width = samples_->size();
    info_.classes = samples_->classes();
    info_.pixels = samples_->pictures();
    info_.fingerprint = samples_->fingerprint();
    if (info_.count < 1 || info_.channels < 1 || info_.height < 1 || info_.classes < 0) {
      fail(Exit::data,
           fmt::format("data: found {} samples of {} channels and size {} in {} classes, wanted at "
                       "least one of each, and no classes or some",
                       info_.count, info_.channels, info_.height, info_.classes),
           "check what the OwnSamples say of themselves");
    }
    for (int64_t i = 0; i < info_.count; ++i) count_class(checked_label(i));
  }

  // What a user's code throws is an error of the data, whatever it is.
  void load(std::byte* values, int32_t* label, int64_t index,
            std::span<std::byte> /*scratch*/) const override {
    try {
      samples_->load(reinterpret_cast<float*>(values), index);
    } catch (const std::exception& e) {
      fail(Exit::data, fmt::format("data: sample {}: {}", index, e.what()),
           "it is what load() of the OwnSamples says");
    }
    *label = this->label(index);
  }

  int32_t label(int64_t index) const override {
    return info_.classes > 0 ? samples_->label(index) : 0;
  }
  int64_t scratch_bytes() const override { return 0; }
  int64_t heap_bytes() const override { return samples_->load_bytes(); }
  int64_t held_bytes() const override { return samples_->held_bytes(); }

 private:
  int32_t checked_label(int64_t index) const {
    const int32_t found = label(index);
    if (info_.classes > 0 && (found < 0 || found >= info_.classes)) {
      fail(Exit::data,
           fmt::format("data: sample {}: found label {}, wanted 0 to {}", index, found,
                       info_.classes - 1),
           "check label() and classes() of the OwnSamples");
    }
    return found;
  }

  const std::shared_ptr<const OwnSamples> samples_;
};

}  // namespace

std::unique_ptr<Source> own_source(std::shared_ptr<const OwnSamples> samples) {
  return std::make_unique<OwnSource>(std::move(samples));
}

}  // namespace ebb
