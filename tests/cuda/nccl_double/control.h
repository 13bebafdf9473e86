/* Functions with which a test makes ranks of this process hang or fail in the test double of libnccl.so.2. Only the
 * test double exports them. A test finds them with dlsym(), and skips what needs them if NCCL itself is loaded. `rank`
 * is a rank's number within its communicator; -1 means all ranks. A setting holds for the communicators that exist and
 * for later ones. */
#ifndef CKPT_TESTS_NCCL_DOUBLE_CONTROL_H
#define CKPT_TESTS_NCCL_DOUBLE_CONTROL_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* As at start: nothing hangs, waits or fails. */
void ckpt_nccl_double_reset(void);
/* What the rank has on its stream gets no further, or goes on. */
void ckpt_nccl_double_hang(int rank, int on);
/* The first byte of what the rank sends is another one from now on, or is not. */
void ckpt_nccl_double_corrupt(int rank, int on);
/* How long the rank waits before each byte range that it sends or receives begins. */
void ckpt_nccl_double_slow(int rank, uint64_t pause_us);
/* Groups stay in progress and do not get onto their stream, or do. */
void ckpt_nccl_double_hold_launches(int on);
/* ncclCommInitRankConfig() and ncclCommAbort() do not come back, or do. */
void ckpt_nccl_double_hold_inits(int on);
void ckpt_nccl_double_hold_aborts(int on);
/* How long ncclCommAbort() takes at least. */
void ckpt_nccl_double_slow_aborts(uint64_t pause_us);
/* The rank's communicators have an asynchronous error (an ncclResult_t), and get no further. */
void ckpt_nccl_double_fail(int rank, int result);
/* The rank's communicators are gone for the others, as if its process had died. */
void ckpt_nccl_double_die(int rank);
/* What ncclGetVersion() says; 0: the truth. */
void ckpt_nccl_double_version(int version);
/* Communicators that were not ended; calls of ncclCommAbort(), and those that came back when the thread that had issued
 * the communicator's last group was gone: up to 2.26 NCCL looks into that thread's memory. Groups that were put onto a
 * stream; bytes that they send; receives that met a send of another size. All since the start. */
uint64_t ckpt_nccl_double_communicators(void);
uint64_t ckpt_nccl_double_aborts(void);
uint64_t ckpt_nccl_double_orphans(void);
uint64_t ckpt_nccl_double_groups(void);
uint64_t ckpt_nccl_double_sent_bytes(void);
uint64_t ckpt_nccl_double_mismatches(void);
/* Of memory that ranks have registered with their communicators, since the start. */
uint64_t ckpt_nccl_double_registered_bytes(void);
/* maxCTAs of the communicator made last. */
int ckpt_nccl_double_max_ctas(void);

#ifdef __cplusplus
}
#endif

#endif
