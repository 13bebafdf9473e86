/* ckptengine: the C ABI.
 *
 * An engine belongs to one rank (one training process, one device). It captures the rank's registered state once per
 * iteration into memory that the node's agent owns, where peers copy it from, and brings back after a failure the
 * newest state that every rank can get. See GEMINI (SOSP'23) sections 3-6, REFT section 4.
 *
 * Rules that hold for every function:
 *  - It returns a status; on failure ckpt_last_error() holds one sentence that says what, where and what to do next.
 *  - It never aborts, exits, prints or installs a signal handler, and no C++ exception leaves it.
 *  - Every wait has a deadline.
 *  - An engine is used by one thread at a time (the training thread), except ckpt_comm_begin(), ckpt_comm_end(), these
 *    two on CUDA streams, ckpt_wait(), ckpt_ticket_state(), ckpt_stats(), ckpt_health() and ckpt_on_health(), which any
 *    thread may call. Different engines are independent.
 *  - A tensor's memory stays the caller's and must live until it is moved, unregistered or the engine is closed.
 *  - Sizes are in bytes, times in milliseconds.
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

#ifdef __cplusplus
extern "C" {
#endif

typedef enum ckpt_status {
  CKPT_OK = 0,
  CKPT_ERR_INVALID = 1,    /* a bad argument, option or call order; nothing changed */
  CKPT_ERR_NO_AGENT = 2,   /* no agent answers on this node, or it belongs to another job */
  CKPT_ERR_CLAIMED = 3,    /* another live process holds this rank */
  CKPT_ERR_SUPERSEDED = 4, /* this process is no part of the job any more: start the rank again, with all others */
  CKPT_ERR_NO_SPACE = 5,   /* the arena does not fit memory, /dev/shm or the budget; or state outgrew its slot */
  CKPT_ERR_MISMATCH = 6,   /* world size or layout differs from what is stored (the first difference is named) */
  CKPT_ERR_LOST = 7,       /* beyond tolerance: state was committed and cannot be rebuilt from what is left */
  CKPT_ERR_TIMEOUT = 8,    /* a deadline passed; what was waited for is named */
  CKPT_ERR_SKIPPED = 9,    /* this iteration's snapshot was skipped (on all ranks); training is not affected */
  CKPT_ERR_DISCARDED = 10, /* this iteration's snapshot was discarded, for the reason in ckpt_last_error() */
  CKPT_ERR_CORRUPT = 11,   /* bytes did not match their digest and no other source was left */
  CKPT_ERR_SYSTEM = 12,    /* the operating system refused something; errno's text is in the message */
  CKPT_ERR_INTERNAL = 13   /* a bug in ckptengine: please report the message */
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
  CKPT_DEVICE = 1 /* CUDA device memory, of one GPU per engine; CKPT_ERR_INVALID where build or machine has no CUDA */
} ckpt_memory;

/* When a tensor is captured, and with it which of the rank's two shards it belongs to. */
typedef enum ckpt_capture {
  CKPT_OVERLAPPED = 0, /* the rank's main shard: copied while training goes on, until before_update() */
  CKPT_AT_ONCE = 1     /* the rank's private shard: small state that changes before the update (BatchNorm statistics,
                          RNG, counters), copied before ckpt_snapshot() returns */
} ckpt_capture;

typedef struct ckpt_engine ckpt_engine;

/* One option: a key of docs/options.md and its value as text. */
typedef struct ckpt_option {
  const char* key;
  const char* value;
} ckpt_option;

/* A tensor of the caller, contiguous in row-major order. `shape` is copied. An empty tensor (a zero in shape) may have
 * a null `data`. */
typedef struct ckpt_tensor {
  const char* name; /* UTF-8, unique within the rank, 1..4096 bytes */
  void* data;
  ckpt_dtype dtype;
  const int64_t* shape; /* `ndim` non-negative extents, in elements; may be null when ndim is 0 */
  int32_t ndim;         /* 0..16; 0 is a single element */
  ckpt_memory memory;
  ckpt_capture capture;
} ckpt_tensor;

/* The tiers a part of a restored state came from. */
typedef enum ckpt_tier {
  CKPT_TIER_NONE = 0,
  CKPT_TIER_LOCAL = 1,     /* this node's memory */
  CKPT_TIER_PEER = 2,      /* another node's memory */
  CKPT_TIER_DECODED = 3,   /* rebuilt from parity */
  CKPT_TIER_PERSISTENT = 4 /* storage */
} ckpt_tier;

/* What ckpt_restore() did. */
typedef struct ckpt_restored {
  int32_t found;          /* 1: state was restored; 0: nothing is stored, a fresh start */
  int32_t behind;         /* 1: a newer version was committed but is lost; the message in ckpt_last_error() says so */
  int32_t status_unknown; /* 1: nodes that did not answer might know of a newer commit */
  ckpt_tier main_tier;    /* where the main shard came from */
  ckpt_tier private_tier; /* where the private shard came from */
  uint64_t incarnation;   /* number of the current life of the job, 1 is the first */
  int64_t iteration;      /* the restored iteration, -1 when not found */
  int64_t next_iteration; /* iteration + 1, or 0 when not found: where the training loop goes on */
  uint64_t bytes;         /* restored into the caller's tensors */
  double fetch_ms;        /* until the agent had the bytes on this node, verified */
  double load_ms;         /* copying and verifying them into the caller's tensors */
} ckpt_restored;

/* How far a snapshot has come. The order is that of progress. */
typedef enum ckpt_stage {
  CKPT_STAGE_NONE = 0, /* not taken, or forgotten by now */
  CKPT_STAGE_CAPTURING = 1,
  CKPT_STAGE_CAPTURED = 2,  /* whole in this node's arena */
  CKPT_STAGE_COMMITTED = 3, /* every shard of the job has all the copies that its placement asks for */
  CKPT_STAGE_DURABLE = 4    /* on persistent storage */
} ckpt_stage;

/* Counters and the last measurements of one engine. */
typedef struct ckpt_stats_t {
  uint64_t snapshots;          /* ckpt_snapshot() calls that took a slot */
  uint64_t skipped;            /* job-wide skips that this rank saw */
  uint64_t discarded;          /* snapshots discarded with an error */
  uint64_t committed;          /* commits heard of in this life */
  int64_t committed_iteration; /* newest committed iteration of this life, -1 if none */
  uint64_t bytes_captured;     /* in all */
  double stall_ms;             /* blocked in the last snapshot() and its before_update() */
  double capture_ms;           /* last snapshot: from the call until captured */
  double commit_ms;            /* last commit: from the snapshot() call until this rank heard of it */
  uint64_t gpu_staging_bytes;  /* device memory that copies pass through; less than the option says where the GPU had
                                  less free, 0 without tensors there */
} ckpt_stats_t;

/* Whether the job is protected: ckptctl health says the same (docs/protection.md). In rising order of trouble. */
typedef enum ckpt_protection {
  CKPT_PROTECTED = 0,
  CKPT_DEGRADED = 1,     /* checkpoints are committed, or were a moment ago, with less than was asked for */
  CKPT_NOT_PROTECTED = 2 /* nothing was committed for longer than allowed, or nobody can tell */
} ckpt_protection;

/* The verdict on the whole job, as far as it is known to this trainer. Texts end in a zero byte and are "" where there
 * is nothing to say. New members come at the end. */
typedef struct ckpt_health_t {
  size_t struct_size; /* set it to sizeof(ckpt_health_t); afterwards: how much of it was filled */
  ckpt_protection state;
  uint32_t copies_now; /* of the newest commit: fewest copies of any shard */
  uint32_t copies_wanted;
  uint32_t parity_now; /* losses that each parity group can still take */
  uint32_t parity_wanted;
  int64_t since_ms;   /* so long the state has been the same */
  int64_t at_risk_ms; /* work since the newest commit */
  int64_t at_risk_iterations;
  int64_t allowed_ms;             /* without a commit, before the job is not protected */
  uint64_t committed_incarnation; /* newest commit that is known of; 0: none */
  int64_t committed_iteration;    /* -1: none */
  int64_t rank;                   /* that holds commits up, -1: none in particular */
  char node[72];                  /* likewise */
  char reason[40];                /* a word for programs, as docs/protection.md lists them */
  char text[512];                 /* why, for people */
  char advice[320];               /* what to do */
} ckpt_health_t;

/* Called on a thread of the engine's; `health` is valid during the call. It must return soon, and must not call
 * ckpt_close(). */
typedef void (*ckpt_health_callback)(const ckpt_health_t* health, void* user);

/* One sentence about the last failure on this thread ("" if none). Valid until the thread's next call. */
CKPT_API const char* ckpt_last_error(void);

/* "0.1.0" */
CKPT_API const char* ckpt_version(void);

/* Creates the engine of one rank: reads options from `options`, then the environment (CKPT_<KEY>), then the file named
 * by the option `config`; the first that names a key wins, an unknown key is refused. Connects to the node's agent (and
 * starts one where the option `agent` is "auto"), and claims the rank. */
CKPT_API ckpt_status ckpt_create(const ckpt_option* options, size_t count, ckpt_engine** engine);

/* Ends the engine and frees it; null is fine. Finishes a pending capture as ckpt_before_update() does. The agent and
 * everything captured stay. Waits at most the option `close_timeout_ms`, and 10 s more where a GPU is hung. */
CKPT_API void ckpt_close(ckpt_engine* engine);

/* Registers a tensor or blob. A second registration under one name is CKPT_ERR_INVALID, and so is a null with a size.
 * The first one in device memory makes room there; where the GPU has less than gpu_staging_bytes, ckpt_last_error()
 * says so with CKPT_OK. */
CKPT_API ckpt_status ckpt_register_tensor(ckpt_engine* engine, const ckpt_tensor* tensor);

/* Tells that a registered tensor's memory is now at `data` (its dtype and shape are unchanged). Not between
 * ckpt_snapshot() and ckpt_before_update(). */
CKPT_API ckpt_status ckpt_move_tensor(ckpt_engine* engine, const char* name, void* data);

/* Forgets a tensor; a later registration may use its name with another dtype or shape. Not between ckpt_snapshot()
 * and ckpt_before_update(). */
CKPT_API ckpt_status ckpt_unregister_tensor(ckpt_engine* engine, const char* name);

/* The layout of this rank's stored state as JSON: {"found": bool, "iteration": n, "incarnation": n,
 *  "main": {name: {"dtype": "F32", "shape": [..], "data_offsets": [begin, end]}}, "private": {...}}.
 * Takes part in the job's restore decision as ckpt_restore() does, so every rank calls one of the two. `*json` stays
 * valid until the engine is closed. */
CKPT_API ckpt_status ckpt_stored_layout(ckpt_engine* engine, const char** json);

/* Brings back the newest version that every rank of the job can get, into the registered tensors, verified. All ranks
 * of a life call it, before their first snapshot. Blocks at most `restore_timeout_ms`, with path=device a minute more.
 * On failure the tensors' contents are undefined, but nothing stored is lost. CKPT_OK with found == 0 is a fresh start.
 */
CKPT_API ckpt_status ckpt_restore(ckpt_engine* engine, ckpt_restored* result);

/* Starts the snapshot of `iteration`, after all of its updates, and returns at once. Iterations grow strictly.
 * CKPT_ERR_SKIPPED and CKPT_ERR_DISCARDED leave training unharmed; so does every other error. */
CKPT_API ckpt_status ckpt_snapshot(ckpt_engine* engine, int64_t iteration);

/* Call before the next change of the registered CKPT_OVERLAPPED tensors: blocks until they are captured, and makes the
 * snapshot known to the agent. A forgotten call is noticed at the next snapshot, which discards the one before it. */
CKPT_API ckpt_status ckpt_before_update(ckpt_engine* engine);

/* Gives up the capture that ckpt_snapshot() began and ckpt_before_update() has not ended, which is never made known:
 * for state that was changed too early. Without effect where none is pending. */
CKPT_API ckpt_status ckpt_discard(ckpt_engine* engine);

/* Call around each communication of training (a collective, a send, a receive): checkpoint traffic keeps out of its
 * way, and learns from iterations when the network is idle. One ckpt_comm_end() for each ckpt_comm_begin(), of the same
 * stream; any threads. Streams, 0 to CKPT_COMM_STREAMS - 1, are communications that run beside each other, as those of
 * CUDA streams or process groups do: those of one stream are taken to end in the order in which they began. An
 * iteration ends with each ckpt_snapshot(), whatever comes of it. Before ckpt_restore() these do nothing. They never
 * block, and make no system call. CKPT_ERR_INVALID for a stream out of range, and for an end without a begin; nothing
 * is changed then. */
#define CKPT_COMM_STREAMS 8
CKPT_API ckpt_status ckpt_comm_begin(ckpt_engine* engine, uint32_t stream);
CKPT_API ckpt_status ckpt_comm_end(ckpt_engine* engine, uint32_t stream);

/* The same three for state in CUDA device memory, of one GPU for each engine. A stream is a cudaStream_t (a CUstream)
 * of that GPU; null is the legacy default stream, which is also what the functions above take for it.
 *
 * ckpt_restore_on() comes after what is on `stream`, and returns when the tensors hold the state, for every stream.
 *
 * ckpt_snapshot_on() captures the state as it is after what is on `stream` at this moment: let it wait for other
 * streams that update. What is enqueued on `stream` afterwards may change the CKPT_AT_ONCE tensors. Tensors in host
 * memory are captured when it returns, CKPT_OVERLAPPED ones too.
 *
 * ckpt_before_update_on() lets what is enqueued on the `count` streams afterwards change the CKPT_OVERLAPPED tensors,
 * and whatever waits for that; name every stream that writes them. The host does not wait: the streams do, on the GPU.
 * The snapshot becomes known to the agent when its copy has ended; until then ckpt_snapshot() is CKPT_ERR_SKIPPED. A
 * copy that fails after this call is told by ckpt_wait() and ckpt_stats(); after an error that ends a CUDA context
 * every later snapshot is refused with CKPT_ERR_SYSTEM, and training goes on as far as CUDA lets it. */
CKPT_API ckpt_status ckpt_restore_on(ckpt_engine* engine, void* stream, ckpt_restored* result);
CKPT_API ckpt_status ckpt_snapshot_on(ckpt_engine* engine, int64_t iteration, void* stream);
CKPT_API ckpt_status ckpt_before_update_on(ckpt_engine* engine, void* const* streams, size_t count);

/* As ckpt_comm_begin() and ckpt_comm_end(), for communications that are enqueued on CUDA streams, as NCCL's are: one
 * has begun when the GPU gets to what is enqueued on `on` next, and has ended when it has done what was enqueued there
 * before. Neither the host nor a stream waits. `on` is a stream as above, and may differ between begin and end: let the
 * one of the end wait for the communication. The GPU turns the gate itself, and iterations end when it gets to
 * ckpt_snapshot_on(). Where there is no tensor in device memory when ckpt_restore() is called, or the GPU cannot do it,
 * these are the two above. What is captured into a CUDA graph is not seen: call them around its launch. */
CKPT_API ckpt_status ckpt_comm_begin_on(ckpt_engine* engine, uint32_t stream, void* on);
CKPT_API ckpt_status ckpt_comm_end_on(ckpt_engine* engine, uint32_t stream, void* on);

/* How far the snapshot of `iteration` has come. */
CKPT_API ckpt_status ckpt_ticket_state(ckpt_engine* engine, int64_t iteration, ckpt_stage* stage);

/* Waits until the snapshot of `iteration` (or a newer one) has reached `stage`, at most `timeout_ms`. Never finishes a
 * capture by itself: call ckpt_before_update() first. CKPT_ERR_TIMEOUT, or CKPT_ERR_SKIPPED / CKPT_ERR_DISCARDED when
 * it will never get there. */
CKPT_API ckpt_status ckpt_wait(ckpt_engine* engine, int64_t iteration, ckpt_stage stage, int64_t timeout_ms);

CKPT_API ckpt_status ckpt_stats(ckpt_engine* engine, ckpt_stats_t* stats);

/* Whether the job is protected, as the agents judge; where this node's agent is gone or frozen the engine judges by
 * itself. At most half a second old. Takes no part in training: any thread, no wait. CKPT_ERR_INVALID where struct_size
 * is none that this library knows. */
CKPT_API ckpt_status ckpt_health(ckpt_engine* engine, ckpt_health_t* health);

/* Has `callback` called when the verdict changes, and once a minute while the job is not simply protected. What goes by
 * within two seconds is not told, unless the job is not protected. Null: nobody is called any more. When this returns,
 * an earlier callback is not running any more, unless it is where the call comes from. Any thread. */
CKPT_API ckpt_status ckpt_on_health(ckpt_engine* engine, ckpt_health_callback callback, void* user);

#ifdef __cplusplus
}
#endif

#endif /* CKPTENGINE_CKPTENGINE_H */
