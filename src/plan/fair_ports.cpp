#include "plan/fair_ports.h"

#include <algorithm>
#include <limits>

namespace ebb {

FairPorts::FairPorts(int ranks, double rate)
    : rate_(rate), ports_(2 * static_cast<size_t>(ranks)) {}

int FairPorts::add(int from, int to, double most) {
  int flow = static_cast<int>(flows_.size());
  if (free_.empty()) {
    flows_.emplace_back();
  } else {
    flow = free_.back();
    free_.pop_back();
  }
  const int in = static_cast<int>(ports_.size() / 2) + to;
  flows_[flow] = {from, in, most};
  for (const int port : {from, in}) {
    ports_[port].flows.push_back(flow);
    touched_.push_back(port);
  }
  return flow;
}

void FairPorts::remove(int flow) {
  for (const int port : {flows_[flow].out, flows_[flow].in}) {
    std::erase(ports_[port].flows, flow);
    touched_.push_back(port);
  }
  free_.push_back(flow);
}

const std::vector<int>& FairPorts::share() {
  changed_.clear();
  ++round_;
  for (const int port : touched_) {
    if (ports_[port].seen == round_) continue;
    gather(port);
    fill();
    for (const int flow : some_flows_) {
      Flow& f = flows_[flow];
      if (f.rate == f.next_rate) continue;
      f.rate = f.next_rate;
      changed_.push_back(flow);
    }
  }
  touched_.clear();
  return changed_;
}

// What is connected with the port by flows.
void FairPorts::gather(int first) {
  some_ports_.assign(1, first);
  some_flows_.clear();
  ports_[first].seen = round_;
  for (size_t i = 0; i < some_ports_.size(); ++i) {
    Port& port = ports_[some_ports_[i]];
    port.left = rate_;
    port.open = static_cast<int>(port.flows.size());
    for (const int flow : port.flows) {
      Flow& f = flows_[flow];
      if (f.seen == round_) continue;
      f.seen = round_;
      f.settled = false;
      some_flows_.push_back(flow);
      for (const int other : {f.out, f.in}) {
        if (ports_[other].seen == round_) continue;
        ports_[other].seen = round_;
        some_ports_.push_back(other);
      }
    }
  }
}

double FairPorts::lowest_level() const {
  double level = std::numeric_limits<double>::infinity();
  for (const int port : some_ports_) {
    const Port& p = ports_[port];
    if (p.open > 0) level = std::min(level, p.left / p.open);
  }
  return level;
}

// The port that has least for each of its flows gives them that; they have their share. Then the
// next, with what is left.
void FairPorts::fill() {
  constexpr double kSame = 1 + 1e-9;  // rounding makes no level of its own
  unsettled_ = static_cast<int>(some_flows_.size());
  while (unsettled_ > 0) {
    const double level = lowest_level();
    if (settle_capped(level)) continue;
    for (const int port : some_ports_) {
      const Port& p = ports_[port];
      if (p.open == 0 || p.left / p.open > level * kSame) continue;
      for (const int flow : p.flows) {
        if (!flows_[flow].settled) settle(flow, level);
      }
    }
  }
}

bool FairPorts::settle_capped(double level) {
  double lowest = level;
  for (const int flow : some_flows_) {
    if (!flows_[flow].settled) lowest = std::min(lowest, flows_[flow].most);
  }
  if (lowest == level) return false;
  for (const int flow : some_flows_) {
    if (!flows_[flow].settled && flows_[flow].most == lowest) settle(flow, lowest);
  }
  return true;
}

void FairPorts::settle(int flow, double rate) {
  Flow& f = flows_[flow];
  f.settled = true;
  f.next_rate = rate;
  --unsettled_;
  for (const int port : {f.out, f.in}) {
    ports_[port].left = std::max(0.0, ports_[port].left - rate);
    --ports_[port].open;
  }
}

}  // namespace ebb
