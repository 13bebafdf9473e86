/* Functions with which a test makes the test double of libcuda.so.1 hang, fail or run out of something. Only the test
 * double exports them. A test finds them with dlsym(), and skips what needs them if a real driver is loaded. */
#ifndef CKPT_TESTS_CUDA_DOUBLE_CONTROL_H
#define CKPT_TESTS_CUDA_DOUBLE_CONTROL_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* NOLINTNEXTLINE(modernize-use-using): C reads it, too */
typedef enum ckpt_double_work {
  CKPT_DOUBLE_TO_HOST = 0, /* copies from the device */
  CKPT_DOUBLE_TO_DEVICE = 1,
  CKPT_DOUBLE_KERNEL = 2, /* kernels, and copies within the device */
  CKPT_DOUBLE_OTHER = 3,  /* events, flags, host functions: never held */
  CKPT_DOUBLE_WORK_KINDS = 4
} ckpt_double_work;

/* NOLINTNEXTLINE(modernize-use-using): C reads it, too */
typedef enum ckpt_double_calls {
  CKPT_DOUBLE_CALLS_RETURN = 0,
  CKPT_DOUBLE_CALLS_HELD = 1,
  CKPT_DOUBLE_CALLS_WAIT_FOR_KERNEL = 2 /* until the next kernel of a library, as NCCL is one, has ended */
} ckpt_double_calls;

/* What copies or launches of one kind did. Names are copy_to_host, copy_to_device, copy_within, fill
 * and those of our kernels. */
/* NOLINTNEXTLINE(modernize-use-using): C reads it, too */
typedef struct ckpt_double_traffic {
  const char* name; /* stays valid */
  uint64_t count;   /* of copies or launches that are done */
  uint64_t device_read_bytes;
  uint64_t device_written_bytes;
  uint64_t to_host_bytes;   /* written to host memory, so through the link */
  uint64_t to_device_bytes; /* read from host memory */
} ckpt_double_traffic;

/* As at start: nothing held, no limits, no failure. Allocations, streams and registrations stay;
 * but a context that died is a new one and has none of the first and the last. */
void ckpt_double_reset(void);
/* From now on work of this kind does not begin, or does again. What runs already runs on. */
void ckpt_double_hold(ckpt_double_work kind, int held);
/* Lets `count` pieces of held work begin all the same. */
void ckpt_double_let(ckpt_double_work kind, uint64_t count);
/* Work of this kind that has been done since the start. */
uint64_t ckpt_double_done(ckpt_double_work kind);
/* Calls that need a context do not come back, on any thread, or do again: as if another one waited for the GPU with a
 * lock of the driver's. Kernels of libraries get onto their streams all the same. */
void ckpt_double_hold_calls(ckpt_double_calls how);
/* How many do not come back now. */
uint64_t ckpt_double_held_calls(void);
/* Of copies to and from the device; 0: as fast as memory is. */
void ckpt_double_bandwidth(uint64_t bytes_per_s);
/* The context dies: work that waits is dropped, and every later call returns `result` (a CUresult). */
void ckpt_double_kill_context(int result);
/* The same, when the `countdown`th piece of this work is about to begin. */
void ckpt_double_kill_context_at(ckpt_double_work kind, uint64_t countdown, int result);
/* What cuMemHostRegister() returns from now on; 0: it registers. */
void ckpt_double_refuse_registration(int result);
/* How often it refused since the start. */
uint64_t ckpt_double_refused_registrations(void);
/* Since the start: how many ranges were registered, and the largest. */
uint64_t ckpt_double_registered(void);
uint64_t ckpt_double_largest_registration(void);
/* From now on cuMemHostRegister() does not come back, or does again. */
void ckpt_double_hold_registrations(int held);
/* Lets `count` of those calls, which wait or come later, come back all the same. */
void ckpt_double_let_registrations(uint64_t count);
/* Copies to the device from memory that was not pinned, since the start. */
uint64_t ckpt_double_pageable_copies(void);
/* Calls of cuEventQuery() since the start. */
uint64_t ckpt_double_event_queries(void);
/* What cuStreamWriteValue32() returns from now on; 0: it writes. */
void ckpt_double_refuse_stream_writes(int result);
/* How often a graph's capture was made invalid by a thread that asked for an event. */
uint64_t ckpt_double_disturbed_captures(void);
/* Of device memory that is left for allocations. */
void ckpt_double_free_bytes(uint64_t bytes);
/* How often the calling thread has registered a range. */
uint64_t ckpt_double_registered_here(void);
/* How often the calling thread has freed or unregistered memory, which waits for the whole device. */
uint64_t ckpt_double_freed_here(void);
/* Registered ranges; allocations of device memory. */
uint64_t ckpt_double_registrations(void);
uint64_t ckpt_double_allocations(void);
/* The sums of kind number `index`, since the start. Returns 0 and leaves `sums` alone if there are fewer kinds. */
int ckpt_double_traffic_at(uint64_t index, ckpt_double_traffic* sums);
/* How much a stream's queue takes before enqueueing waits, and how often one was full. */
void ckpt_double_queue_depth(uint64_t operations);
uint64_t ckpt_double_queue_full(void);
/* The NUMA node that is closest to the GPU; -1, as at start: the driver says that there is only one. */
void ckpt_double_numa_node(int node);
/* What cuDriverGetVersion() says; 0: the truth. */
void ckpt_double_driver_version(int version);

#ifdef __cplusplus
}
#endif

#endif
