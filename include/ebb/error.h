// What every call of Ebb throws when it cannot do what it was asked.
#pragma once

#include <stdexcept>
#include <string>
#include <utility>

namespace ebb {

// Kinds of failure, with the exit codes that the program has for them.
enum class Exit : int {
  ok = 0,
  usage = 2,    // flags and settings
  budget = 3,   // the memory budget cannot hold
  data = 4,     // training data
  disk = 5,     // checkpoint, output or disk
  numbers = 6,  // NaN or inf
  peer = 7,     // a peer rank was lost
};

// what() says where, what was found and what was wanted; hint() says what to try, or nothing.
// Settings are called by the program's flags: --image-size is Model::image_size.
class Error : public std::runtime_error {
 public:
  Error(Exit code, const std::string& what, std::string hint = "")
      : std::runtime_error(what), code_(code), hint_(std::move(hint)) {}
  Exit code() const { return code_; }
  const std::string& hint() const { return hint_; }

 private:
  Exit code_;
  std::string hint_;
};

}  // namespace ebb
