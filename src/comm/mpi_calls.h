// What Ebb needs of an MPI library, as a table of C functions: libebb_mpich.so and
// libebb_openmpi.so are this table and nothing more (mpi_plugin.cpp, compiled once for each),
// loaded where a launcher started the process. No C++ type, exception or allocation crosses the
// border.
#pragma once

#include <cstdint>

// Changes with the table. Whoever loads it compares.
#define EBB_MPI_CALLS "ebb mpi calls 1"

extern "C" {

struct EbbMpiDone {
  int slot;
  int failure;    // one of EbbMpiFailure
  int64_t bytes;  // that came, of a receive
};

enum EbbMpiFailure : int {
  kEbbMpiFine = 0,
  kEbbMpiTooLong = 1,  // more bytes came than the receive has room for; the rest was dropped
  kEbbMpiBroken = 2,   // failure() says how
};

// All calls are made by the thread that calls start(). Those that return an int return -1 when they
// fail, and failure() then says how.
struct EbbMpi {
  const char* version;  // EBB_MPI_CALLS
  const char* library;  // "MPICH", "Open MPI"
  void* self;

  int (*start)(void* self, int* rank, int* size);
  // Begin to move bytes and return a slot, which is busy until poll() has named it. A send is
  // synchronous: it is done only when the receiver has begun to take it.
  int (*send)(void* self, int to, int tag, const void* bytes, int n);
  int (*receive)(void* self, int from, int tag, void* bytes, int n);
  // Lets MPI work; how many slots are done. `most` is more than the largest slot that is busy.
  int (*poll)(void* self, EbbMpiDone* done, int most);
  int (*finish)(void* self);
  const char* (*failure)(void* self);
};

using EbbMpiEntry = const EbbMpi*();
// The one symbol of a plugin: EbbMpiEntry ebb_mpi.
}
