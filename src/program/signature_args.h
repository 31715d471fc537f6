// The words that signatures are written in.
#pragma once

#include <utility>
#include <vector>

#include "program/signature.h"

namespace ebb {

inline Arg typed(DType type, const char* name, Shape shape) {
  return {name, type, std::move(shape)};
}
inline Arg f32(const char* name, Shape shape) { return typed(DType::f32, name, std::move(shape)); }
inline Arg i32(const char* name, Shape shape) { return {name, DType::i32, std::move(shape)}; }
inline Arg f64(const char* name, Shape shape) { return {name, DType::f64, std::move(shape)}; }

// An output that may take the place of any of these reads.
inline Arg over(std::vector<int> reads, Arg arg) {
  arg.over = std::move(reads);
  return arg;
}
inline Arg f32_over(std::vector<int> reads, const char* name, Shape shape) {
  return over(std::move(reads), f32(name, std::move(shape)));
}
// A part of a buffer that may be longer.
inline Arg or_more(Arg arg) {
  arg.or_more = true;
  return arg;
}

}  // namespace ebb
