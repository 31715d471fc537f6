// The plain twin of every op.
#pragma once

#include "kernels/reference/attention.h"
#include "kernels/reference/elementwise.h"
#include "kernels/reference/embed.h"
#include "kernels/reference/exchange.h"
#include "kernels/reference/galore.h"
#include "kernels/reference/gate.h"
#include "kernels/reference/label.h"
#include "kernels/reference/linear.h"
#include "kernels/reference/loss.h"
#include "kernels/reference/noise.h"
#include "kernels/reference/norm.h"
#include "kernels/reference/sampler.h"
#include "kernels/reference/samples.h"
#include "kernels/reference/scores.h"
#include "kernels/reference/update.h"

namespace ebb {

template <typename T>
void run_reference(const OpParams& params, const Refs<T>& r) {
  std::visit([&](const auto& op) { reference(op, r); }, params);
}

}  // namespace ebb
