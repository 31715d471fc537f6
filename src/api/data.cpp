#include <ebb/data.h>

#include "api/impl.h"
#include "api/own_source.h"
#include "base/error.h"
#include "data/array_source.h"

namespace ebb {

namespace {

std::shared_ptr<const Data::Impl> hold(std::unique_ptr<Source> source) {
  return std::make_shared<const Data::Impl>(Data::Impl{std::move(source)});
}

}  // namespace

Data Data::of_pixels(std::span<const uint8_t> pixels, std::span<const int32_t> labels, int64_t size,
                     int64_t channels) {
  return Data(hold(pixel_source(pixels, labels, size, channels)));
}

Data Data::of_values(std::span<const float> values, std::span<const int32_t> labels, int64_t size,
                     int64_t channels) {
  return Data(hold(value_source(values, labels, size, channels)));
}

Data Data::of(std::shared_ptr<const OwnSamples> samples) {
  if (!samples) fail(Exit::data, "data: found no samples, wanted OwnSamples");
  return Data(hold(own_source(std::move(samples))));
}

Data Data::open(const std::filesystem::path& path, const Options& options) {
  return Data(hold(open_source(path, {options.image_size, static_cast<int>(options.channels),
                                      options.memory_limit, options.verify})));
}

int64_t Data::count() const { return inside(*this).info().count; }
int64_t Data::channels() const { return inside(*this).info().channels; }
int64_t Data::size() const { return inside(*this).info().height; }
int64_t Data::classes() const { return inside(*this).info().classes; }
const std::vector<std::string>& Data::class_names() const {
  return inside(*this).info().class_names;
}
const std::vector<std::string>& Data::notes() const { return inside(*this).info().notes; }

}  // namespace ebb
