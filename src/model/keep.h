// What a block keeps from its forward pass for its backward pass.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

namespace ebb {

// What a block makes, in the order in which they are made. The block's input is not among them:
// it is always there when the backward pass begins.
enum class Slot : uint8_t { mod, m1, qkv, normed, o, proj, x1, m2, u, g, y };
inline constexpr int kBlockSlots = 11;
const char* slot_name(Slot slot);

// Any subset of them. What is not kept is computed again when the backward pass needs it.
class KeepSet {
 public:
  constexpr KeepSet() = default;  // nothing: the block's input only
  constexpr KeepSet(std::initializer_list<Slot> tensors) {
    for (const Slot t : tensors) bits_ |= bit(t);
  }
  static constexpr KeepSet of_bits(uint16_t bits) {
    KeepSet made;
    made.bits_ = bits;
    return made;
  }
  static constexpr KeepSet all() { return of_bits((1 << kBlockSlots) - 1); }

  constexpr bool has(Slot t) const { return (bits_ & bit(t)) != 0; }
  constexpr KeepSet with(Slot t, bool kept) const {
    return of_bits(static_cast<uint16_t>(kept ? bits_ | bit(t) : bits_ & ~bit(t)));
  }
  constexpr bool empty() const { return bits_ == 0; }
  constexpr uint16_t bits() const { return bits_; }
  bool operator==(const KeepSet&) const = default;

  // What is not kept: "none", "all", or the tensors joined by "+". Normed q and k go with qkv.
  std::string recomputed() const;
  // Everything but the tensors named, joined by "+"; "none" and "all" are names too. An unknown
  // word is Exit::usage, named with `where`.
  static KeepSet all_but(const std::string& text, const std::string& where);

 private:
  static constexpr uint16_t bit(Slot t) { return static_cast<uint16_t>(1u << static_cast<int>(t)); }
  uint16_t bits_ = 0;
};

// One step of the way through the blocks: forward to the end, backward to the start.
struct Action {
  enum class Kind : uint8_t {
    forward,   // block: from its input to the next block's, keeping `keep`
    turn,      // final layer, loss, and back through the final layer
    backward,  // block: from its input, what was kept, and the gradient of its output
  };
  Kind kind = Kind::turn;
  int block = 0;
  KeepSet keep;
  bool operator==(const Action&) const = default;
};
// A block's last forward before its backward says what is kept. A block may be gone through forward
// several times: the input of a block that was not stored is then made again.
using Schedule = std::vector<Action>;

// Every block forward once, the given keep-set each, then all backward.
Schedule plain_schedule(const std::vector<KeepSet>& keep);

// The keep-set of each block when its backward pass begins, and how often its forward pass runs.
struct BlockChoice {
  KeepSet keep;
  int forwards = 0;
  bool operator==(const BlockChoice&) const = default;
};
std::vector<BlockChoice> block_choices(const Schedule& schedule, int64_t depth);

}  // namespace ebb
