// Writes a program. It runs nothing and takes no memory.
#pragma once

#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "program/device.h"
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
  const std::string& scope_name() const { return layer_; }  // of the outermost one

  // Ops emitted until the end of the returned object's life run `count` times.
  class Repeated {
   public:
    Repeated(Builder& b, int64_t count);
    ~Repeated();
    Repeated(const Repeated&) = delete;
    Repeated& operator=(const Repeated&) = delete;

   private:
    Builder& b_;
  };
  [[nodiscard]] Repeated loop(int64_t count) { return {*this, count}; }
  bool in_loop() const { return loop_.count > 1; }

  // A buffer whose life is derived from the ops that touch it. A name that is taken gets a number:
  // what is computed again has the name of what it is.
  Buf buffer(const std::string& name, Shape shape, Purpose purpose = Purpose::activation,
             DType type = DType::f32);
  // A buffer that other loops read too, when loops go layer by layer: then there is one for each
  // time round, and ops see the one whose turn it is, in this loop and in any other of as many
  // turns. Otherwise a buffer like any other.
  Buf lasting(const std::string& name, Shape shape, DType type = DType::f32,
              Purpose purpose = Purpose::activation);
  void stack_lasting(bool stack) { stack_lasting_ = stack; }
  // Elements of `of` from `offset` on, moving on by `stride` each time round a loop.
  Buf view(Buf of, Shape shape, int64_t offset, int64_t stride);
  // A buffer whose name and layer are taken as they are, without the scope. Names are unique: one
  // that is taken is a Bug, or gets a number.
  Buf declare(Buffer buffer);
  Buf declare_numbered(Buffer buffer);
  void input(Buf b) { program_.inputs.push_back(b); }
  void output(Buf b) { program_.outputs.push_back(b); }

  void mark() { program_.marks.push_back(static_cast<int>(program_.ops.size())); }
  void cut() { program_.cuts.push_back(static_cast<int>(program_.ops.size())); }

  // Appends an op and asks the device what scratch it needs. The buffers must fit the op's
  // signature, and must have been written before they are read.
  void emit(const std::string& name, OpParams params, std::vector<Buf> reads,
            std::vector<Buf> writes, std::vector<Buf> updates = {});

  const Shape& shape(Buf b) const { return program_.buffer(b).shape; }
  DType type(Buf b) const { return program_.buffer(b).type; }
  const Program& program() const { return program_; }
  Program finish() { return std::move(program_); }

 private:
  void check_signature(const Op& op) const;
  std::string unique(const std::string& name);

  const Device& device_;
  Program program_;
  std::unordered_map<std::string, int> names_;  // how often each was asked for
  Loop loop_;
  bool stack_lasting_ = false;
  std::string prefix_;
  std::string layer_ = "step";
};

}  // namespace ebb
