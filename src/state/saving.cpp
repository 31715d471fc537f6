// Writing a checkpoint. One file, whoever has its tensors: rank 0 writes it, and what others have
// comes to it in pieces, tensor after tensor, as the file wants them.
#include <algorithm>
#include <array>
#include <optional>
#include <set>

#include "base/error.h"
#include "comm/agreement.h"
#include "comm/host_channels.h"
#include "comm/pieces.h"
#include "formats/safetensors_stream.h"
#include "state/checkpoint.h"

namespace ebb {

namespace {

static_assert(kTensorPart % (kMomentBlock * sizeof(float)) == 0 && kPiece % kTensorPart == 0);

// take(data, bytes) for all of a tensor that is here, as files have it.
template <typename Take>
void each_part(const State& state, const StateTensor& tensor, Take take) {
  const float* whole = tensor.is_mask() ? nullptr : state.whole(tensor);
  if (whole != nullptr) return take(whole, tensor.file_bytes());
  std::array<char, kTensorPart> part;
  for (int64_t done = 0; done < tensor.file_bytes(); done += kTensorPart) {
    const int64_t count = std::min(kTensorPart, tensor.file_bytes() - done);
    state.read_as_filed(tensor, done, part.data(), count);
    take(part.data(), count);
  }
}

// The file while it is written.
class Writing {
 public:
  Writing(const std::filesystem::path& path, const CheckpointInfo& info,
          const std::vector<StateTensor>& tensors)
      : tensors_(filed(tensors)), writer_(path, tensors_, checkpoint_metadata(info), true) {}

  void write(const void* data, int64_t bytes) { writer_.write(data, bytes); }
  void write(const State& state, const StateTensor& tensor) {
    each_part(state, tensor, [&](const void* data, int64_t bytes) { write(data, bytes); });
  }
  void commit() { writer_.commit(); }

 private:
  static std::vector<TensorData> filed(const std::vector<StateTensor>& tensors) {
    std::vector<TensorData> made;
    for (const StateTensor& t : tensors) {
      made.push_back({t.name, t.is_mask() ? TensorType::U8 : TensorType::F32, t.shape, nullptr});
    }
    return made;
  }

  const std::vector<TensorData> tensors_;
  SafetensorsWriter writer_;
};

// What a rank has promised to supply.
const StateTensor& supplied(const State& state, const std::string& name, int rank) {
  const StateTensor* found = state.find(name);
  require(found != nullptr && found->complete(),
          "saving: rank {} is to supply {}, and has not got {}", rank, name,
          found == nullptr ? "it" : "all of it");
  return *found;
}

// ---- over ranks ---------------------------------------------------------------------------------

// Before each of its tensors a rank is told whether it is still wanted: when the disk is full, no
// gigabytes travel to be thrown away.
constexpr char kWanted = 1, kNotWanted = 0;

// Rank 0's part, up to the commit.
class Collecting {
 public:
  Collecting(const State& state, const StateRanks& ranks) : state_(state), ranks_(ranks) {}

  std::exception_ptr write(const std::filesystem::path& path, const CheckpointInfo& info,
                           const std::vector<StateTensor>& tensors) {
    attempt([&] {
      make_directories(path.parent_path());
      file_.emplace(path, info, tensors);
    });
    for (const StateTensor& tensor : tensors) {
      const int owner = ranks_.owner_of(tensor.name);
      if (owner == 0) {
        attempt([&] { file_->write(state_, supplied(state_, tensor.name, owner)); });
      } else {
        receive(owner, tensor);
      }
    }
    return attempt_.failure();
  }
  void commit() { file_->commit(); }

 private:
  // What fails leaves nothing: the file goes before the ranks have agreed.
  void attempt(const std::function<void()>& part) {
    attempt_.run(part);
    if (!attempt_) file_.reset();
  }

  void receive(int owner, const StateTensor& tensor) {
    if (not_wanted_.count(owner) != 0) return;
    const char wanted = attempt_ ? kWanted : kNotWanted;
    if (!attempt_) not_wanted_.insert(owner);
    Peers& peers = ranks_.peers;
    peers.wait(peers.send(owner, kSavedTensors, &wanted, sizeof wanted));
    if (!attempt_) return;
    pieces_.receive(owner, tensor.file_bytes(), [&](int64_t, const std::byte* bytes, int64_t n) {
      attempt([&] { file_->write(bytes, n); });
    });
  }

  const State& state_;
  const StateRanks& ranks_;
  std::optional<Writing> file_;
  Attempt attempt_;
  std::set<int> not_wanted_;  // who has been told so
  PeerPieces pieces_{ranks_.peers, kSavedTensors};
};

// What another rank has, to rank 0.
std::exception_ptr supply(const State& state, const StateRanks& ranks,
                          const std::vector<StateTensor>& tensors) {
  Peers& peers = ranks.peers;
  PeerPieces pieces(peers, kSavedTensors);
  Attempt attempt;
  for (const StateTensor& tensor : tensors) {
    if (ranks.owner_of(tensor.name) != peers.rank()) continue;
    const StateTensor& own = supplied(state, tensor.name, peers.rank());
    char wanted = kNotWanted;
    peers.wait(peers.receive(0, kSavedTensors, &wanted, sizeof wanted));
    if (wanted == kNotWanted) break;
    pieces.send(0, own.file_bytes(), [&](int64_t offset, std::byte* bytes, int64_t n) {
      attempt.run([&] { state.read_as_filed(own, offset, bytes, n); });
    });
  }
  return attempt.failure();
}

void save_alone(const std::filesystem::path& path, const CheckpointInfo& info, const State& state) {
  make_directories(path.parent_path());
  Writing file(path, info, state.tensors());
  for (const StateTensor& tensor : state.tensors()) file.write(state, tensor);
  file.commit();
}

}  // namespace

void save_checkpoint(const std::filesystem::path& path, const CheckpointInfo& info,
                     const State& state, const StateRanks* ranks) {
  if (ranks == nullptr) return save_alone(path, info, state);
  Peers& peers = ranks->peers;
  const std::vector<StateTensor> tensors = state_tensors(info.config, ranks->step);
  if (peers.rank() != 0) {
    agree(peers, supply(state, *ranks, tensors));
    agree(peers, nullptr);
    return;
  }
  Collecting collecting(state, *ranks);
  agree(peers, collecting.write(path, info, tensors));
  agree(&peers, [&] { collecting.commit(); });
}

}  // namespace ebb
