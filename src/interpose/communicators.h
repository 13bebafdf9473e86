/* Keeps the list of NCCL's communicators in this process. Marks their communications for the engine, and aborts the
 * communicators when the job is halted. The functions that stand before NCCL's call these. Thread-safe. */
#ifndef CKPT_INTERPOSE_COMMUNICATORS_H
#define CKPT_INTERPOSE_COMMUNICATORS_H

#include "interpose/nccl.h"

/* Call this when NCCL has made a communicator. */
void communicator_made(ncclComm_t handle);

/* Call these before and after a call on a communicator. communicator_use() returns ncclSuccess, or the result that
 * training should get because libckptinterpose has aborted the communicator. Only after ncclSuccess, call NCCL and then
 * communicator_done(). */
int communicator_use(ncclComm_t handle);
void communicator_done(ncclComm_t handle);

/* For a communication on a stream, call these two instead. They also mark the communication. In a group of NCCL calls
 * it is marked when the group ends, otherwise at once. */
int communication_begin(ncclComm_t handle, cudaStream_t stream);
void communication_end(ncclComm_t handle, cudaStream_t stream, int result);
void group_start(void);
/* Call these before and after ncclGroupEnd(). */
void group_ending(void);
void group_ended(int result);
/* Call this when NCCL says that this communicator's communications in progress are now enqueued on their streams. */
void communications_are_enqueued(ncclComm_t handle);

/* Call this when training ends a communicator. If it returns ncclInProgress, call NCCL and then communicator_ended().
 * Otherwise libckptinterpose aborts the communicator itself, and training gets the returned result. */
int communicator_ending(ncclComm_t handle);
void communicator_ended(ncclComm_t handle);

/* A sentence for ncclGetLastError() that says why libckptinterpose has aborted communicators. Null if it has not
 * aborted this one. */
const char* communicator_error(ncclComm_t handle);

#endif
