// How gradients go from rank to rank: as they are, in the sums of a chain or a tree, or coded in
// fewer bytes, each rank's own to whoever adds them up. Codes change numbers.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "model/config.h"

namespace ebb {

struct ExchangeCode {
  enum class Kind : uint8_t {
    whole,     // not coded
    bf16,      // rounded to the nearest
    int8,      // in blocks that share a scale, rounded up or down at random
    top,       // the largest numbers, with their places
    some,      // those of places that lots decide on
    low_rank,  // of a matrix two narrow ones that it is about the product of
    signs,     // of momenta (1-bit Adam): their signs and one magnitude
  };
  Kind kind = Kind::whole;
  bool feedback = false;   // what a rank did not send is added to its next gradient
  double share = 0;        // of a tensor's numbers: top, some
  int64_t columns = 0;     // of the narrow ones: low_rank
  bool whole_yet = false;  // signs: while the run warms up nothing is coded
  bool operator==(const ExchangeCode&) const = default;

  bool any() const { return kind != Kind::whole; }
  bool is_few() const { return kind == Kind::top || kind == Kind::some; }
  // How often a step goes over what a rank did not send: for each side of a product once.
  int rest_visits() const { return !feedback ? 0 : kind == Kind::low_rank ? 2 : 1; }
  bool is_signs() const { return kind == Kind::signs; }
  // Second moments stay as they are.
  bool freezes() const { return is_signs() && !whole_yet; }
  // Whether a tensor's gradient is coded. What is small goes as it is: that costs little.
  bool codes(const ParamSpec& p) const;
  int64_t sent(int64_t n) const;  // numbers of a tensor: top, some
};

// "fp32" (not coded), "bf16", "bf16+feedback", "int8", "topk:0.01", "randomk:0.01", "powersgd:4",
// "onebit";
// nothing for any other text.
std::optional<ExchangeCode> parse_exchange(const std::string& text);
std::string exchange_text(const ExchangeCode& code);

// A run begins with other codes than it goes on with: so many of its steps are to warm up. Which
// one is a matter of the step alone.
struct ExchangePhase {
  int64_t begin;  // steps before it
  ExchangeCode code;
  bool operator==(const ExchangePhase&) const = default;
};
// Whether there is a way to warm up for the code.
bool warms_up(const ExchangeCode& code);
// In their order, the first from step 0 on, the last with the code itself. Of `top` and `some`, 25
// % of the numbers at first, then a quarter of that and so on, in equal parts of the warm-up (Lin
// et al. 2018); of `signs` whole gradients. Without a warm-up there is the code alone.
std::vector<ExchangePhase> exchange_phases(const ExchangeCode& code, int64_t warmup);
ExchangeCode exchange_after(const ExchangeCode& code, int64_t warmup, int64_t steps);

// What a rank keeps of a tensor from step to step: what it did not send, named by its group, and
// what the next code begins with, which is the same on all.
std::string rest_prefix(int group);
inline constexpr const char* kWarm = "warm.";
// What the one that adds up signs has left of their sum.
inline constexpr const char* kSumRest = "rest_of_sum.";
// Of the name of a tensor in a file: the group whose rest it is, and of which tensor.
struct RestName {
  int group;
  std::string tensor;
};
std::optional<RestName> rest_in(const std::string& name);

}  // namespace ebb
