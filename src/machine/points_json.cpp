#include "machine/points_json.h"

#include <fmt/format.h>

namespace ebb {

double read_within(JsonReader& json, double least, double most) {
  const double value = json.read_real();
  if (!(value >= least && value <= most)) json.refuse("a size or time", "one that can be");
  return value;
}

namespace {

constexpr size_t kMostPoints = 1000;

double read_size(JsonReader& json, double least, double most) {
  if (!json.next_element()) json.refuse("the end of a point", "four values");
  return read_within(json, least, most);
}

CostPoint read_point(JsonReader& json) {
  CostPoint point;
  json.begin_array();
  if (!json.next_element()) json.refuse("an empty point", "four values");
  point.kind = json.read_string();
  point.x = read_size(json, 1, 1e15);
  point.y = read_size(json, 1, 1e15);
  point.seconds = read_size(json, 1e-12, 1e4);
  if (json.next_element()) json.refuse("a fifth value", "four");
  return point;
}

}  // namespace

std::vector<CostPoint> read_points(JsonReader& json) {
  std::vector<CostPoint> points;
  json.begin_array();
  while (json.next_element()) {
    if (points.size() == kMostPoints) json.refuse("more points", "fewer");
    points.push_back(read_point(json));
  }
  return points;
}

std::vector<double> read_paces(JsonReader& json) {
  std::vector<double> paces;
  json.begin_array();
  while (json.next_element()) {
    if (paces.size() == kMostPaces) json.refuse("more paces", "fewer");
    paces.push_back(read_within(json, 1 / kSlowestPace, kSlowestPace));
  }
  return paces;
}

std::string points_text(const std::vector<CostPoint>& points) {
  std::string text = "[";
  for (const CostPoint& point : points) {
    text += fmt::format("{}\n[{},{},{},{}]", &point == &points[0] ? "" : ",",
                        json_quote(point.kind), point.x, point.y, point.seconds);
  }
  return text + "]";
}

std::string paces_text(const std::vector<double>& paces) {
  return fmt::format("[{}]", fmt::join(paces, ","));
}

}  // namespace ebb
