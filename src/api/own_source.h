// The samples of a program that makes or reads them by itself, as a source.
#pragma once

#include <ebb/data.h>

#include <memory>

#include "data/source.h"

namespace ebb {

// Fails with Exit::data on sizes or labels that cannot be.
std::unique_ptr<Source> own_source(std::shared_ptr<const OwnSamples> samples);

}  // namespace ebb
