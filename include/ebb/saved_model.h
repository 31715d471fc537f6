// A trained model in a file, to draw with.
#pragma once

#include <ebb/drawing.h>
#include <ebb/machine.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace ebb {

// Drawing takes far less memory than the run that made the file. For one thread at a time; several
// may live side by side, beside runs too.
class SavedModel {
 public:
  // Reads what a checkpoint of a run says of itself. `memory`: bytes that the process may take; 0:
  // 80 % of what is available. Fails with Exit::disk.
  SavedModel(const MeasuredMachine& machine, const std::filesystem::path& file, int64_t memory = 0);
  ~SavedModel();
  SavedModel(SavedModel&&) noexcept;
  SavedModel& operator=(SavedModel&&) noexcept;

  int64_t steps_done() const;  // of the run, when it was saved
  int64_t channels() const;
  int64_t size() const;
  int64_t classes() const;                              // 0: none
  const std::vector<std::string>& class_names() const;  // where they have some
  bool pictures() const;                                // values in [-1, 1]; otherwise latents

  // How much is to be drawn.
  struct Extent {
    int64_t samples = 1;     // in all
    int64_t held_bytes = 0;  // that the caller will hold meanwhile
    // As many together as Drawing says, and never fewer: another number changes the last digits.
    bool exactly = false;
  };
  // Plans what draw() will do, as many samples together as the budget holds, and looks whether the
  // file is whole. Fails with Exit::budget and Exit::disk.
  void plan(const Drawing& drawing, const Extent& extent);
  int64_t together() const;  // as planned

  // Takes the memory and reads the weights; draw() does so by itself. Fails with Exit::disk, and
  // with Exit::numbers where a weight is not finite.
  void load();

  // As Run::draw.
  bool draw(int64_t count, uint64_t seed, const DrawingCalls& calls);
  std::vector<float> draw(std::span<const int32_t> labels, uint64_t seed);

  // For Ebb's own use.
  struct Impl;
  const Impl& impl() const { return *impl_; }
  Impl& impl() { return *impl_; }

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace ebb
