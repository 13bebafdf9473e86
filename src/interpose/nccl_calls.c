/* libckptinterpose.so: with LD_PRELOAD it stands before NCCL, for trainers that do not mark their communications
 * (docs/jit.md). Each function calls NCCL's own one and returns what that returns. Without an engine in the process it
 * does nothing else. */
#define _GNU_SOURCE
#include <stddef.h>
#include <string.h>

#include "interpose/communicators.h"
#include "interpose/objects.h"

#define EXPORT __attribute__((visibility("default")))

/* Declares `real`, a pointer to NCCL's own function of that name, of the type that ours has. */
#define FIND_REAL(name)                                \
  static void* _Atomic found;                          \
  __typeof__(name)* real = NULL;                       \
  void* const function = nccl_function(&found, #name); \
  memcpy(&real, &function, sizeof real)

#define COMMUNICATION(name, parameters, arguments)         \
  EXPORT int name parameters {                             \
    FIND_REAL(name);                                       \
    if (real == NULL) return ncclInternalError;            \
    const int refused = communication_begin(comm, stream); \
    if (refused != ncclSuccess) return refused;            \
    const int result = real arguments;                     \
    communication_end(comm, stream, result);               \
    return result;                                         \
  }

/* A call on a communicator that puts nothing on a stream. */
#define CALL(name, parameters, arguments)       \
  EXPORT int name parameters {                  \
    FIND_REAL(name);                            \
    if (real == NULL) return ncclInternalError; \
    const int refused = communicator_use(comm); \
    if (refused != ncclSuccess) return refused; \
    const int result = real arguments;          \
    communicator_done(comm);                    \
    return result;                              \
  }

/* A call that makes a communicator. `*made` is set before a communicator that does not block is ready. */
#define MAKE(name, parameters, arguments)                                            \
  EXPORT int name parameters {                                                       \
    FIND_REAL(name);                                                                 \
    if (real == NULL) return ncclInternalError;                                      \
    const int result = real arguments;                                               \
    if (result == ncclSuccess || result == ncclInProgress) communicator_made(*comm); \
    return result;                                                                   \
  }

/* The same, from another communicator. */
#define MAKE_FROM(name, parameters, arguments)                                       \
  EXPORT int name parameters {                                                       \
    FIND_REAL(name);                                                                 \
    if (real == NULL) return ncclInternalError;                                      \
    const int refused = communicator_use(comm);                                      \
    if (refused != ncclSuccess) return refused;                                      \
    const int result = real arguments;                                               \
    if (result == ncclSuccess || result == ncclInProgress) communicator_made(*made); \
    communicator_done(comm);                                                         \
    return result;                                                                   \
  }

#define END(name)                                \
  EXPORT int name(ncclComm_t comm) {             \
    FIND_REAL(name);                             \
    if (real == NULL) return ncclInternalError;  \
    const int known = communicator_ending(comm); \
    if (known != ncclInProgress) return known;   \
    const int result = real(comm);               \
    communicator_ended(comm);                    \
    return result;                               \
  }

COMMUNICATION(ncclAllReduce,
              (const void* from, void* to, size_t count, int type, int op, ncclComm_t comm, cudaStream_t stream),
              (from, to, count, type, op, comm, stream))
COMMUNICATION(ncclReduceScatter,
              (const void* from, void* to, size_t count, int type, int op, ncclComm_t comm, cudaStream_t stream),
              (from, to, count, type, op, comm, stream))
COMMUNICATION(ncclAllGather, (const void* from, void* to, size_t count, int type, ncclComm_t comm, cudaStream_t stream),
              (from, to, count, type, comm, stream))
COMMUNICATION(ncclAlltoAll, (const void* from, void* to, size_t count, int type, ncclComm_t comm, cudaStream_t stream),
              (from, to, count, type, comm, stream))
COMMUNICATION(ncclReduce,
              (const void* from, void* to, size_t count, int type, int op, int root, ncclComm_t comm,
               cudaStream_t stream),
              (from, to, count, type, op, root, comm, stream))
COMMUNICATION(ncclBroadcast,
              (const void* from, void* to, size_t count, int type, int root, ncclComm_t comm, cudaStream_t stream),
              (from, to, count, type, root, comm, stream))
COMMUNICATION(ncclGather,
              (const void* from, void* to, size_t count, int type, int root, ncclComm_t comm, cudaStream_t stream),
              (from, to, count, type, root, comm, stream))
COMMUNICATION(ncclScatter,
              (const void* from, void* to, size_t count, int type, int root, ncclComm_t comm, cudaStream_t stream),
              (from, to, count, type, root, comm, stream))
COMMUNICATION(ncclBcast, (void* data, size_t count, int type, int root, ncclComm_t comm, cudaStream_t stream),
              (data, count, type, root, comm, stream))
COMMUNICATION(ncclSend, (const void* data, size_t count, int type, int peer, ncclComm_t comm, cudaStream_t stream),
              (data, count, type, peer, comm, stream))
COMMUNICATION(ncclRecv, (void* data, size_t count, int type, int peer, ncclComm_t comm, cudaStream_t stream),
              (data, count, type, peer, comm, stream))

CALL(ncclCommCount, (ncclComm_t comm, int* count), (comm, count))
CALL(ncclCommCuDevice, (ncclComm_t comm, int* device), (comm, device))
CALL(ncclCommUserRank, (ncclComm_t comm, int* rank), (comm, rank))
CALL(ncclCommFinalize, (ncclComm_t comm), (comm))
CALL(ncclCommRegister, (ncclComm_t comm, void* data, size_t size, void** handle), (comm, data, size, handle))
CALL(ncclCommDeregister, (ncclComm_t comm, void* handle), (comm, handle))
CALL(ncclRedOpCreatePreMulSum, (int* op, void* scalar, int type, int residence, ncclComm_t comm),
     (op, scalar, type, residence, comm))
CALL(ncclRedOpDestroy, (int op, ncclComm_t comm), (op, comm))

MAKE(ncclCommInitRank, (ncclComm_t * comm, int ranks, ncclUniqueId id, int rank), (comm, ranks, id, rank))
MAKE(ncclCommInitRankConfig, (ncclComm_t * comm, int ranks, ncclUniqueId id, int rank, void* config),
     (comm, ranks, id, rank, config))
MAKE(ncclCommInitRankScalable, (ncclComm_t * comm, int ranks, int rank, int ids_count, ncclUniqueId* ids, void* config),
     (comm, ranks, rank, ids_count, ids, config))
MAKE_FROM(ncclCommSplit, (ncclComm_t comm, int color, int key, ncclComm_t* made, void* config),
          (comm, color, key, made, config))
MAKE_FROM(ncclCommShrink, (ncclComm_t comm, int* without, int count, ncclComm_t* made, void* config, int flags),
          (comm, without, count, made, config, flags))

EXPORT int ncclCommInitAll(ncclComm_t* comms, int count, const int* devices) {
  FIND_REAL(ncclCommInitAll);
  if (real == NULL) return ncclInternalError;
  const int result = real(comms, count, devices);
  for (int i = 0; result == ncclSuccess && i < count; ++i) communicator_made(comms[i]);
  return result;
}

END(ncclCommDestroy)
END(ncclCommAbort)

EXPORT int ncclCommGetAsyncError(ncclComm_t comm, int* error) {
  FIND_REAL(ncclCommGetAsyncError);
  if (real == NULL) return ncclInternalError;
  if (communicator_use(comm) != ncclSuccess) {
    *error = ncclRemoteError;
    return ncclSuccess;
  }
  const int result = real(comm, error);
  if (result == ncclSuccess && *error == ncclSuccess) communications_are_enqueued(comm);
  communicator_done(comm);
  return result;
}

EXPORT const char* ncclGetLastError(ncclComm_t comm) {
  const char* const ours = communicator_error(comm);
  if (ours != NULL) return ours;
  FIND_REAL(ncclGetLastError);
  return real == NULL ? "" : real(comm);
}

EXPORT int ncclGroupStart(void) {
  FIND_REAL(ncclGroupStart);
  if (real == NULL) return ncclInternalError;
  const int result = real();
  if (result == ncclSuccess) group_start();
  return result;
}

EXPORT int ncclGroupEnd(void) {
  FIND_REAL(ncclGroupEnd);
  if (real == NULL) return ncclInternalError;
  group_ending();
  const int result = real();
  group_ended(result);
  return result;
}
