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
#include "state/strips.h"

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

constexpr int64_t bytes_of(int64_t numbers) {
  return numbers * static_cast<int64_t>(sizeof(float));
}

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
  Collecting(const State& state, const StateRanks& ranks, const CutTensors& cut)
      : state_(state), ranks_(ranks), cut_(cut) {}

  std::exception_ptr write(const std::filesystem::path& path, const CheckpointInfo& info,
                           const std::vector<StateTensor>& tensors) {
    attempt([&] {
      make_directories(path.parent_path());
      file_.emplace(path, info, tensors);
    });
    for (const StateTensor& tensor : tensors) {
      const int owner = ranks_.owner_of(tensor.name);
      if (const std::vector<Slice>* parts = cut_.find(tensor.name)) {
        put_together(tensor, owner, *parts);
      } else if (owner == 0) {
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

  // Whether what a rank has of the next tensor is still to come.
  bool wants(int owner) {
    if (not_wanted_.count(owner) != 0) return false;
    const char wanted = attempt_ ? kWanted : kNotWanted;
    if (!attempt_) not_wanted_.insert(owner);
    Peers& peers = ranks_.peers;
    peers.wait(peers.send(owner, kSavedTensors, &wanted, sizeof wanted));
    return wanted == kWanted;
  }

  void receive(int owner, const StateTensor& tensor) {
    if (!wants(owner)) return;
    pieces_.receive(owner, tensor.file_bytes(), [&](int64_t, const std::byte* bytes, int64_t n) {
      attempt([&] { file_->write(bytes, n); });
    });
  }

  // Parts lie with ranks that follow each other.
  void put_together(const StateTensor& tensor, int first, const std::vector<Slice>& parts) {
    std::vector<int> owners;
    for (int p = 0; p < static_cast<int>(parts.size()); ++p) owners.push_back(first + p);
    bool comes = true;
    for (const int owner : owners) comes = (owner == 0 || wants(owner)) && comes;
    if (!comes) return;  // then from none of them
    each_strip(parts, kPiece, [&](const Strip& strip) {
      if (strip.rows > 1) return interleave(tensor, owners, strip);
      for (size_t p = 0; p < owners.size(); ++p) {
        take(tensor, owners[p], strip.own[p], [&](int64_t, const std::byte* bytes, int64_t n) {
          attempt([&] { file_->write(bytes, n); });
        });
      }
    });
  }

  void interleave(const StateTensor& tensor, const std::vector<int>& owners, const Strip& strip) {
    constexpr auto kSize = static_cast<int64_t>(sizeof(float));
    int64_t row_bytes = 0, before = 0;  // of a row; of what the parts before have of it
    for (const Share& own : strip.own) row_bytes += own.count / strip.rows * kSize;
    strip_.resize(static_cast<size_t>(strip.rows * row_bytes));
    for (size_t p = 0; p < owners.size(); ++p) {
      const int64_t width = strip.own[p].count / strip.rows * kSize;
      const auto put = [&](int64_t offset, const std::byte* bytes, int64_t count) {
        for (int64_t done = 0; done < count;) {
          const int64_t row = (offset + done) / width, at = (offset + done) % width;
          const int64_t n = std::min(width - at, count - done);
          std::copy_n(bytes + done, n, strip_.begin() + row * row_bytes + before + at);
          done += n;
        }
      };
      take(tensor, owners[p], strip.own[p], put);
      before += width;
    }
    attempt([&] { file_->write(strip_.data(), std::ssize(strip_)); });
  }

  // Numbers of a part, from whoever has it, in pieces.
  template <typename Take>
  void take(const StateTensor& tensor, int owner, const Share& own, Take body) {
    if (owner != 0) return pieces_.receive(owner, bytes_of(own.count), body);
    attempt([&] {
      const StateTensor& here = supplied(state_, tensor.name, owner);
      std::array<std::byte, kTensorPart> part;
      for (int64_t done = 0; done < bytes_of(own.count); done += kTensorPart) {
        const int64_t count = std::min(kTensorPart, bytes_of(own.count) - done);
        state_.read_as_filed(here, bytes_of(own.first) + done, part.data(), count);
        body(done, part.data(), count);
      }
    });
  }

  const State& state_;
  const StateRanks& ranks_;
  const CutTensors& cut_;
  std::vector<std::byte> strip_;
  std::optional<Writing> file_;
  Attempt attempt_;
  std::set<int> not_wanted_;  // who has been told so
  PeerPieces pieces_{ranks_.peers, kSavedTensors};
};

// What another rank has, to rank 0.
std::exception_ptr supply(const State& state, const StateRanks& ranks, const CutTensors& cut,
                          const std::vector<StateTensor>& tensors) {
  Peers& peers = ranks.peers;
  const int part = ranks.step.place.part();
  PeerPieces pieces(peers, kSavedTensors);
  Attempt attempt;
  for (const StateTensor& tensor : tensors) {
    const std::vector<Slice>* const parts = cut.find(tensor.name);
    if (ranks.owner_of(tensor.name) + (parts != nullptr ? part : 0) != peers.rank()) continue;
    const StateTensor& own = supplied(state, tensor.name, peers.rank());
    char wanted = kNotWanted;
    peers.wait(peers.receive(0, kSavedTensors, &wanted, sizeof wanted));
    if (wanted == kNotWanted) break;
    const auto send = [&](int64_t first, int64_t count) {
      pieces.send(0, count, [&](int64_t offset, std::byte* bytes, int64_t n) {
        attempt.run([&] { state.read_as_filed(own, first + offset, bytes, n); });
      });
    };
    if (parts == nullptr) {
      send(0, own.file_bytes());
      continue;
    }
    each_strip(*parts, kPiece, [&](const Strip& strip) {
      send(bytes_of(strip.own[part].first), bytes_of(strip.own[part].count));
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
  const CutTensors cut(info.config, ranks->step.place);
  if (peers.rank() != 0) {
    agree(peers, supply(state, *ranks, cut, tensors));
    agree(peers, nullptr);
    return;
  }
  Collecting collecting(state, *ranks, cut);
  agree(peers, collecting.write(path, info, tensors));
  agree(&peers, [&] { collecting.commit(); });
}

}  // namespace ebb
