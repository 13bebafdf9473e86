/* ckptengine: the C API.
 *
 * An engine belongs to one rank: one training process that drives one device. After each iteration it captures the
 * rank's registered tensors into memory that the node's agent owns. Other nodes copy them from there. After a failure
 * the engine brings back the newest checkpoint that every rank can get. See GEMINI (SOSP'23) sections 3-6 and REFT
 * section 4.
 *
 * Rules for every function:
 *  - It returns a status. For every status but CKPT_OK, ckpt_last_error() says what happened, why, and what to do.
 *  - It never aborts, exits, prints or installs a signal handler. No C++ exception leaves it.
 *  - Every wait has a deadline.
 *  - One thread at a time uses an engine: the training thread. Any thread may call ckpt_comm_begin(), ckpt_comm_end(),
 *    ckpt_wait(), ckpt_snapshot_stage(), ckpt_stats(), ckpt_health() and ckpt_on_health(). Engines are independent of
 *    each other.
 *  - The caller owns the memory of its tensors. It must stay until the tensor is moved or unregistered, or the engine
 *    is closed.
 *  - Sizes are in bytes, times in milliseconds.
 *
 * Structs that may grow begin with `struct_size`. Initialize them with the CKPT_..._INIT macro of their name. The
 * library fills, or reads, no more than struct_size says, so programs built with an older header keep working. New
 * members come at the end, new values at the end of an enum: expect values that your header does not name. docs/api.md
 * says what else may change, and when the SONAME does.
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

/* The checkpoint of this header; ckpt_version() is that of the library. */
#define CKPT_VERSION_MAJOR 0
#define CKPT_VERSION_MINOR 1
#define CKPT_VERSION_PATCH 0
/* 1.2.3 is 10203. */
#define CKPT_VERSION_NUMBER (CKPT_VERSION_MAJOR * 10000 + CKPT_VERSION_MINOR * 100 + CKPT_VERSION_PATCH)

#ifdef __cplusplus
extern "C" {
#endif

/* Below CKPT_ERR_INVALID nothing went wrong with the call: see ckpt_is_error(). */
typedef enum ckpt_status {
  CKPT_OK = 0,
  CKPT_SKIPPED = 1,   /* all ranks skip the snapshot of this iteration; training is not affected */
  CKPT_DISCARDED = 2, /* the snapshot of this iteration was discarded; training is not affected */

  CKPT_ERR_INVALID = 16,    /* a bad argument, option or order of calls; nothing changed */
  CKPT_ERR_NO_AGENT = 17,   /* no agent answers on this node, or it belongs to another job */
  CKPT_ERR_CLAIMED = 18,    /* another live process holds this rank */
  CKPT_ERR_SUPERSEDED = 19, /* this process belongs to an earlier incarnation: restart the rank with all others */
  CKPT_ERR_NO_SPACE = 20,   /* the arena does not fit memory, /dev/shm or the budget; or state outgrew its slot */
  CKPT_ERR_MISMATCH = 21,   /* world size or layout differs from what is stored; the first difference is named */
  CKPT_ERR_LOST = 22,       /* a committed checkpoint cannot be rebuilt from what is left */
  CKPT_ERR_TIMEOUT = 23,    /* a deadline passed; the message names what was waited for */
  CKPT_ERR_CORRUPT = 24,    /* bytes did not match their digest, and no other source was left */
  CKPT_ERR_SYSTEM = 25,     /* the operating system or the GPU refused something */
  CKPT_ERR_INTERNAL = 26    /* a bug in ckptengine: please report the message */
} ckpt_status;

/* Element types, with safetensors' names in comments. */
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

typedef enum ckpt_memory {
  CKPT_HOST = 0,
  CKPT_DEVICE = 1 /* memory of a CUDA GPU, one GPU per engine; CKPT_ERR_INVALID where there is no CUDA */
} ckpt_memory;

/* When a tensor is captured. This also decides which of the rank's two shards it belongs to. */
typedef enum ckpt_capture {
  CKPT_OVERLAPPED = 0, /* main shard: copied while training goes on, until ckpt_before_update() */
  CKPT_SYNCHRONOUS = 1 /* private shard: small state that changes before the update (BatchNorm statistics, random
                          number generators, counters), copied before ckpt_snapshot() returns */
} ckpt_capture;

typedef struct ckpt_engine ckpt_engine;

/* One option: a key of docs/options.md and its value as text. */
typedef struct ckpt_option {
  const char* key;
  const char* value;
} ckpt_option;

/* A tensor of the caller, contiguous in row-major order. */
typedef struct ckpt_tensor {
  size_t struct_size;   /* sizeof(ckpt_tensor) */
  const char* name;     /* UTF-8, unique within the rank, 1..4096 bytes; copied */
  void* data;           /* may be null where the tensor is empty (a zero in its shape) */
  const int64_t* shape; /* `ndim` non-negative extents, in elements; copied; may be null when ndim is 0 */
  int32_t ndim;         /* 0..16; 0 is a single element */
  ckpt_dtype dtype;
  ckpt_memory memory;
  ckpt_capture capture;
} ckpt_tensor;
#define CKPT_TENSOR_INIT \
  { sizeof(ckpt_tensor), NULL, NULL, NULL, 0, CKPT_U8, CKPT_HOST, CKPT_OVERLAPPED }

/* Where a part of a restored checkpoint came from. */
typedef enum ckpt_tier {
  CKPT_TIER_NONE = 0,
  CKPT_TIER_LOCAL = 1,     /* this node's memory */
  CKPT_TIER_PEER = 2,      /* another node's memory */
  CKPT_TIER_DECODED = 3,   /* rebuilt from parity */
  CKPT_TIER_PERSISTENT = 4 /* storage */
} ckpt_tier;

/* What ckpt_restore() did. */
typedef struct ckpt_restored {
  size_t struct_size;     /* sizeof(ckpt_restored); afterwards: how much of it was filled */
  int32_t found;          /* 1: a checkpoint was restored; 0: nothing is stored, a fresh start */
  int32_t behind;         /* 1: a newer checkpoint was committed but is lost; `message` names it */
  int32_t status_unknown; /* 1: nodes that did not answer might know of a newer commit; `message` names them */
  ckpt_tier main_tier;    /* where the main shard came from */
  ckpt_tier private_tier; /* where the private shard came from */
  uint32_t reserved;      /* 0 */
  uint64_t incarnation;   /* number of this start of the job, from 1 */
  int64_t iteration;      /* the restored iteration, -1 when not found */
  int64_t next_iteration; /* iteration + 1, or 0 when not found: where the training loop goes on */
  uint64_t bytes;         /* restored into the caller's tensors */
  double fetch_ms;        /* until the agent had the bytes on this node, verified */
  double load_ms;         /* copying and verifying them into the caller's tensors */
  const char* message;    /* what a person should know about it, "" if nothing; valid until the next ckpt_restore() of
                             this engine, or until it is closed */
} ckpt_restored;
#define CKPT_RESTORED_INIT \
  { sizeof(ckpt_restored), 0, 0, 0, CKPT_TIER_NONE, CKPT_TIER_NONE, 0, 0, 0, 0, 0, 0, 0, NULL }

/* How far a snapshot has come. The order is that of progress. */
typedef enum ckpt_stage {
  CKPT_STAGE_NONE = 0, /* not taken, or forgotten by now */
  CKPT_STAGE_CAPTURING = 1,
  CKPT_STAGE_CAPTURED = 2,  /* whole in this node's memory */
  CKPT_STAGE_COMMITTED = 3, /* every shard of the job has all the copies that were asked for */
  CKPT_STAGE_DURABLE = 4    /* the whole checkpoint is on storage (option `storage`) */
} ckpt_stage;

/* Counters and the last measurements of one engine. */
typedef struct ckpt_stats_t {
  size_t struct_size;          /* sizeof(ckpt_stats_t); afterwards: how much of it was filled */
  uint64_t snapshots;          /* ckpt_snapshot() calls that took a slot */
  uint64_t skipped;            /* snapshots that all ranks skipped */
  uint64_t discarded;          /* snapshots that were taken and then discarded */
  uint64_t committed;          /* commits that this rank learned of in this incarnation */
  int64_t committed_iteration; /* newest committed iteration of this incarnation, -1 if none */
  int64_t durable_iteration;   /* newest iteration that this rank knows to be on storage, -1 if none */
  uint64_t bytes_captured;     /* in all */
  double stall_ms;             /* blocked in the last ckpt_snapshot() and its ckpt_before_update() */
  double capture_ms;           /* last snapshot: from the call until captured */
  double commit_ms;            /* last commit: from the ckpt_snapshot() call until this rank learned of it */
  uint64_t gpu_staging_bytes;  /* GPU memory that copies pass through; 0 without tensors there; less than the option
                                  says where the GPU had less free */
} ckpt_stats_t;
#define CKPT_STATS_INIT \
  { sizeof(ckpt_stats_t), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }

/* Whether the job is protected: `ckptctl health` says the same (docs/protection.md). In rising order of trouble. */
typedef enum ckpt_protection {
  CKPT_PROTECTED = 0,
  CKPT_DEGRADED = 1,     /* checkpoints are committed, or were a moment ago, with fewer copies than asked for */
  CKPT_NOT_PROTECTED = 2 /* nothing was committed for longer than allowed, or nobody can tell */
} ckpt_protection;

/* The verdict on the whole job, as far as this rank knows it. Texts end in a zero byte and are "" where there is
 * nothing to say. */
typedef struct ckpt_health_t {
  size_t struct_size; /* sizeof(ckpt_health_t); afterwards: how much of it was filled */
  ckpt_protection state;
  uint32_t copies_now; /* of the newest commit: fewest copies of any shard */
  uint32_t copies_wanted;
  uint32_t parity_now; /* losses that each parity group can still take */
  uint32_t parity_wanted;
  int64_t since_ms;   /* how long the state has been the same */
  int64_t at_risk_ms; /* work since the newest commit */
  int64_t at_risk_iterations;
  int64_t allowed_ms;             /* without a commit, before the job is not protected */
  uint64_t committed_incarnation; /* newest known commit; 0: none */
  int64_t committed_iteration;    /* -1: none */
  int64_t rank;                   /* the rank that holds commits up, -1: none in particular */
  char node[72];                  /* likewise its node */
  char reason[40];                /* a word for programs, as docs/protection.md lists them */
  char text[512];                 /* why, for people */
  char advice[320];               /* what to do */
} ckpt_health_t;
#define CKPT_HEALTH_INIT                                                                         \
  {                                                                                              \
    sizeof(ckpt_health_t), CKPT_PROTECTED, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, {0}, {0}, {0}, { 0 } \
  }

/* Runs on a thread of the engine. `health` is valid during the call. It must return soon and must not call
 * ckpt_close(). */
typedef void (*ckpt_health_callback)(const ckpt_health_t* health, void* user);

/* Something that a person should know, while the call that noticed it succeeded. */
typedef enum ckpt_warning {
  CKPT_WARNING_ENVIRONMENT = 1,      /* a variable CKPTENGINE_... is no option, or an old CKPT_... is set */
  CKPT_WARNING_GPU_MEMORY = 2,       /* the GPU had less memory free than gpu_staging_bytes */
  CKPT_WARNING_FORGOTTEN_UPDATE = 3, /* a snapshot was discarded: ckpt_before_update() was not called after it */
  CKPT_WARNING_REPLICATION = 4       /* checkpoints cross the network from host memory, not from GPU to GPU */
} ckpt_warning;

/* Runs on the training thread, within the call that noticed it. It must not call the engine. `text` is valid during
 * the call. */
typedef void (*ckpt_warning_callback)(ckpt_warning warning, const char* text, void* user);

/* What a call says where the caller has no CUDA stream. (Null is CUDA's legacy default stream.) */
#define CKPT_NO_STREAM ((void*)~(uintptr_t)0)

/* ckpt_comm_begin() takes channels from 0 to this number less 1. */
#define CKPT_COMM_CHANNELS 8

/* Why the last call on this thread did not return CKPT_OK; "" if it did. Valid until the thread's next call. */
CKPT_API const char* ckpt_last_error(void);

/* Whether something went wrong: 0 for CKPT_OK, CKPT_SKIPPED and CKPT_DISCARDED. */
CKPT_API int ckpt_is_error(ckpt_status status);

/* What a status means, in a few words: "a deadline passed". Never null. */
CKPT_API const char* ckpt_status_string(ckpt_status status);

/* The library's checkpoint: "0.1.0". */
CKPT_API const char* ckpt_version(void);

/* Creates the engine of one rank. Options come from `options`, then from the environment (CKPTENGINE_<KEY>), then from
 * the file that the option `config` names; the first that names a key wins. Refuses unknown keys in `options` and in
 * the file; an unknown variable is a warning. Connects to the node's agent, claims the rank, and starts an agent where
 * none runs and the option `agent` is "auto". */
CKPT_API ckpt_status ckpt_create(const ckpt_option* options, size_t count, ckpt_engine** engine);

/* Ends the engine and frees it; null is fine. Finishes a pending capture as ckpt_before_update() does. The agent and
 * everything captured stay. Waits at most the option `close_timeout_ms`, and 10 s more where a GPU hangs. */
CKPT_API void ckpt_close(ckpt_engine* engine);

/* Calls `callback` for each warning of this engine; null: for none. At first it gets those that came before, the 16
 * newest. */
CKPT_API ckpt_status ckpt_on_warning(ckpt_engine* engine, ckpt_warning_callback callback, void* user);

/* Registers a tensor or blob. CKPT_ERR_INVALID for a name that is taken, or for a null with a size. The first tensor in
 * GPU memory makes the engine reserve gpu_staging_bytes there, or what is free. */
CKPT_API ckpt_status ckpt_register_tensor(ckpt_engine* engine, const ckpt_tensor* tensor);

/* Says that a registered tensor's memory is now at `data`; its dtype and shape are unchanged. Not between
 * ckpt_snapshot() and ckpt_before_update(). */
CKPT_API ckpt_status ckpt_move_tensor(ckpt_engine* engine, const char* name, void* data);

/* Forgets a tensor. A later registration may use its name with another dtype or shape. Not between ckpt_snapshot() and
 * ckpt_before_update(). */
CKPT_API ckpt_status ckpt_unregister_tensor(ckpt_engine* engine, const char* name);

/* The layout of this rank's stored state as JSON: {"found": bool, "iteration": n, "incarnation": n,
 *  "main": {name: {"dtype": "F32", "shape": [..], "data_offsets": [begin, end]}}, "private": {...}}.
 * Takes part in the job's restore decision as ckpt_restore() does, so every rank calls one of the two. `*json` stays
 * valid until the next ckpt_restore() has returned, or the engine is closed. */
CKPT_API ckpt_status ckpt_stored_layout(ckpt_engine* engine, const char** json);

/* Brings the newest checkpoint that every rank of the job can get into the registered tensors, verified. All ranks call
 * it, once in each incarnation that they take part in, before their first snapshot of that incarnation. Set
 * result->struct_size first: CKPT_RESTORED_INIT does.
 *
 * `stream` is a cudaStream_t of the tensors' GPU, or CKPT_NO_STREAM where all tensors are in host memory. The tensors
 * are written after what is on `stream`; they hold the checkpoint, for every stream, when this returns.
 *
 * Blocks at most `restore_timeout_ms`, with GPU-to-GPU replication a minute more. On failure the contents of the
 * tensors are undefined, but nothing stored is lost. CKPT_OK with found == 0 is a fresh start. */
CKPT_API ckpt_status ckpt_restore(ckpt_engine* engine, void* stream, ckpt_restored* result);

/* Starts the snapshot of `iteration`, after all of its updates, and returns at once. Iterations grow strictly within an
 * incarnation, from restored.next_iteration on. A snapshot that fails, for whatever reason, leaves training unharmed.
 *
 * `stream` as in ckpt_restore(). The snapshot is of the state after what is on `stream` now: let it wait for other
 * streams that update. What is enqueued on `stream` afterwards may change the CKPT_SYNCHRONOUS tensors in GPU memory.
 * Tensors in host memory are captured when this returns if others are in GPU memory. */
CKPT_API ckpt_status ckpt_snapshot(ckpt_engine* engine, int64_t iteration, void* stream);

/* Call it before the next change of CKPT_OVERLAPPED tensors. Makes the snapshot known to the agent. A forgotten call is
 * noticed by the next ckpt_snapshot(), which discards the snapshot before it.
 *
 * With all tensors in host memory it blocks until they are captured; `count` may be 0. With tensors in GPU memory the
 * host does not wait: the `count` streams do, on the GPU. Name every stream that changes the tensors. The snapshot
 * becomes known to the agent when its copy has ended; until then ckpt_snapshot() returns CKPT_SKIPPED. ckpt_wait() and
 * ckpt_stats() report a copy that fails after this call. After an error that ends a CUDA context, CKPT_ERR_SYSTEM
 * refuses every later snapshot. */
CKPT_API ckpt_status ckpt_before_update(ckpt_engine* engine, void* const* streams, size_t count);

/* Gives up the capture that ckpt_snapshot() began and ckpt_before_update() has not ended: for state that changed too
 * early. Without effect where none is pending. */
CKPT_API ckpt_status ckpt_discard(ckpt_engine* engine);

/* Call these around each communication of training (a collective, a send, a receive). Checkpoint traffic then keeps out
 * of its way, and the agent learns when the network is idle. Call ckpt_comm_end() once for each ckpt_comm_begin(), with
 * the same channel; from any thread. Communications that run beside each other, as those of process groups do, take
 * different channels: those of one channel end in the order in which they began. An iteration ends with each
 * ckpt_snapshot(), whatever its result. Before ckpt_restore() these do nothing. They never block, and make no system
 * call. CKPT_ERR_INVALID for a channel out of range, or an end without a begin; nothing is changed then.
 *
 * `stream` is CKPT_NO_STREAM for a communication that begins and ends with the calls. For one that is enqueued on a
 * CUDA stream, as NCCL's are, name that stream: the communication begins when the GPU gets to what is enqueued there
 * next, and ends when the GPU has done what was enqueued there before. Neither the host nor the stream waits. Begin and
 * end may name different streams, but both or neither must name one: let the stream of the end wait for the
 * communication. Where no tensor was in GPU memory when ckpt_restore() was called, a stream is taken for
 * CKPT_NO_STREAM. What is captured into a CUDA graph is not seen: call these around its launch. */
CKPT_API ckpt_status ckpt_comm_begin(ckpt_engine* engine, uint32_t channel, void* stream);
CKPT_API ckpt_status ckpt_comm_end(ckpt_engine* engine, uint32_t channel, void* stream);

/* How far the snapshot of `iteration` has come. Iterations are those of the incarnation that was restored last. */
CKPT_API ckpt_status ckpt_snapshot_stage(ckpt_engine* engine, int64_t iteration, ckpt_stage* stage);

/* Waits until the snapshot of `iteration`, or a newer one, has reached `stage`; at most `timeout_ms`. Never finishes a
 * capture by itself: call ckpt_before_update() first. Returns CKPT_ERR_TIMEOUT; or CKPT_SKIPPED or CKPT_DISCARDED when
 * the snapshot will never get there. The options storage_every and storage_interval_s decide which checkpoints go to
 * storage, so CKPT_STAGE_DURABLE can take long. */
CKPT_API ckpt_status ckpt_wait(ckpt_engine* engine, int64_t iteration, ckpt_stage stage, int64_t timeout_ms);

/* Set stats->struct_size first: CKPT_STATS_INIT does. */
CKPT_API ckpt_status ckpt_stats(ckpt_engine* engine, ckpt_stats_t* stats);

/* Whether the job is protected, as the agents judge. Where this node's agent is gone or frozen the engine judges by
 * itself. At most half a second old. Does not wait. Set health->struct_size first: CKPT_HEALTH_INIT does. */
CKPT_API ckpt_status ckpt_health(ckpt_engine* engine, ckpt_health_t* health);

/* Calls `callback` when the verdict changes, and once a minute while the job is not simply protected; null: for no
 * change. A change that is over within two seconds is left out, unless the job was not protected. When this returns, an
 * earlier callback does not run any more, unless it makes this call itself. */
CKPT_API ckpt_status ckpt_on_health(ckpt_engine* engine, ckpt_health_callback callback, void* user);

#ifdef __cplusplus
}
#endif

#endif /* CKPTENGINE_CKPTENGINE_H */
