// Ports that several messages want at once.
#pragma once

#include <cstdint>
#include <vector>

namespace ebb {

// Every rank has a port out and a port in, of one rate. Each flow takes one of each. Shares are
// max-min fair: no flow can have more unless one that has no more than it gets less. This is what
// connections that share a link come to, and what SimGrid computes too.
class FairPorts {
 public:
  FairPorts(int ranks, double rate);

  // The flow's number, which another may get after remove(). It never gets more than `most`.
  int add(int from, int to, double most);
  void remove(int flow);

  // The flows whose share is another one since the last call: valid until the next.
  const std::vector<int>& share();
  double rate(int flow) const { return flows_[flow].rate; }

 private:
  struct Flow {
    int out, in;  // ports
    double most;
    double rate = 0, next_rate = 0;
    bool settled = true;
    int64_t seen = 0;
  };
  struct Port {
    std::vector<int> flows;
    double left = 0;  // while shares are found: not given away yet,
    int open = 0;     // and the flows that have no share yet
    int64_t seen = 0;
  };

  void gather(int port);
  bool settle_capped(double level);
  void settle(int flow, double rate);
  void fill();
  double lowest_level() const;

  double rate_;
  std::vector<Flow> flows_;
  std::vector<int> free_;
  std::vector<Port> ports_;  // out, then in
  std::vector<int> touched_, changed_;
  // All that a change can reach.
  std::vector<int> some_ports_, some_flows_;
  int unsettled_ = 0;
  int64_t round_ = 0;
};

}  // namespace ebb
