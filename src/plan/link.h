// What is between the ranks of a run, as a plan knows it.
#pragma once

#include <cstdint>
#include <string>

namespace ebb {

// Every rank has a port, which sends and receives at the same time, at this rate each; what is
// between the ports is never the limit. The latency is what a message takes whatever its size.
struct Link {
  double bytes_per_second = 0;
  double latency_seconds = 0;
  // What the transport has under way to one rank: so many pieces (comm/traffic.h). A link of a long
  // latency is not filled by them.
  int64_t piece_bytes = 60 << 10;
  int pieces_at_once = 16;

  // The most that a message of this size can have of an idle port.
  double most_rate(int64_t bytes) const;
  // Of a message that has both ports for itself.
  double seconds(int64_t bytes) const;
};

// "RATE,LATENCY". The rate is in bits per second, as links are named, with K, M, G or T for powers
// of 1000: 100M, 1G, 100G. The latency has a unit: ns, us, ms or s. Fails with Exit::usage, naming
// `where`.
Link parse_link(const std::string& text, const std::string& where);

// The same backwards, to so many digits: "100G,2us".
std::string link_text(const Link& link, int digits = 6);

// For people: "3.1 Gb/s", as links are named.
std::string rate_words(double bits_per_second);

// For people: "2.1 GB/s, 60 us".
std::string link_words(const Link& link);

}  // namespace ebb
