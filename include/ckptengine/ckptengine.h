/* The C API of ckptengine, an in-memory checkpoint engine for large-model training.
 *
 * An engine belongs to one rank: one training process that drives one device. After each iteration the engine captures
 * the rank's registered tensors into memory that the node's agent owns. Agents on other nodes copy that state from
 * there. After a failure the engine restores the newest checkpoint that every rank can get. See GEMINI (SOSP'23)
 * sections 3-6 and REFT section 4. docs/architecture.md explains the words.
 *
 * Rules for every function:
 *  - Most functions return a status. For every status but CKPT_OK, ckpt_last_error() says what happened, why, and what
 *    to do.
 *  - No function aborts, exits, prints, installs a signal handler, or lets a C++ exception escape.
 *  - Every wait has a deadline.
 *  - Only one thread at a time may use an engine: the training thread. Any thread may call ckpt_comm_begin(),
 *    ckpt_comm_end(), ckpt_wait(), ckpt_wait_halt(), ckpt_snapshot_stage(), ckpt_stats(), ckpt_health() and
 *    ckpt_on_health(). Engines are independent of each other.
 *  - A forked child cannot use its parent's engine: calls return CKPT_ERR_INVALID.
 *  - The caller owns the memory of its tensors. Keep it until the tensor is moved or unregistered, or the engine is
 *    closed.
 *  - Sizes are in bytes. Times are in milliseconds.
 *
 * Structs that may grow begin with `struct_size`. Initialize them with the CKPT_..._INIT macro of the same name. The
 * library reads and fills no more than struct_size bytes, so a program built with an older header keeps working. Later
 * releases add members at the end of a struct and values at the end of an enum. Expect values that your header does not
 * name. docs/api.md says what else may change, and when the SONAME changes.
 */
#ifndef CKPTENGINE_CKPTENGINE_H
#define CKPTENGINE_CKPTENGINE_H

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define CKPT_API __attribute__((visibility("default")))
#else
#define CKPT_API
#endif

/* The version of this header. ckpt_version() returns the version of the library. */
#define CKPT_VERSION_MAJOR 0
#define CKPT_VERSION_MINOR 1
#define CKPT_VERSION_PATCH 0
/* One number for comparisons: version 1.2.3 is 10203. */
#define CKPT_VERSION_NUMBER (CKPT_VERSION_MAJOR * 10000 + CKPT_VERSION_MINOR * 100 + CKPT_VERSION_PATCH)

#ifdef __cplusplus
extern "C" {
#endif

/* Result of a call. Values below CKPT_ERR_INVALID are no errors: see ckpt_is_error(). */
typedef enum ckpt_status {
  CKPT_OK = 0,
  CKPT_SKIPPED = 1,   /* all ranks skip the snapshot of this iteration; training is not affected */
  CKPT_DISCARDED = 2, /* this snapshot was taken and then discarded; training is not affected */

  CKPT_ERR_INVALID = 16,    /* bad argument, bad option or wrong order of calls; nothing changed */
  CKPT_ERR_NO_AGENT = 17,   /* no agent answers on this node, or it belongs to another job */
  CKPT_ERR_CLAIMED = 18,    /* another running process holds this rank */
  CKPT_ERR_SUPERSEDED = 19, /* this process belongs to an earlier incarnation: restart it with all others */
  CKPT_ERR_NO_SPACE = 20,   /* no room: in memory, /dev/shm, the GPU's memory, or within the option arena_bytes */
  CKPT_ERR_MISMATCH = 21,   /* world size or layout differs from what is stored; the error names where */
  CKPT_ERR_LOST = 22,       /* a committed checkpoint is lost and cannot be rebuilt */
  CKPT_ERR_TIMEOUT = 23,    /* a deadline passed; the error says what the call waited for */
  CKPT_ERR_CORRUPT = 24,    /* bytes did not match their digest, and no other source has them */
  CKPT_ERR_SYSTEM = 25,     /* the operating system or the GPU refused something */
  CKPT_ERR_INTERNAL = 26,   /* a bug in ckptengine: report it with the agent's log */
  CKPT_ERR_HALTED = 27      /* the job was halted, because a rank holds it up: do not update; see ckpt_rejoin() */
} ckpt_status;

/* Element types. The comments give the names that safetensors uses. */
typedef enum ckpt_dtype {
  CKPT_BOOL = 0,    /* BOOL */
  CKPT_U8 = 1,      /* U8 */
  CKPT_I8 = 2,      /* I8 */
  CKPT_F8_E4M3 = 3, /* F8_E4M3 */
  CKPT_F8_E5M2 = 4, /* F8_E5M2 */
  CKPT_I16 = 5,     /* I16 */
  CKPT_U16 = 6,     /* U16 */
  CKPT_F16 = 7,     /* F16 */
  CKPT_BF16 = 8,    /* BF16 */
  CKPT_I32 = 9,     /* I32 */
  CKPT_U32 = 10,    /* U32 */
  CKPT_F32 = 11,    /* F32 */
  CKPT_I64 = 12,    /* I64 */
  CKPT_U64 = 13,    /* U64 */
  CKPT_F64 = 14,    /* F64 */
  CKPT_C64 = 15     /* C64: two F32 */
} ckpt_dtype;

/* Where a tensor's bytes are. */
typedef enum ckpt_memory {
  CKPT_HOST = 0,
  CKPT_DEVICE = 1 /* memory of a CUDA GPU, one GPU per engine; CKPT_ERR_INVALID without CUDA */
} ckpt_memory;

/* When a tensor is captured. This also selects one of the rank's two shards. */
typedef enum ckpt_capture {
  CKPT_OVERLAPPED = 0, /* main shard: copied while training goes on, until ckpt_before_update() */
  CKPT_SYNCHRONOUS = 1 /* private shard: copied before ckpt_snapshot() returns. For this rank's own small state that
                          changes before the update: BatchNorm statistics, random number generators, counters. With
                          on_suspicion=halt also copied in ckpt_before_update() (docs/jit.md) */
} ckpt_capture;

/* The engine of one rank. ckpt_create() makes it, ckpt_close() frees it. */
typedef struct ckpt_engine ckpt_engine;

/* One option: a key from docs/options.md, and its value as text. ckpt_create() copies both. */
typedef struct ckpt_option {
  const char* key;
  const char* value;
} ckpt_option;

/* A tensor of the caller, contiguous in row-major order. The library copies what is marked "copied". */
typedef struct ckpt_tensor {
  size_t struct_size;   /* sizeof(ckpt_tensor) */
  const char* name;     /* UTF-8, 1 to 4096 bytes, unique within the rank; copied */
  void* data;           /* stays the caller's; may be null if the tensor is empty (its shape has a zero) */
  const int64_t* shape; /* `ndim` extents in elements, each 0 or more; copied; may be null if ndim is 0 */
  int32_t ndim;         /* 0 to 16; 0 means a single element */
  ckpt_dtype dtype;
  ckpt_memory memory;
  ckpt_capture capture;
} ckpt_tensor;
#define CKPT_TENSOR_INIT \
  { sizeof(ckpt_tensor), NULL, NULL, NULL, 0, CKPT_U8, CKPT_HOST, CKPT_OVERLAPPED }

/* Where a shard of a restored checkpoint came from. For a main shard in several parts: the highest of the values of its
 * loaded parts. */
typedef enum ckpt_tier {
  CKPT_TIER_NONE = 0,
  CKPT_TIER_LOCAL = 1,      /* this node's memory */
  CKPT_TIER_PEER = 2,       /* another node's memory */
  CKPT_TIER_DECODED = 3,    /* rebuilt from parity */
  CKPT_TIER_PERSISTENT = 4, /* storage */
  CKPT_TIER_LIVE = 5        /* the rank's tensors, which had that state already: nothing was loaded */
} ckpt_tier;

/* What ckpt_restore() did. */
typedef struct ckpt_restored {
  size_t struct_size;         /* in: sizeof(ckpt_restored); out: bytes that the library filled */
  int32_t found;              /* 1: a checkpoint was restored; 0: nothing is stored, so this is a fresh start */
  int32_t behind;             /* 1: a newer checkpoint was committed but is lost; `message` names it */
  int32_t status_unknown;     /* 1: nodes that did not answer may know of a newer commit; `message` names them */
  ckpt_tier main_tier;        /* where the main shard came from */
  ckpt_tier private_tier;     /* where the private shard came from */
  uint32_t stored_world_size; /* ranks of the job that captured it; 0 if not found */
  uint64_t incarnation;       /* which start of the job this is; the first is 1 */
  int64_t iteration;          /* the restored iteration; -1 if not found */
  int64_t next_iteration;     /* where the training loop continues: iteration + 1, or 0 if not found */
  uint64_t bytes;             /* bytes restored into the caller's tensors */
  double fetch_ms;            /* from the agent's receipt of the request until it had all bytes and had verified them */
  double load_ms;      /* from then on, until all bytes were in the caller's tensors and verified. Most of them may
                          have been copied before, while they arrived */
  const char* message; /* what a person should know about this restore, or ""; valid until the engine's next
                          ckpt_restore() or ckpt_close() */
  int32_t adopted;     /* 1: the checkpoint has no private shard for this rank, so the rank got rank 0's. Initialize
                          again what must differ between ranks, such as random numbers (docs/elastic.md) */
  uint32_t reserved;   /* 0 */
} ckpt_restored;
#define CKPT_RESTORED_INIT \
  { sizeof(ckpt_restored), 0, 0, 0, CKPT_TIER_NONE, CKPT_TIER_NONE, 0, 0, 0, 0, 0, 0, 0, NULL, 0, 0 }

/* How far a snapshot has come. Later stages have higher values. */
typedef enum ckpt_stage {
  CKPT_STAGE_NONE = 0,      /* not taken, waiting for a slot, discarded, or more than 256 iterations old */
  CKPT_STAGE_CAPTURING = 1, /* the copy is under way */
  CKPT_STAGE_CAPTURED = 2,  /* complete in this node's memory */
  CKPT_STAGE_COMMITTED = 3, /* every shard of the job has all its copies and parity */
  CKPT_STAGE_DURABLE = 4    /* the whole checkpoint is on storage (option `storage`) */
} ckpt_stage;

/* Counters and latest measurements of one engine. */
typedef struct ckpt_stats_t {
  size_t struct_size;          /* in: sizeof(ckpt_stats_t); out: bytes that the library filled */
  uint64_t snapshots;          /* snapshots that were taken */
  uint64_t skipped;            /* snapshots that all ranks skipped */
  uint64_t discarded;          /* snapshots that were taken and then discarded */
  uint64_t committed;          /* commits that this rank learned of in this incarnation */
  int64_t committed_iteration; /* newest iteration committed in this incarnation; -1 if none */
  int64_t durable_iteration;   /* newest iteration that this rank knows to be on storage; -1 if none */
  uint64_t bytes_captured;     /* total over all snapshots */
  double stall_ms;             /* time in the last ckpt_snapshot() and its ckpt_before_update() */
  double capture_ms;           /* last snapshot: from the ckpt_snapshot() call until captured */
  double commit_ms;            /* last commit: from the ckpt_snapshot() call until this rank learned of it */
  uint64_t gpu_staging_bytes;  /* GPU memory through which tensors are copied; 0 if none are in GPU memory. Less than
                                  the option gpu_staging_bytes if the GPU had less free memory */
  /* How much of main shards was copied when, in whole leaves of 64 KiB (docs/mechanisms.md). */
  uint64_t bubble_bytes;  /* in bubbles: between ckpt_bubble_begin() and ckpt_bubble_end() */
  uint64_t compute_bytes; /* while nothing waited for it */
  uint64_t update_bytes;  /* while ckpt_before_update(), or the update on a GPU, waited for it */
  uint64_t layered;       /* snapshots that were copied in layers, by a plan */
  uint64_t layered_late;  /* of them, those for which ckpt_before_update() had to wait */
} ckpt_stats_t;
#define CKPT_STATS_INIT \
  { sizeof(ckpt_stats_t), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }

/* Whether the job is protected, from best to worst. `ckptctl health` shows the same (docs/protection.md). */
typedef enum ckpt_protection {
  CKPT_PROTECTED = 0,
  CKPT_DEGRADED = 1,     /* the newest commit is recent enough, but something is wrong, e.g. too few copies */
  CKPT_NOT_PROTECTED = 2 /* nothing was committed for longer than allowed, or nobody can tell */
} ckpt_protection;

/* The verdict on the whole job, as far as this rank knows it. Texts end in a zero byte. A text with nothing to say is
 * "". */
typedef struct ckpt_health_t {
  size_t struct_size; /* in: sizeof(ckpt_health_t); out: bytes that the library filled */
  ckpt_protection state;
  uint32_t copies_now; /* fewest copies of any shard of the newest commit; counts the captured piece, like copies(N) */
  uint32_t copies_wanted;
  uint32_t parity_now; /* of the newest commit: how many more nodes each parity group can lose */
  uint32_t parity_wanted;
  int64_t since_ms;   /* how long this state has lasted */
  int64_t at_risk_ms; /* training time since the newest commit; it is lost if the job fails now */
  int64_t at_risk_iterations;
  int64_t allowed_ms;             /* time without a commit after which the job is not protected */
  uint64_t committed_incarnation; /* incarnation of the newest known commit; 0 if none */
  int64_t committed_iteration;    /* iteration of that commit; -1 if none */
  int64_t rank;                   /* the rank that holds up commits; -1 if no single one */
  char node[72];                  /* the node that holds up commits; "" if no single one */
  char reason[40];                /* one word for programs; docs/protection.md lists them */
  char text[512];                 /* the reason, for people */
  char advice[320];               /* what to do */
  char suspicion[320];            /* which ranks hold training up, for people (docs/jit.md) */
} ckpt_health_t;
#define CKPT_HEALTH_INIT                                                                              \
  {                                                                                                   \
    sizeof(ckpt_health_t), CKPT_PROTECTED, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, {0}, {0}, {0}, {0}, { 0 } \
  }

/* Receives the verdict on a thread of the engine. It must return soon and must not call ckpt_close(). `health` is valid
 * only during the call. `user` is the pointer that ckpt_on_health() got. */
typedef void (*ckpt_health_callback)(const ckpt_health_t* health, void* user);

/* Kinds of warnings: what a person should know although the call succeeded. */
typedef enum ckpt_warning {
  CKPT_WARNING_ENVIRONMENT = 1,      /* a variable CKPTENGINE_... names no option, or an old CKPT_... is set */
  CKPT_WARNING_GPU_MEMORY = 2,       /* less of the GPU's memory was free than gpu_staging_bytes; or the memory for
                                        checkpoints is pinned now, which the driver had refused before */
  CKPT_WARNING_FORGOTTEN_UPDATE = 3, /* snapshot discarded: ckpt_before_update() was not called after it */
  CKPT_WARNING_REPLICATION = 4,      /* checkpoints go from host to host, although GPU to GPU was asked for */
  CKPT_WARNING_TENSORS_CHANGED = 5,  /* after a rejoin, a tensor did not hold what was captured, and was loaded */
  CKPT_WARNING_INTERPOSE = 6,        /* libckptinterpose.so does not see NCCL's calls */
  CKPT_WARNING_RECOMPUTE = 7         /* with protection=recompute(n): updates are not repeated on other nodes */
} ckpt_warning;

/* Receives a warning on the training thread, within the call that noticed the cause. It must not call the engine.
 * `text` is valid only during the call. `user` is the pointer that ckpt_on_warning() got. */
typedef void (*ckpt_warning_callback)(ckpt_warning warning, const char* text, void* user);

/* Pass this where a function takes a stream and you have none. Null would be CUDA's legacy default stream. */
#define CKPT_NO_STREAM ((void*)~(uintptr_t)0)

/* The number of channels: ckpt_comm_begin() takes channels 0 to 7. */
#define CKPT_COMM_CHANNELS 8

/* Why the last call on this thread did not return CKPT_OK, or "" if it did. Valid until the thread's next call. */
CKPT_API const char* ckpt_last_error(void);

/* Returns 1 if `status` is an error. Returns 0 for CKPT_OK, CKPT_SKIPPED and CKPT_DISCARDED. */
CKPT_API int ckpt_is_error(ckpt_status status);

/* The meaning of a status in a few words, e.g. "a deadline passed". Never null. Valid for ever. */
CKPT_API const char* ckpt_status_string(ckpt_status status);

/* The version of the library, e.g. "0.1.0". Valid for ever. */
CKPT_API const char* ckpt_version(void);

/* The XXH3-64 digest of `size_bytes` bytes, with seed 0. Files on storage are checked with it (docs/formats.md). `data`
 * may be null if the size is 0. */
CKPT_API uint64_t ckpt_digest(const void* data, size_t size_bytes);

/* Creates the engine of one rank and stores it in `*engine`, or null on failure. Close it with ckpt_close().
 *
 * Connects to the node's agent and claims the rank. If no agent runs and the option `agent` is "auto", starts one.
 *
 * Options come from `options` (`count` of them), then from environment variables CKPTENGINE_<KEY>, then from the file
 * that the option `config` names. The first of these that has a key wins. An unknown key in `options` or in the file is
 * CKPT_ERR_INVALID. An unknown variable is only a warning.
 *
 * Common errors: CKPT_ERR_INVALID, CKPT_ERR_NO_AGENT, CKPT_ERR_CLAIMED, CKPT_ERR_TIMEOUT, CKPT_ERR_SYSTEM. */
CKPT_API ckpt_status ckpt_create(const ckpt_option* options, size_t count, ckpt_engine** engine);

/* Closes and frees the engine. Null is allowed. Finishes a pending capture as ckpt_before_update() does, and waits
 * until the last snapshot is committed, unless the job is not protected. The agent and everything captured stay. Waits
 * at most `close_timeout_ms` (an option), and 10 s more if a GPU hangs. With on_suspicion=halt or capture_every above
 * 1, it first captures the tensors if the last snapshot did not and no update has begun since. That takes as long as a
 * snapshot. So keep the tensors until the call returns. */
CKPT_API void ckpt_close(ckpt_engine* engine);

/* Sets the function that receives this engine's warnings. Without a function (null), the engine keeps the 16 newest
 * warnings. A new function receives the kept warnings before this call returns. */
CKPT_API ckpt_status ckpt_on_warning(ckpt_engine* engine, ckpt_warning_callback callback, void* user);

/* Registers a tensor or blob. The first tensor in GPU memory makes the engine reserve `gpu_staging_bytes` (an option)
 * on that GPU, or less if less is free. CKPT_ERR_INVALID: the name is taken, or `data` is null and the tensor is not
 * empty. */
CKPT_API ckpt_status ckpt_register_tensor(ckpt_engine* engine, const ckpt_tensor* tensor);

/* Tells the engine that a registered tensor's memory is now at `data`. Its dtype and shape stay. CKPT_ERR_INVALID
 * between ckpt_snapshot() and ckpt_before_update(). */
CKPT_API ckpt_status ckpt_move_tensor(ckpt_engine* engine, const char* name, void* data);

/* Forgets a tensor. A later registration may reuse its name with another dtype or shape. CKPT_ERR_INVALID between
 * ckpt_snapshot() and ckpt_before_update(). */
CKPT_API ckpt_status ckpt_unregister_tensor(ckpt_engine* engine, const char* name);

/* Stores in `*json` the layout of what is stored for this rank:
 *   {"found": bool, "iteration": n, "incarnation": n,
 *    "main": {name: {"dtype": "F32", "shape": [..], "data_offsets": [begin, end]}}, "private": {...},
 *    "shards": {"main": "rank0", "private": "rank0.private"}}
 * "shards" has the names of the two shards, if a checkpoint was found.
 * Call it before ckpt_restore() to learn which tensors to register. The call waits for all ranks, like ckpt_restore(),
 * so every rank must call one of the two. It may return while the bytes are still coming from other nodes. If the last
 * copy is lost before they are here, ckpt_restore() returns CKPT_ERR_LOST, or restores an older checkpoint that has
 * the same layout: compare result->iteration. Blocks at most `restore_timeout_ms` (an option). CKPT_ERR_INVALID if
 * the first call comes after ckpt_restore(). The engine owns the text. It is valid until the next call of this
 * function, until the next ckpt_restore() has returned, or until the engine is closed. */
CKPT_API ckpt_status ckpt_stored_layout(ckpt_engine* engine, const char** json);

/* Says that this rank can take over shards that other ranks captured. If all ranks say so, a job can go on from a
 * checkpoint that another number of ranks captured, also if its ranks have different main shards. The same holds if as
 * many ranks captured it, but named other main shards. Each shard then goes to one rank. Call it before
 * ckpt_stored_layout() and ckpt_restore(), in every incarnation of the job. CKPT_ERR_INVALID if it comes later.
 *
 * If the rank takes over shards, ckpt_stored_layout() tells them, with their layouts:
 *   {..., "main": {}, "private": {...}, "taken": {"rank0.private": {...}, "rank0": {...}, "rank3.private": {...}}}
 * The first one is the private shard of the rank that had this number, or of rank 0 if there was none. Read what you
 * need with ckpt_load_taken(), cut the tensors anew, and only then call ckpt_restore(). It loads nothing then, and its
 * result has the stored world size in stored_world_size. The checkpoint stays until the next one is committed. If you
 * cannot rebuild the tensors, close the engine instead of calling ckpt_restore(). Nothing stored is lost. */
CKPT_API ckpt_status ckpt_take_shards(ckpt_engine* engine);

/* Copies a shard that this rank takes over to `data` in host memory, and verifies it. `size_bytes` is the shard's
 * length: the largest end of its tensors' data_offsets. If the rank takes over no shards, give the name of its main or
 * private shard: the ranks may have kept the names of their shards, and cut the tensors anew. Call it after
 * ckpt_stored_layout() and before ckpt_restore(), which then loads nothing. Waits until all bytes are here and, if they
 * are damaged, for another copy, at most `restore_timeout_ms`. Errors: CKPT_ERR_INVALID (no such shard, or a wrong
 * length), and those of ckpt_restore(). */
CKPT_API ckpt_status ckpt_load_taken(ckpt_engine* engine, const char* shard, void* data, size_t size_bytes);

/* Restores the newest checkpoint that every rank of the job can get into the registered tensors, and verifies it. Every
 * rank calls it once in each incarnation that it takes part in, before its first snapshot. Set result->struct_size
 * first; CKPT_RESTORED_INIT does.
 *
 * `stream` is a cudaStream_t of the tensors' GPU. If all tensors are in host memory, pass CKPT_NO_STREAM. The engine
 * writes the tensors after the work that is already on `stream`. When the call returns, every stream sees the restored
 * tensors.
 *
 * Blocks for about `restore_timeout_ms` (an option) at most. That includes up to one minute for setting up GPU-to-GPU
 * replication. If nothing is stored, it returns CKPT_OK with found == 0: a fresh start, and no tensor has changed. If
 * a checkpoint was lost while it was being loaded, it returns CKPT_ERR_LOST instead. After an error the contents of the
 * tensors are undefined, but nothing stored is lost.
 *
 * Common errors: CKPT_ERR_INVALID, CKPT_ERR_MISMATCH, CKPT_ERR_LOST, CKPT_ERR_CORRUPT, CKPT_ERR_TIMEOUT,
 * CKPT_ERR_SUPERSEDED, CKPT_ERR_NO_AGENT, CKPT_ERR_SYSTEM. */
CKPT_API ckpt_status ckpt_restore(ckpt_engine* engine, void* stream, ckpt_restored* result);

/* Starts the snapshot of `iteration` and returns at once. Call it after all updates of that iteration. Iterations start
 * at restored.next_iteration, grow within an incarnation, and stay below 2^40. A snapshot that fails never harms
 * training. CKPT_SKIPPED: earlier snapshots are still being stored, so all ranks skip this one; or the option
 * capture_every leaves this iteration out. CKPT_ERR_HALTED: the job was halted; see ckpt_before_update().
 *
 * If all tensors are in host memory and no slot is free, the engine copies only the CKPT_SYNCHRONOUS tensors now. It
 * captures the others once a slot is free. If no slot becomes free before ckpt_before_update(), that call skips the
 * snapshot.
 *
 * `stream` is as in ckpt_restore(). The snapshot has the state after the work that is on `stream` now. If other streams
 * update tensors, let `stream` wait for them. Work put on `stream` afterwards may change CKPT_SYNCHRONOUS tensors in
 * GPU memory. If any tensor is in GPU memory, tensors in host memory are captured before the call returns. With
 * on_suspicion=halt, the call then also waits until the GPU has done what is on `stream` now. After an hour it returns
 * CKPT_ERR_TIMEOUT and has changed nothing: call it again. */
CKPT_API ckpt_status ckpt_snapshot(ckpt_engine* engine, int64_t iteration, void* stream);

/* Finishes the pending capture. Call it before CKPT_OVERLAPPED tensors change again. Only then does the agent learn of
 * the snapshot. If you forget this call, the next ckpt_snapshot() discards the pending snapshot and warns.
 *
 * CKPT_ERR_HALTED, with the option on_suspicion=halt: the job was halted, because a rank holds it up (docs/jit.md). Do
 * not change the tensors any more: their state is captured. Call ckpt_rejoin(), or close the engine and restart all
 * ranks. The call waits for that capture, and at most 60 s.
 *
 * If all tensors are in host memory, the call blocks until they are captured, at most one minute. `count` may be 0.
 * CKPT_DISCARDED: the capture failed or took too long. CKPT_SKIPPED: no slot has become free since ckpt_snapshot(), so
 * all ranks skip this snapshot.
 *
 * If any tensor is in GPU memory, the host does not wait, except with on_suspicion=halt: then it waits until the GPU
 * has done what is on `streams` now. After an hour the call returns CKPT_ERR_TIMEOUT and has changed nothing: do not
 * update, but call it again. The `count` streams in `streams` wait instead, on the GPU. Name every stream that changes
 * the tensors. The agent learns of the snapshot when its copy has ended. Until then ckpt_snapshot() returns
 * CKPT_SKIPPED. If the copy fails after this call, ckpt_wait() and ckpt_stats() show it. After an error that ends the
 * CUDA context, every later snapshot returns CKPT_ERR_SYSTEM. */
CKPT_API ckpt_status ckpt_before_update(ckpt_engine* engine, void* const* streams, size_t count);

/* Discards the pending capture: one that ckpt_snapshot() began and ckpt_before_update() has not finished. Use it when
 * tensors changed before ckpt_before_update() finished their capture. Does nothing if no capture is pending. */
CKPT_API ckpt_status ckpt_discard(ckpt_engine* engine);

/* With the option on_suspicion=halt, ckpt_before_update() also copies the CKPT_SYNCHRONOUS tensors. So if this rank is
 * killed within the update, its private shard of the coming iteration can be restored. Call this function before it if
 * these tensors do not hold the coming iteration's state yet. Then the next ckpt_before_update() does not copy them. */
CKPT_API ckpt_status ckpt_own_not_ready(ckpt_engine* engine);

/* Lets the next ckpt_snapshot() capture the whole state, whatever the option capture_every says. Use it for the last
 * snapshot of a job, or before something risky. All ranks have to call it before the same iteration. Otherwise that
 * iteration's checkpoint is not committed. */
CKPT_API ckpt_status ckpt_capture_next(ckpt_engine* engine);

/* An optimizer of torch.optim. */
typedef enum ckpt_optimizer {
  CKPT_ADAM = 0, /* AdamW and Adam */
  CKPT_SGD = 1
} ckpt_optimizer;

/* One parameter's gradient of an update that torch.optim's AdamW, Adam or SGD makes, and the factors of its step, as
 * torch names them. The parameter and its moments are registered tensors: float32, CKPT_OVERLAPPED, and with `elements`
 * elements each. The library copies what it needs. docs/mechanisms.md says which updates can be repeated. */
typedef struct ckpt_gradient_t {
  size_t struct_size;                /* sizeof(ckpt_gradient_t) */
  const char* parameter;             /* names of registered tensors */
  const char* first_moment;          /* exp_avg; of SGD: momentum_buffer, or null without momentum */
  const char* second_moment;         /* exp_avg_sq; of SGD: null */
  const char* largest_second_moment; /* max_exp_avg_sq; null without amsgrad */
  const void* data;                  /* the gradient, as the update reads it: reduced, unscaled, clipped */
  uint64_t elements;                 /* of the gradient, the parameter and each moment */
  ckpt_dtype dtype;                  /* of the gradient: CKPT_F32 or CKPT_BF16 */
  int32_t decoupled_weight_decay;    /* 1: AdamW */
  int32_t maximize;
  int32_t cpu_has_fma; /* 0 if torch.backends.cpu.get_cpu_capability() is "DEFAULT", 1 if it is AVX2 or AVX512 */
  double step;         /* of Adam: number of this step, which is state["step"] after the update */
  double learning_rate;
  double beta1;
  double beta2;
  double epsilon;
  double weight_decay;
  const char* torch_version; /* for people; may be null */
  ckpt_optimizer optimizer;
  int32_t is_unfused; /* 0: fused=True. 1: foreach=True, or neither */
  ckpt_memory memory; /* of `data`. CKPT_DEVICE: torch 2.11 or newer makes the update on the GPU */
  int32_t nesterov;
  void* stream; /* with CKPT_DEVICE: where the gradient is ready, and where the update will be. One of the streams that
                   ckpt_before_update() was called with */
  const char* step_count; /* if state["step"] is on the GPU: its name, a registered float32 tensor of one element, as of
                             fused Adam. `step` is not used then */
  double momentum;
  double dampening;
} ckpt_gradient_t;
#define CKPT_GRADIENT_INIT                                                                                             \
  {                                                                                                                    \
    sizeof(ckpt_gradient_t), NULL, NULL, NULL, NULL, NULL, 0, CKPT_F32, 0, 0, 0, 0, 0, 0, 0, 0, 0, NULL, CKPT_ADAM, 0, \
        CKPT_HOST, 0, NULL, NULL, 0, 0                                                                                 \
  }

/* Stores 1 in `*wants` if gradients of the coming update are of use, otherwise 0. They are with the option
 * protection=recompute(n) if the last ckpt_before_update() has finished a capture. Does not wait. */
CKPT_API ckpt_status ckpt_wants_gradients(ckpt_engine* engine, int32_t* wants);

/* With the option protection=recompute(n): gives the gradient of one parameter. Nodes that hold a copy of the previous
 * checkpoint then repeat the update, and need not fetch the next checkpoint (docs/mechanisms.md). Call it for each
 * parameter that the update changes, between ckpt_before_update() and the update. Exactly one update may follow before
 * the next ckpt_snapshot(); otherwise nodes find other bytes than this rank has, and fetch the checkpoint in full. Give
 * no gradient of an update that creates the moments.
 *
 * Copies the gradient before it returns. On a GPU, the copy is enqueued on the gradient's stream, so work enqueued
 * there later may change the gradient. Does nothing if gradients are of no use now. CKPT_SKIPPED: this update cannot be
 * repeated; ckpt_last_error() says why, and a warning does once. CKPT_ERR_INVALID: a name is not registered, sizes or
 * types differ, a parameter was given twice, or a capture is under way. The update cannot be repeated then. */
CKPT_API ckpt_status ckpt_add_gradient(ckpt_engine* engine, const ckpt_gradient_t* gradient);

/* What ckpt_wait_halt() says about the halt. */
typedef struct ckpt_halt_t {
  size_t struct_size;   /* in: sizeof(ckpt_halt_t); out: bytes that the library filled */
  int32_t captured;     /* 1: this rank's state of `iteration` is captured; 0: it cannot be, and `text` says why */
  uint32_t reserved;    /* 0 */
  uint64_t incarnation; /* the halted incarnation */
  int64_t iteration;    /* the newest whose update this rank has finished; -1 if none */
  char text[512];       /* for people; ends in a zero byte */
} ckpt_halt_t;
#define CKPT_HALT_INIT                      \
  {                                         \
    sizeof(ckpt_halt_t), 0, 0, 0, -1, { 0 } \
  }

/* Waits up to `timeout_ms` until the job is halted and this rank is frozen (docs/jit.md). Any thread may call it, also
 * while the training thread hangs in a communication. Set halt->struct_size first; CKPT_HALT_INIT does.
 *
 * CKPT_OK: the job is halted, and this rank is captured or cannot be. From now on the training thread may be
 * interrupted. Further calls return CKPT_OK at once, until ckpt_rejoin(). A rank within an update is not frozen before
 * its ckpt_snapshot(). CKPT_ERR_TIMEOUT: `timeout_ms` has passed. CKPT_ERR_INVALID: without the option
 * on_suspicion=halt no rank is ever halted. No call may be under way when the engine is closed. */
CKPT_API ckpt_status ckpt_wait_halt(ckpt_engine* engine, int64_t timeout_ms, ckpt_halt_t* halt);

/* Says that a communication of this rank has failed although no halt interrupted it, for example because a peer's
 * connection was closed. The leader then halts the job at once, and need not wait for a deadline. No rank is suspected
 * because of it. Call it on the training thread, before ckpt_wait_halt(). `text` is for people: agents log its first
 * 500 bytes. The call waits for the node's agent, at most 10 s. It does nothing if this rank is halted already.
 *
 * CKPT_ERR_INVALID: `text` is null, the option on_suspicion is not halt, or ckpt_restore() was not called. */
CKPT_API ckpt_status ckpt_report_trouble(ckpt_engine* engine, const char* text);

/* Joins the next incarnation of the halted job, in the same process. Call it on the training thread, after
 * ckpt_wait_halt() or CKPT_ERR_HALTED. No communication of the halted incarnation may still change registered tensors.
 * Afterwards call ckpt_restore(), then train on as after the first restore. Registered tensors stay registered. Between
 * the two calls they may be moved, unregistered, and others registered.
 *
 * The call waits for the capture of this rank, at most 60 s, and for the node's agent, about twice as long as the
 * option claim_timeout_ms says. Only ckpt_restore() waits for other ranks. A ckpt_wait() for a snapshot of the halted
 * incarnation returns CKPT_ERR_SUPERSEDED.
 *
 * CKPT_ERR_INVALID: the rank is not halted, or uses the option replication=gpu. Nothing changes then. After any other
 * error the job is still halted: call it again, or close the engine and restart the rank. Common ones:
 * CKPT_ERR_NO_AGENT, CKPT_ERR_CLAIMED (another process has taken over the rank), CKPT_ERR_TIMEOUT. */
CKPT_API ckpt_status ckpt_rejoin(ckpt_engine* engine);

/* Marks the begin and end of one communication of training: a collective, a send or a receive. The engine then keeps
 * checkpoint traffic out of its way, and the agent learns when the network is idle.
 *
 * Call ckpt_comm_end() once for each ckpt_comm_begin(), with the same channel, from any thread. Communications that
 * overlap, as those of several process groups do, need different channels. On one channel they end in the order in
 * which they began. Each ckpt_snapshot() call ends an iteration, whatever it returns. Before ckpt_restore() these calls
 * do nothing. They never block and make no system call. CKPT_ERR_INVALID: the channel is out of range, or nothing has
 * begun on it. Nothing changes then.
 *
 * With CKPT_NO_STREAM, the communication begins and ends with these calls. For one that is put on a CUDA stream, as
 * NCCL's are, name that stream. The communication then begins when the GPU reaches the next work on it, and ends when
 * the GPU has finished the work already on it. Neither the host nor the stream waits. Name a stream in both calls or in
 * neither. The two may differ: then let the stream of the end wait for the communication. If no tensor was in GPU
 * memory at ckpt_restore(), a stream means the same as CKPT_NO_STREAM. Calls captured into a CUDA graph are not seen:
 * put them around the graph's launch. */
CKPT_API ckpt_status ckpt_comm_begin(ckpt_engine* engine, uint32_t channel, void* stream);
CKPT_API ckpt_status ckpt_comm_end(ckpt_engine* engine, uint32_t channel, void* stream);

/* Marks the begin and end of a bubble: a time in which training waits for other ranks, and its device computes nothing.
 * With the option layered_capture, state is copied in bubbles as far as possible. ckpt_comm_begin() does not say that
 * training waits: a communication may overlap computation.
 *
 * With CKPT_NO_STREAM, for training on the CPU: put both calls around a receive or collective that blocks, and around a
 * wait for one. Call them on the training thread. If a tensor is in GPU memory, these calls do nothing: a wait of the
 * host says nothing about what the GPU does.
 *
 * For training on a GPU, name the stream on which it computes, the one of ckpt_snapshot(). Put both calls around what
 * makes this stream wait for other ranks: a collective on the stream itself, or the wait for one on another stream. The
 * bubble begins when the GPU has finished the work that is on the stream at the first call. It ends when the GPU has
 * finished the work that is on it at the second call. Neither the host nor the stream waits for the marks. Bubbles on
 * other streams, and before the first ckpt_snapshot(), are not recorded. Any thread may call. If no tensor is in GPU
 * memory, a stream means the same as CKPT_NO_STREAM. Calls captured into a CUDA graph are not seen.
 *
 * Pairs may be nested: then the outer one counts. Before ckpt_restore() nothing is recorded. ckpt_snapshot() ends a
 * bubble that still goes on. These calls never block. Without a stream they make no system call, except one futex wake
 * if a copy waits for the bubble. CKPT_ERR_INVALID: ckpt_bubble_end() has no ckpt_bubble_begin() before it. Nothing
 * changes then. */
CKPT_API ckpt_status ckpt_bubble_begin(ckpt_engine* engine, void* stream);
CKPT_API ckpt_status ckpt_bubble_end(ckpt_engine* engine, void* stream);

/* Between ckpt_pause() and ckpt_resume(), training does something other than iterations, e.g. an evaluation. Meanwhile
 * the agent does not suspect this rank to hang (docs/jit.md). `name` is for people; the engine keeps its first 32
 * bytes. Pauses may be nested: call ckpt_resume() once for each. Before ckpt_restore() these calls do nothing. They
 * never block and make no system call. CKPT_ERR_INVALID: `name` is null, or no pause has begun. Nothing changes then.
 */
CKPT_API ckpt_status ckpt_pause(ckpt_engine* engine, const char* name);
CKPT_API ckpt_status ckpt_resume(ckpt_engine* engine);

/* Stores in `*stage` how far the snapshot of `iteration` has come. Iterations are those of the incarnation that this
 * process restored last. Does not wait. */
CKPT_API ckpt_status ckpt_snapshot_stage(ckpt_engine* engine, int64_t iteration, ckpt_stage* stage);

/* Waits up to `timeout_ms` until the snapshot of `iteration`, or a newer one, has reached `stage`. It never finishes a
 * capture: for stages after CKPT_STAGE_CAPTURING, call ckpt_before_update() first. CKPT_STAGE_CAPTURING is reached once
 * the snapshot has a slot. CKPT_STAGE_DURABLE can take long, because the options storage_every and storage_interval_s
 * decide which checkpoints go to storage.
 *
 * CKPT_ERR_TIMEOUT: `timeout_ms` has passed. CKPT_SKIPPED, CKPT_DISCARDED, CKPT_ERR_SUPERSEDED, or what ckpt_snapshot()
 * returned for this iteration: the snapshot will never reach `stage`. CKPT_ERR_INVALID: a negative iteration or an
 * unknown stage. */
CKPT_API ckpt_status ckpt_wait(ckpt_engine* engine, int64_t iteration, ckpt_stage stage, int64_t timeout_ms);

/* Fills `*stats`. Does not wait. Set stats->struct_size first; CKPT_STATS_INIT does. */
CKPT_API ckpt_status ckpt_stats(ckpt_engine* engine, ckpt_stats_t* stats);

/* Fills `*health` with the verdict whether the job is protected. The agents judge. If this node's agent is gone or
 * frozen, the engine judges by itself. The verdict is at most half a second old. Does not wait. Set health->struct_size
 * first; CKPT_HEALTH_INIT does. */
CKPT_API ckpt_status ckpt_health(ckpt_engine* engine, ckpt_health_t* health);

/* Sets the function that is called when the verdict or the suspicion changes, and once a minute while the job is
 * degraded or not protected. Null: no function. The call comes at once if the job becomes protected or not protected,
 * or if the suspicion changes. Any other change must last two seconds, and is reported at the earliest 10 s after the
 * last call. When this call returns, the earlier callback is not running, unless it made this call itself. */
CKPT_API ckpt_status ckpt_on_health(ckpt_engine* engine, ckpt_health_callback callback, void* user);

#ifdef __cplusplus
}
#endif

#endif /* CKPTENGINE_CKPTENGINE_H */
