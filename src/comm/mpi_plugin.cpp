// The only file that includes mpi.h. Point to point alone: no collectives, no sums.
#include <mpi.h>

#include <algorithm>
#include <vector>

#include "comm/mpi_calls.h"

namespace {

// One per process, as MPI is.
struct Calls {
  std::vector<MPI_Request> requests;  // by slot; MPI_REQUEST_NULL: free
  std::vector<int> free_slots;
  std::vector<int> indices;
  std::vector<MPI_Status> statuses;
  char text[MPI_MAX_ERROR_STRING + 1] = "";
};

Calls& calls_of(void* self) { return *static_cast<Calls*>(self); }

// 0, or -1 with the text of what failed.
int checked(Calls& calls, int code) {
  if (code == MPI_SUCCESS) return 0;
  int length = 0;
  MPI_Error_string(code, calls.text, &length);
  calls.text[length] = '\0';
  return -1;
}

int start(void* self, int* rank, int* size) {
  Calls& calls = calls_of(self);
  int provided = 0;
  if (checked(calls, MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided)) != 0) {
    return -1;
  }
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  if (checked(calls, MPI_Comm_rank(MPI_COMM_WORLD, rank)) != 0) return -1;
  return checked(calls, MPI_Comm_size(MPI_COMM_WORLD, size));
}

int new_slot(Calls& calls) {
  if (calls.free_slots.empty()) {
    calls.free_slots.push_back(static_cast<int>(calls.requests.size()));
    calls.requests.push_back(MPI_REQUEST_NULL);
    calls.indices.resize(calls.requests.size());
    calls.statuses.resize(calls.requests.size());
  }
  const int slot = calls.free_slots.back();
  calls.free_slots.pop_back();
  return slot;
}

int send(void* self, int to, int tag, const void* bytes, int n) {
  Calls& calls = calls_of(self);
  const int slot = new_slot(calls);
  const int code = MPI_Issend(bytes, n, MPI_BYTE, to, tag, MPI_COMM_WORLD, &calls.requests[slot]);
  return checked(calls, code) == 0 ? slot : -1;
}

int receive(void* self, int from, int tag, void* bytes, int n) {
  Calls& calls = calls_of(self);
  const int slot = new_slot(calls);
  const int code = MPI_Irecv(bytes, n, MPI_BYTE, from, tag, MPI_COMM_WORLD, &calls.requests[slot]);
  return checked(calls, code) == 0 ? slot : -1;
}

int failure_of(Calls& calls, int code) {
  if (checked(calls, code) == 0) return kEbbMpiFine;
  int kind = MPI_SUCCESS;
  MPI_Error_class(code, &kind);
  return kind == MPI_ERR_TRUNCATE ? kEbbMpiTooLong : kEbbMpiBroken;
}

int poll(void* self, EbbMpiDone* done, int most) {
  Calls& calls = calls_of(self);
  int count = 0;
  const int n = std::min(most, static_cast<int>(calls.requests.size()));
  const int code =
      MPI_Testsome(n, calls.requests.data(), &count, calls.indices.data(), calls.statuses.data());
  if (code != MPI_SUCCESS && code != MPI_ERR_IN_STATUS) return checked(calls, code);
  if (count == MPI_UNDEFINED) return 0;
  for (int i = 0; i < count; ++i) {
    const MPI_Status& status = calls.statuses[i];
    const int slot = calls.indices[i];
    int bytes = 0;
    MPI_Get_count(&status, MPI_BYTE, &bytes);
    // A status has an error of its own only where the call says so.
    const int own = code == MPI_ERR_IN_STATUS ? status.MPI_ERROR : MPI_SUCCESS;
    done[i] = {slot, failure_of(calls, own), bytes};
    calls.free_slots.push_back(slot);
  }
  return count;
}

int finish(void* self) { return checked(calls_of(self), MPI_Finalize()); }

const char* failure(void* self) { return calls_of(self).text; }

}  // namespace

extern "C" __attribute__((visibility("default"))) const EbbMpi* ebb_mpi() {
  static Calls calls;
  static const EbbMpi table = {EBB_MPI_CALLS, EBB_MPI_LIBRARY, &calls, start, send, receive,
                               poll,          finish,          failure};
  return &table;
}
