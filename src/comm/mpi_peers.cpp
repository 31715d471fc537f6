#include "comm/mpi_peers.h"

#include <fmt/format.h>
#include <unistd.h>

#include <string>
#include <thread>
#include <vector>

#include "base/error.h"

namespace ebb {

namespace {

std::string process_name() {
  char host[256] = "";
  gethostname(host, sizeof host - 1);
  return fmt::format("pid {} on {}", getpid(), host);
}

}  // namespace

MpiPeers::MpiPeers(const EbbMpi& mpi, const PeerOptions& options)
    : name_(process_name()),
      timeout_(options.timeout),
      worker_(mpi, options.one_host, timeout_),
      liveness_(worker_.rank()) {
  set_place(worker_.rank(), worker_.size());
  // Nobody watches yet.
  worker_.set_deadline(MpiWorker::Clock::now() + options.timeout);
  Liveness::Settings settings;
  settings.rank = rank();
  settings.size = size();
  settings.options = options;
  settings.names = tell_all(name_);
  const std::string invitation = tell_all(liveness_.invitation())[0];
  settings.state = [this] { return worker_.state(); };
  settings.on_loss = [this](const std::string& what) {
    worker_.fail_with(Error(Exit::peer, what,
                            "what was saved before is intact: --resume goes on from there; the "
                            "lost rank's own output may say why"));
  };
  liveness_.start(settings, invitation);
  worker_.set_deadline(std::nullopt);
}

void MpiPeers::leave() {
  any(0);  // nobody shuts down while another still sends
  worker_.finish(timeout_);
  liveness_.leave();
  worker_.check();
}

void MpiPeers::abandon(const std::string& why) {
  liveness_.tell(fmt::format("ranks: rank {} ({}) gave up: {}", rank(), name_, why));
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
}

}  // namespace ebb
