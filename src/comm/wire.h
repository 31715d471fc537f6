// TCP connections that carry short notes between ranks, for liveness: who is there, who was lost.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace ebb {

struct Note {
  enum class Kind : uint8_t { hello = 1, beat, lost, leaving };
  Kind kind = Kind::beat;
  int32_t rank = 0;       // hello: who it is
  uint64_t progress = 0;  // beat: what has moved; hello: the run's secret
  std::string text;       // beat: what is waited for, if anything; lost: who and why
};

// One connection. It owns the socket.
class Wire {
 public:
  Wire() = default;
  explicit Wire(int socket);
  Wire(Wire&& other) noexcept;
  Wire& operator=(Wire&& other) noexcept;
  ~Wire();

  int socket() const { return socket_; }
  bool open() const { return socket_ >= 0; }
  void close();

  // Never waits. What the other side does not take is dropped: it is heard of by its silence.
  void put(const Note& note) const;
  // The next note that has come, if one has; `ended` once there will be none.
  std::optional<Note> take(bool& ended);
  // As take(), but waits for a note for some time.
  std::optional<Note> take_within(std::chrono::milliseconds time);

 private:
  int socket_ = -1;
  std::string came_;  // not a whole note yet
};

// Listens on every network of this host until it is closed.
class Listener {
 public:
  Listener();
  ~Listener();
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  int port() const { return port_; }
  // Waits for a caller for some time.
  Wire accept(std::chrono::milliseconds time) const;

 private:
  int socket_ = -1, port_ = 0;
};

// The addresses of this host's networks, its own among themselves last: "10.0.0.7", "127.0.0.1".
std::vector<std::string> own_addresses();

// Not open if nobody answers there in time.
Wire call(const std::string& address, int port, std::chrono::milliseconds time);

}  // namespace ebb
