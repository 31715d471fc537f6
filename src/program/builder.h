// Writes a program. It runs nothing and takes no memory.
#pragma once

#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "program/program.h"

namespace ebb {

class Builder {
 public:
  Builder(std::string program_name, const Device& device) : device_(device) {
    program_.name = std::move(program_name);
  }

  // Names made within a scope begin with it, and count under its layer of the ledger.
  class Scope {
   public:
    Scope(Builder& b, const std::string& name);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    Builder& b_;
    size_t prefix_length_;
    bool outermost_;
  };
  [[nodiscard]] Scope scope(const std::string& name) { return {*this, name}; }

  // A buffer whose life is derived from the ops that touch it.
  Buf buffer(const std::string& name, Shape shape, Purpose purpose = Purpose::activation,
             DType type = DType::f32);
  // A buffer whose name and layer are taken as they are, without the scope. Names are unique.
  Buf declare(Buffer buffer);
  void input(Buf b) { program_.inputs.push_back(b); }
  void output(Buf b) { program_.outputs.push_back(b); }

  // Appends an op and asks the device what scratch it needs. The buffers must fit the op's
  // signature, and must have been written before they are read.
  void emit(const std::string& name, OpParams params, std::vector<Buf> reads,
            std::vector<Buf> writes, std::vector<Buf> updates = {});

  const Shape& shape(Buf b) const { return program_.buffer(b).shape; }
  const Program& program() const { return program_; }
  Program finish() { return std::move(program_); }

 private:
  void check_signature(const Op& op) const;

  const Device& device_;
  Program program_;
  std::unordered_set<std::string> names_;
  std::string prefix_;
  std::string layer_ = "step";
};

}  // namespace ebb
