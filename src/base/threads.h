// The process's team of threads: one job at a time, over as many of them as it asks for.
#pragma once

#include <cstdint>

namespace ebb {

// Threads that jobs are for: $OMP_NUM_THREADS, else one for each CPU that the process may run on,
// until it is set; within a TeamOf, as that says.
void set_team_threads(int threads);
int team_threads();

// While one lives, the jobs of the calling thread are for so many.
class TeamOf {
 public:
  explicit TeamOf(int threads);
  ~TeamOf();
  TeamOf(const TeamOf&) = delete;
  TeamOf& operator=(const TeamOf&) = delete;

 private:
  const int before_;
};

// CPUs that this process may run on, by its affinity mask.
int allowed_cpus();

// The process's threads, and those that they start, run on `count` of these alone, from the
// `first` on; if there are so many.
void keep_to_cpus(int first, int count);

// The team is there from the first job on, or from start_team(). A process that is about to fork
// must end it: the child would wait for threads that it does not have.
void start_team();
void end_team();

// job(context, self) on `threads` threads, self from 0, which is the caller, to threads - 1.
// Returns when all are done. What they did is seen by the caller, and what it did before, by them.
// A job must not throw. Within a job, or while another thread's job runs, the caller does all of it
// by itself, one self after the other.
using TeamJob = void (*)(void* context, int self);
void run_on_team(int threads, TeamJob job, void* context);

// Jobs so far that more than one thread worked on: whether work was cut, for tests.
int64_t team_jobs();

template <typename Body>
void on_team(int threads, Body& body) {
  run_on_team(
      threads, [](void* context, int self) { (*static_cast<Body*>(context))(self); }, &body);
}

}  // namespace ebb
