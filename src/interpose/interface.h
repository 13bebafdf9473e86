/* What libckptengine and libckptinterpose tell each other. Neither is linked with the other. The engine finds these
 * functions by dlsym(), because a preloaded library is in the global scope. So each works in a process without the
 * other. */
#ifndef CKPT_INTERPOSE_INTERFACE_H
#define CKPT_INTERPOSE_INTERFACE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* NOLINTBEGIN(modernize-use-using, modernize-redundant-void-arg): C reads it, too */

/* An engine, as libckptinterpose sees it. Any thread may call these functions until ckpt_interpose_detach(). */
typedef struct ckpt_interposed_engine {
  size_t struct_size;
  void* engine;
  /* A communication begins when the GPU has done the work that is enqueued on `stream` now. Returns 1 if the engine
   * has marked it. Then end() follows. `channel` is 0 to 7. */
  int (*begin)(void* engine, uint32_t channel, void* stream);
  /* The communication ends when the GPU has done the work that is enqueued on `stream` now. */
  void (*end)(void* engine, uint32_t channel, void* stream);
  /* Waits up to `timeout_ms` until the job is halted, and this rank is captured or cannot be. Then returns 1 and sets
   * `*incarnation` to the halted incarnation. Returns 0 if that has not happened in time. The pointer is null if this
   * rank is never halted. */
  int (*wait_halt)(void* engine, int64_t timeout_ms, uint64_t* incarnation);
} ckpt_interposed_engine;

/* Marks NCCL's communications for this engine from now on, and aborts the communicators when its job is halted. One
 * engine at a time. Returns null, or a sentence that says why it does not. */
typedef const char* ckpt_interpose_attach_function(const ckpt_interposed_engine* engine);
/* Once it returns, no function of the engine is called any more. */
typedef void ckpt_interpose_detach_function(void* engine);
/* Call this when the job is halted. Aborts all communicators, unless that was done already for this incarnation. Waits
 * up to `timeout_ms` until the aborts have ended. Returns how many have not. */
typedef uint32_t ckpt_interpose_abort_function(void* engine, uint64_t incarnation, int64_t timeout_ms);
/* The number of communications that have come through libckptinterpose in this process. */
typedef uint64_t ckpt_interpose_calls_function(void);
/* The path of a loaded file that has NCCL linked into it, and is not NCCL's own library. Null if there is none. */
typedef const char* ckpt_interpose_static_nccl_function(void);

/* NOLINTEND(modernize-use-using, modernize-redundant-void-arg) */

#ifdef __cplusplus
}
#endif

#endif
