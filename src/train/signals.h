// SIGINT and SIGTERM: the first asks the trainer to stop after the step, the second exits at once.
#pragma once

namespace ebb {

void catch_stop_signals();
int stop_signal();  // 0, or the signal that asked to stop

}  // namespace ebb
