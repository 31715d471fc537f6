// The kinds of settings: how each is read, checked and written.
#pragma once

#include <cstdint>
#include <limits>
#include <string>

#include "cli/settings.h"

namespace ebb {

Setting whole(const char* name, int64_t Settings::*member, int64_t low, const char* help,
              int64_t high = std::numeric_limits<int32_t>::max());
Setting real(const char* name, double Settings::*member, double low, double high, const char* help);
// Above 0 and below 1; 0 is what it is when it is not given.
Setting share(const char* name, double Settings::*member, const char* help);
Setting text(const char* name, std::string Settings::*member, const char* value, const char* help);
// One of the words "A|B|C".
Setting choice(const char* name, std::string Settings::*member, const char* choices,
               const char* help);
Setting on_off(const char* name, bool Settings::*member, const char* help);
// Switches off what another setting stores.
Setting without(const char* name, bool Settings::*member, const char* help);
Setting bytes(const char* name, int64_t Settings::*member, const char* help);
// A number from 1 on, or a word that stands for 0.
Setting whole_or(const char* word, const char* name, int64_t Settings::*member, const char* help);

// A share, or a number.
Setting amount(const char* name, Amount Settings::*member, const char* help);

// The flag of a technique.
Setting technique_flag(const Technique& technique);
// --allow: words of techniques, joined by commas.
Setting allowed_words();

// The same, but not for settings.toml.
Setting unstored(Setting setting);
// The same; help shows this as its default.
Setting otherwise(std::string what, Setting setting);

}  // namespace ebb
