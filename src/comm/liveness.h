// Which ranks are alive. MPI does not say: messages to and from a rank that is gone just never
// come. Every rank keeps a TCP connection to rank 0 and says every second that it is there, from a
// thread of its own. A connection that ends is a rank that ended; one that is silent is a rank that
// hangs. Rank 0 tells the others; that rank 0 is gone, all of them see.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "comm/peers.h"
#include "comm/wire.h"

namespace ebb {

class Liveness {
 public:
  using Clock = std::chrono::steady_clock;
  struct State {
    std::string waiting;    // for what this rank waits, or nothing
    uint64_t progress = 0;  // changes whenever something has moved
    std::string trouble;    // why this rank cannot go on, or nothing
  };
  // All ranks know these of each other: "pid 4711 on node7". Both functions are called by the
  // thread.
  struct Settings {
    int rank = 0, size = 1;
    PeerOptions options;
    std::vector<std::string> names;
    std::function<State()> state;
    std::function<void(const std::string& what)> on_loss;  // once: who was lost, and how
  };

  // Rank 0 listens; what invitation() says goes to the others, who call.
  explicit Liveness(int rank);
  ~Liveness();
  Liveness(const Liveness&) = delete;
  Liveness& operator=(const Liveness&) = delete;
  std::string invitation() const;

  // Collective. Fails with Exit::peer if not all ranks find each other in time. From then on they
  // watch.
  void start(const Settings& settings, const std::string& invitation);

  // This rank cannot go on: every other one is told why, as if it were lost.
  void tell(const std::string& why);

  // The last call, where the end is in order: that this rank's connection ends is no loss. Rank 0
  // stays until all have said so, or one is lost.
  void leave();

 private:
  struct Peer {
    Wire wire;
    Clock::time_point heard;
    State state;
    bool left = false;
  };
  void call_hub(const std::string& invitation);
  void gather_callers();
  bool welcome(Wire caller);
  void watch();
  void sleep_until_something_comes(Clock::time_point until);
  void hear(int rank);
  void judge();
  void judge_standstill(Clock::time_point now);
  void judge_itself();
  void lost(const std::string& what, bool tell_others);
  void beat();
  bool may_go() const;
  void give_notice();
  void wake() const;

  Settings settings_;
  std::unique_ptr<Listener> listener_;  // of rank 0, until all have called
  uint64_t secret_ = 0;
  int wake_ = -1;            // an eventfd
  std::vector<Peer> peers_;  // rank 0: by rank; others: rank 0 alone
  Clock::time_point moved_;  // the last time that some rank computed or something moved
  bool lost_ = false, in_trouble_ = false, said_goodbye_ = false;  // of the thread
  std::string loss_;                                               // until it is overdue
  Clock::time_point lost_at_;

  std::mutex mutex_;
  std::string own_trouble_;
  std::atomic<bool> leaving_{false}, stopping_{false};
  std::thread thread_;
};

}  // namespace ebb
