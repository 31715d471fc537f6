// What ranks settle between them before they go on.
#pragma once

#include <functional>
#include <string>

#include "base/error.h"
#include "comm/peers.h"

namespace ebb {

// An error that every rank throws alike: one of them may speak for all.
class SharedError : public Error {
 public:
  using Error::Error;
  explicit SharedError(const Error& e) : Error(e) {}
};

// Collective: all ranks get the text of rank 0, however long it is.
std::string from_first(Peers& peers, const std::string& text);

// Collective: every rank does its work. If that fails anywhere, every rank throws a SharedError:
// that of the lowest rank, which is named unless all failed alike. Alone (null) it is just done.
void together(Peers* peers, const std::function<void()>& work);

// Collective: fails on every rank with Exit::usage where a rank's text is not that of rank 0,
// naming the first line that differs; `what` says what the texts are: "settings".
void expect_same(Peers& peers, const std::string& what, const std::string& text,
                 const std::string& hint);

}  // namespace ebb
