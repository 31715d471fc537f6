// What is taken where neither the user nor the data or checkpoint says it.
#pragma once

#include <cstdint>

namespace ebb {

inline constexpr const char* kDefaultModel = "DiT-S/2";
inline constexpr const char* kDefaultObjective = "ddpm";
inline constexpr int64_t kDefaultImageSize = 32, kDefaultChannels = 4, kDefaultClasses = 1000;

}  // namespace ebb
