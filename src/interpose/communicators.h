/* The communicators of this process, the engine, and what happens to both: communications are marked, and when the job
 * is halted, communicators are aborted. Thread-safe. */
#ifndef CKPT_INTERPOSE_COMMUNICATORS_H
#define CKPT_INTERPOSE_COMMUNICATORS_H

#include "interpose/nccl.h"

/* A communicator exists from now on. */
void communicator_made(ncclComm_t handle);

/* Calls on a communicator. use() returns ncclSuccess, or the result that the caller should get because the communicator
 * was aborted. After success call done(). */
int communicator_use(ncclComm_t handle);
void communicator_done(ncclComm_t handle);

/* The same for a communication on a stream. The mark is made at once, or within a group when the group ends. */
int communication_begin(ncclComm_t handle, cudaStream_t stream);
void communication_end(ncclComm_t handle, cudaStream_t stream, int result);
void group_start(void);
/* Before and after NCCL's call. */
void group_ending(void);
void group_ended(int result);
/* NCCL says that what was in progress on it is on its streams now. */
void communications_are_enqueued(ncclComm_t handle);

/* Training ends a communicator. Returns ncclInProgress if the caller should call NCCL, and then
 * communicator_ended(). Any other result is the caller's: it was aborted before. */
int communicator_ending(ncclComm_t handle);
void communicator_ended(ncclComm_t handle);

/* A sentence about the last abort by libckptinterpose, for ncclGetLastError(). Null if this communicator was not
 * aborted so. */
const char* communicator_error(ncclComm_t handle);

#endif
