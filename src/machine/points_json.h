// Measurements as JSON: ["kind",x,y,seconds] each.
#pragma once

#include <string>
#include <vector>

#include "formats/json_reader.h"
#include "plan/cost.h"

namespace ebb {

inline constexpr size_t kMostPaces = 9;
inline constexpr double kSlowestPace = 100;

// Each reads one value that is within its bounds, or refuses it.
double read_within(JsonReader& json, double least, double most);
std::vector<CostPoint> read_points(JsonReader& json);
std::vector<double> read_paces(JsonReader& json);

// Lists: "[[..],[..]]" and "[1.02,..]".
std::string points_text(const std::vector<CostPoint>& points);
std::string paces_text(const std::vector<double>& paces);

}  // namespace ebb
