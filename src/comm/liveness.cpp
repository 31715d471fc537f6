#include "comm/liveness.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <random>
#include <sstream>
#include <utility>

#include "base/error.h"

namespace ebb {

namespace {

using namespace std::chrono_literals;
using std::chrono::milliseconds;

milliseconds beat_every(const PeerOptions& options) {
  return std::clamp<milliseconds>(options.timeout / 4, 10ms, 1000ms);
}

}  // namespace

Liveness::Liveness(int rank) : wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  settings_.rank = rank;
  if (rank != 0) return;
  listener_ = std::make_unique<Listener>();
  // Strangers who find the port do not know it.
  std::random_device random;
  secret_ = (uint64_t{random()} << 32) | random();
}

Liveness::~Liveness() {
  stopping_ = true;
  wake();
  if (thread_.joinable()) thread_.join();
  close(wake_);
}

std::string Liveness::invitation() const {
  if (!listener_) return "";
  std::string text = fmt::format("{} {}", secret_, listener_->port());
  for (const std::string& address : own_addresses()) text += " " + address;
  return text;
}

void Liveness::start(const Settings& settings, const std::string& invitation) {
  settings_ = settings;
  const bool hub = settings_.rank == 0;
  peers_ = std::vector<Peer>(hub ? settings_.size : 1);
  hub ? gather_callers() : call_hub(invitation);
  listener_.reset();
  moved_ = Clock::now();
  for (Peer& peer : peers_) peer.heard = moved_;
  if (settings_.size > 1) thread_ = std::thread([this] { watch(); });
}

// Hosts have several networks, and not all of them lead everywhere: the first address at which
// somebody knows the secret is the one.
void Liveness::call_hub(const std::string& invitation) {
  std::istringstream words(invitation);
  int port = 0;
  words >> secret_ >> port;
  std::string tried;
  for (std::string address; words >> address;) {
    tried += (tried.empty() ? "" : ", ") + address;
    Wire wire = call(address, port, std::min<milliseconds>(settings_.options.timeout, 3s));
    if (!wire.open()) continue;
    wire.put({Note::Kind::hello, settings_.rank, secret_, ""});
    const auto answer = wire.take_within(settings_.options.timeout);
    if (!answer || answer->kind != Note::Kind::hello || answer->progress != ~secret_) continue;
    peers_[0].wire = std::move(wire);
    return;
  }
  fail(Exit::peer,
       fmt::format("ranks: rank {} does not reach rank 0 ({}) at port {} of {}", settings_.rank,
                   settings_.names[0], port, tried.empty() ? "no address" : tried),
       "ranks watch over each other by TCP: does a firewall keep the hosts apart?");
}

void Liveness::gather_callers() {
  const auto until = Clock::now() + settings_.options.timeout;
  for (int missing = settings_.size - 1; missing > 0;) {
    const auto left = std::chrono::duration_cast<milliseconds>(until - Clock::now());
    if (left.count() <= 0) {
      std::string who;
      for (int r = 1; r < settings_.size; ++r) {
        if (!peers_[r].wire.open()) who += fmt::format(" {} ({})", r, settings_.names[r]);
      }
      fail(Exit::peer, fmt::format("ranks: did not reach rank 0 in time:{}", who),
           "ranks watch over each other by TCP: does a firewall keep the hosts apart?");
    }
    if (Wire caller = listener_->accept(left); caller.open()) {
      if (welcome(std::move(caller))) --missing;
    }
  }
}

bool Liveness::welcome(Wire caller) {
  const auto hello = caller.take_within(1s);
  if (!hello || hello->kind != Note::Kind::hello || hello->progress != secret_) return false;
  const int rank = hello->rank;
  if (rank <= 0 || rank >= settings_.size || peers_[rank].wire.open()) return false;
  caller.put({Note::Kind::hello, 0, ~secret_, ""});
  peers_[rank].wire = std::move(caller);
  return true;
}

void Liveness::watch() {
  auto next = Clock::now();
  while (!stopping_) {
    if (Clock::now() >= next) {
      beat();
      next = Clock::now() + beat_every(settings_.options);
    }
    // All that has come is heard before anybody is judged: this process may have been stopped.
    for (size_t i = 0; i < peers_.size(); ++i) hear(static_cast<int>(i));
    give_notice();
    if (leaving_ && may_go()) return;
    lost_ ? judge_itself() : judge();
    // Last, for notes may have come with the greeting already.
    sleep_until_something_comes(next);
  }
}

// What this rank has to say of itself.
void Liveness::give_notice() {
  std::string trouble;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    trouble = own_trouble_;
  }
  if (!trouble.empty()) lost(trouble, true);
  if (leaving_ && !said_goodbye_) {
    for (const Peer& peer : peers_) peer.wire.put({Note::Kind::leaving, settings_.rank, 0, ""});
    said_goodbye_ = true;
  }
}

void Liveness::sleep_until_something_comes(Clock::time_point until) {
  std::vector<pollfd> all = {{wake_, POLLIN, 0}};
  for (const Peer& peer : peers_) {
    if (peer.wire.open()) all.push_back({peer.wire.socket(), POLLIN, 0});
  }
  const auto left = std::chrono::ceil<milliseconds>(until - Clock::now());
  poll(all.data(), all.size(), static_cast<int>(std::max<int64_t>(0, left.count())));
  uint64_t count = 0;
  [[maybe_unused]] const auto got = read(wake_, &count, sizeof count);
}

void Liveness::hear(int rank) {
  Peer& peer = peers_[rank];
  if (!peer.wire.open()) return;
  bool ended = false;
  while (auto note = peer.wire.take(ended)) {
    peer.heard = Clock::now();
    if (note->kind == Note::Kind::lost) lost(note->text, settings_.rank == 0);
    if (note->kind == Note::Kind::leaving) peer.left = true;
    if (note->kind != Note::Kind::beat) continue;
    const bool moved = note->progress != peer.state.progress || note->text.empty();
    if (moved) moved_ = Clock::now();
    peer.state = {note->text, note->progress, ""};
  }
  if (!ended) return;
  peer.wire.close();
  if (peer.left) return;
  lost(fmt::format("ranks: rank {} ({}) was lost: its process ended", rank, settings_.names[rank]),
       settings_.rank == 0);
}

void Liveness::judge() {
  const auto now = Clock::now();
  for (size_t i = 0; i < peers_.size(); ++i) {
    const Peer& peer = peers_[i];
    if (!peer.wire.open() || peer.left || now - peer.heard < settings_.options.timeout) continue;
    lost(fmt::format("ranks: rank {} ({}) was lost: nothing was heard of it for {:.1f} s", i,
                     settings_.names[i], settings_.options.timeout.count() / 1e3),
         settings_.rank == 0);
    return;
  }
  if (settings_.rank == 0) judge_standstill(now);
}

// Nobody is lost, and nothing will ever happen: all wait, and nothing moves.
void Liveness::judge_standstill(Clock::time_point now) {
  const State own = settings_.state();
  if (own.waiting.empty() || own.progress != peers_[0].state.progress || leaving_) moved_ = now;
  peers_[0].state = own;
  if (now - moved_ < settings_.options.timeout) return;
  std::string who;
  for (int r = 0; r < std::min(settings_.size, 4); ++r) {
    who += fmt::format("{} rank {} {}", r == 0 ? "" : ";", r, peers_[r].state.waiting);
  }
  lost(fmt::format("ranks: all {} ranks have waited for each other for {:.1f} s:{}", settings_.size,
                   settings_.options.timeout.count() / 1e3, who),
       true);
}

void Liveness::judge_itself() {
  if (loss_.empty() || Clock::now() - lost_at_ < settings_.options.grace) return;
  const std::string what = std::exchange(loss_, "");
  if (settings_.options.overdue) settings_.options.overdue(what);
}

void Liveness::lost(const std::string& what, bool tell_others) {
  if (lost_) return;
  lost_ = true;
  loss_ = what;
  lost_at_ = Clock::now();
  if (tell_others) {
    for (const Peer& peer : peers_) peer.wire.put({Note::Kind::lost, 0, 0, what});
  }
  settings_.on_loss(what);
}

void Liveness::beat() {
  const State own = settings_.state();
  for (const Peer& peer : peers_) {
    peer.wire.put({Note::Kind::beat, settings_.rank, own.progress, own.waiting});
  }
  // MPI complains when a rank is lost. Who it was is worth a moment: the next beat comes first.
  if (!own.trouble.empty() && in_trouble_) {
    lost(fmt::format("ranks: rank {} ({}) cannot go on: {}", settings_.rank,
                     settings_.names[settings_.rank], own.trouble),
         true);
  }
  in_trouble_ = !own.trouble.empty();
}

void Liveness::tell(const std::string& why) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    own_trouble_ = why;
  }
  wake();
}

bool Liveness::may_go() const {
  if (settings_.rank != 0 || lost_) return true;
  return std::all_of(peers_.begin(), peers_.end(),
                     [](const Peer& peer) { return peer.left || !peer.wire.open(); });
}

void Liveness::leave() {
  leaving_ = true;
  wake();
  if (thread_.joinable()) thread_.join();
}

void Liveness::wake() const {
  const uint64_t one = 1;
  [[maybe_unused]] const auto put = write(wake_, &one, sizeof one);
}

}  // namespace ebb
