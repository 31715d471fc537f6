// The metadata key `ebb.model`: a model's shape as a JSON object.
#pragma once

#include <string>

#include "base/error.h"
#include "model/config.h"

namespace ebb {

inline constexpr const char* kModelKey = "ebb.model";

std::string model_to_json(const DitConfig& config);

// Fails with `code` on anything that is not a model; `where` names the file.
DitConfig model_from_json(const std::string& text, const std::string& where, Exit code);

// The words that flags, settings files and metadata use.
const char* objective_name(Objective objective);
Objective parse_objective(const std::string& word, const std::string& where, Exit code);
const char* qk_norm_name(QkNormKind kind);
QkNormKind parse_qk_norm(const std::string& word, const std::string& where, Exit code);

}  // namespace ebb
