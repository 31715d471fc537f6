// What a checkpoint says of itself: its metadata, the model that it describes, and that model's
// parameters. The tensors themselves are the business of the target `safetensors`.
#include "train/checkpoint.h"

#include "fuzz.h"

namespace ebb {

void fuzz(std::string_view bytes) {
  static MemoryFile file;
  const SafetensorsReader reader(file.holding(bytes), Exit::disk, 1 << 20);
  const auto describe = [](const DitConfig& config) {
    constexpr int64_t kMostDepth = 8;  // for speed
    if (config.depth() > kMostDepth) return;
    for (const ParamSpec& spec : parameters(config)) {
      if (element_count(spec.shape) < 1) std::abort();
    }
  };
  may_refuse([&] {
    const DitConfig told = model_of(reader, DitConfig{}, false);
    validate(told);  // as whoever asks does
    describe(told);
  });
  const CheckpointInfo info = read_info(reader);
  if (info.step < 0 || info.samples < 0 || info.updates < 0) std::abort();
  describe(info.config);
}

}  // namespace ebb
