// SIGINT, SIGTERM and SIGHUP: the first asks to stop as soon as nothing is lost by it and is
// acknowledged at once, the second exits at once, or as soon as a save that is under way is done. A
// SIGHUP is never a second one: a terminal that closes sends several.
#pragma once

namespace ebb {

// `acknowledgement`: a line for stderr, said when the first signal comes; it must outlive the
// process. A SIGHUP that is ignored already (nohup) stays so.
void catch_stop_signals(const char* acknowledgement);
int stop_signal();  // 0, or the signal that asked to stop

// What ends the process from within abort() or exit() asks `first`, which may not return.
void ask_before_ending(void (*first)());

// While something is being saved, a second signal does not cut it off: it ends the process when
// that is done.
void note_saving(bool under_way);

}  // namespace ebb
