#include "comm/wire.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/error.h"

namespace ebb {

namespace {

constexpr size_t kMostText = 900;

// As it travels, before its text. All ranks run the same build, so they have the same byte order.
struct NoteHead {
  uint8_t kind, unused;
  uint16_t text_bytes;
  int32_t rank;
  uint64_t progress;
};
static_assert(sizeof(NoteHead) == 16);

bool ready(int socket, short events, std::chrono::milliseconds time) {
  pollfd one{socket, events, 0};
  return poll(&one, 1, static_cast<int>(time.count())) > 0;
}

[[noreturn]] void cannot(const std::string& what) {
  fail(Exit::peer, fmt::format("ranks: {}: {}", what, std::strerror(errno)),
       "ranks watch over each other by TCP: rank 0 needs a port that the others reach");
}

}  // namespace

Wire::Wire(int socket) : socket_(socket) {
  const int on = 1;
  setsockopt(socket_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

Wire::Wire(Wire&& other) noexcept
    : socket_(std::exchange(other.socket_, -1)), came_(std::move(other.came_)) {}

Wire& Wire::operator=(Wire&& other) noexcept {
  std::swap(socket_, other.socket_);
  std::swap(came_, other.came_);
  return *this;
}

Wire::~Wire() { close(); }

void Wire::close() {
  if (socket_ >= 0) ::close(socket_);
  socket_ = -1;
}

void Wire::put(const Note& note) const {
  if (!open()) return;
  const std::string text = note.text.substr(0, kMostText);
  const NoteHead head{static_cast<uint8_t>(note.kind), 0, static_cast<uint16_t>(text.size()),
                      note.rank, note.progress};
  std::string bytes(reinterpret_cast<const char*>(&head), sizeof head);
  bytes += text;
  const ssize_t put = ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  // Half a note would make nonsense of the next one.
  if (put > 0 && put < static_cast<ssize_t>(bytes.size())) shutdown(socket_, SHUT_RDWR);
}

std::optional<Note> Wire::take(bool& ended) {
  ended = false;
  while (true) {
    NoteHead head{};
    if (came_.size() >= sizeof head) {
      std::memcpy(&head, came_.data(), sizeof head);
      const size_t all = sizeof head + head.text_bytes;
      if (came_.size() >= all) {
        Note note{static_cast<Note::Kind>(head.kind), head.rank, head.progress,
                  came_.substr(sizeof head, head.text_bytes)};
        came_.erase(0, all);
        return note;
      }
    }
    char more[1024];
    const ssize_t got = open() ? recv(socket_, more, sizeof more, MSG_DONTWAIT) : 0;
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return std::nullopt;
    if (got <= 0) {
      ended = true;
      return std::nullopt;
    }
    came_.append(more, got);
  }
}

std::optional<Note> Wire::take_within(std::chrono::milliseconds time) {
  const auto until = std::chrono::steady_clock::now() + time;
  while (open()) {
    bool ended = false;
    if (auto note = take(ended)) return note;
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        until - std::chrono::steady_clock::now());
    if (ended || left.count() <= 0) break;
    ready(socket_, POLLIN, left);
  }
  return std::nullopt;
}

Listener::Listener() : socket_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  if (socket_ < 0) cannot("no socket");
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_ANY);
  socklen_t length = sizeof address;
  auto* general = reinterpret_cast<sockaddr*>(&address);
  if (bind(socket_, general, length) != 0 || listen(socket_, SOMAXCONN) != 0 ||
      getsockname(socket_, general, &length) != 0) {
    cannot("no port to listen on");
  }
  port_ = ntohs(address.sin_port);
}

Listener::~Listener() { ::close(socket_); }

Wire Listener::accept(std::chrono::milliseconds time) const {
  if (!ready(socket_, POLLIN, time)) return {};
  const int caller = accept4(socket_, nullptr, nullptr, SOCK_CLOEXEC);
  return caller >= 0 ? Wire(caller) : Wire();
}

std::vector<std::string> own_addresses() {
  std::vector<std::string> far, own;
  ifaddrs* first = nullptr;
  if (getifaddrs(&first) != 0) cannot("this host's addresses");
  for (const ifaddrs* at = first; at != nullptr; at = at->ifa_next) {
    if (at->ifa_addr == nullptr || at->ifa_addr->sa_family != AF_INET) continue;
    if ((at->ifa_flags & IFF_UP) == 0) continue;
    char text[INET_ADDRSTRLEN] = "";
    const auto* address = reinterpret_cast<const sockaddr_in*>(at->ifa_addr);
    inet_ntop(AF_INET, &address->sin_addr, text, sizeof text);
    ((at->ifa_flags & IFF_LOOPBACK) != 0 ? own : far).emplace_back(text);
  }
  freeifaddrs(first);
  far.insert(far.end(), own.begin(), own.end());
  return far;
}

Wire call(const std::string& address, int port, std::chrono::milliseconds time) {
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<uint16_t>(port));
  if (inet_pton(AF_INET, address.c_str(), &to.sin_addr) != 1) return {};
  Wire wire(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!wire.open()) cannot("no socket");
  if (connect(wire.socket(), reinterpret_cast<const sockaddr*>(&to), sizeof to) == 0) return wire;
  if (errno != EINPROGRESS || !ready(wire.socket(), POLLOUT, time)) return {};
  int failed = 0;
  socklen_t length = sizeof failed;
  getsockopt(wire.socket(), SOL_SOCKET, SO_ERROR, &failed, &length);
  return failed == 0 ? std::move(wire) : Wire();
}

}  // namespace ebb
