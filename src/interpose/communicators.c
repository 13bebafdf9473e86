#define _GNU_SOURCE
#include "interpose/communicators.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>
#include <time.h>

#include "interpose/interface.h"
#include "interpose/objects.h"

#define EXPORT __attribute__((visibility("default")))
ckpt_interpose_attach_function ckpt_interpose_attach;
ckpt_interpose_detach_function ckpt_interpose_detach;
ckpt_interpose_abort_function ckpt_interpose_abort;
ckpt_interpose_calls_function ckpt_interpose_calls;
ckpt_interpose_static_nccl_function ckpt_interpose_static_nccl;

enum {
  communicators_max = 4096, /* more are neither marked nor aborted */
  streams_max = 16,         /* of communications of one communicator that are in progress */
  group_max = 64,           /* communications of a group that are marked: one for each stream */
  channels = 8,
  look_ms = 100,
  calls_end_ms = 1000, /* how long an abort waits for other calls on the communicator */
  own_abort_wait_ms = 10000
};

/* NOLINTNEXTLINE(readability-identifier-naming): named like structs of C */
enum state { unused, live, ending, aborting, aborted };

struct communicator {
  ncclComm_t handle;
  enum state state;
  uint32_t channel;
  uint32_t users; /* calls under way */
  uint32_t pending;
  cudaStream_t pending_on[streams_max]; /* marked communications that are not on their streams yet */
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER; /* for all below */
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static struct communicator table[communicators_max];
static uint32_t table_end; /* entries that were ever used */
static uint32_t made;      /* ever */
static uint64_t aborted_incarnation;
static bool is_stopping;

static pthread_rwlock_t engine_lock = PTHREAD_RWLOCK_INITIALIZER; /* for the engine; taken without the mutex */
static ckpt_interposed_engine attached;
static pthread_t watcher;
static bool has_watcher;

static atomic_uint_least64_t calls;

struct communication {
  ncclComm_t handle;
  cudaStream_t stream;
  uint32_t channel;
  bool is_marked;
};
static _Thread_local struct {
  uint32_t depth;
  uint32_t count;
  struct communication all[group_max];
} group;

static struct timespec in_ms(int64_t ms) {
  struct timespec at;
  clock_gettime(CLOCK_REALTIME, &at);
  at.tv_sec += ms / 1000;
  at.tv_nsec += ms % 1000 * 1000000;
  if (at.tv_nsec >= 1000000000) {
    ++at.tv_sec;
    at.tv_nsec -= 1000000000;
  }
  return at;
}

/* ---- The table; call with the mutex held ---- */

/* A live one first: NCCL may give a new communicator the address of one that has just been freed. */
static struct communicator* find(ncclComm_t handle) {
  struct communicator* found = NULL;
  for (uint32_t i = 0; i < table_end; ++i)
    if (table[i].state != unused && table[i].handle == handle && (found == NULL || table[i].state == live))
      found = &table[i];
  return found;
}

static struct communicator* free_entry(void) {
  for (uint32_t i = 0; i < table_end; ++i)
    if (table[i].state == unused) return &table[i];
  if (table_end < communicators_max) return &table[table_end++];
  for (uint32_t i = 0; i < table_end; ++i)
    if (table[i].state == aborted) return &table[i];
  return NULL;
}

static bool is_aborted(const struct communicator* entry) {
  return entry != NULL && (entry->state == aborting || entry->state == aborted);
}

static uint32_t count_aborting(void) {
  uint32_t count = 0;
  for (uint32_t i = 0; i < table_end; ++i) count += table[i].state == aborting ? 1 : 0;
  return count;
}

void communicator_made(ncclComm_t handle) {
  if (handle == NULL) return;
  pthread_mutex_lock(&mutex);
  struct communicator* entry = find(handle);
  if (entry == NULL || entry->state == aborting) entry = free_entry();
  if (entry != NULL && entry->state != live) {
    memset(entry, 0, sizeof *entry);
    entry->handle = handle;
    entry->state = live;
    entry->channel = made++ % channels;
  }
  pthread_mutex_unlock(&mutex);
}

/* One that is not in the table is nobody's business. */
static int use(ncclComm_t handle, uint32_t* channel) {
  pthread_mutex_lock(&mutex);
  struct communicator* const entry = find(handle);
  const bool is_refused = is_aborted(entry);
  if (entry != NULL && !is_refused) {
    ++entry->users;
    *channel = entry->channel;
  }
  pthread_mutex_unlock(&mutex);
  return is_refused ? ncclRemoteError : ncclSuccess;
}

int communicator_use(ncclComm_t handle) {
  uint32_t channel = 0;
  return use(handle, &channel);
}

void communicator_done(ncclComm_t handle) {
  pthread_mutex_lock(&mutex);
  struct communicator* const entry = find(handle);
  if (entry != NULL && entry->users > 0) --entry->users;
  pthread_cond_broadcast(&changed);
  pthread_mutex_unlock(&mutex);
}

/* ---- Marks ---- */

static bool mark_begin(uint32_t channel, cudaStream_t stream) {
  pthread_rwlock_rdlock(&engine_lock);
  const bool is_marked = attached.begin != NULL && attached.begin(attached.engine, channel, stream) != 0;
  pthread_rwlock_unlock(&engine_lock);
  return is_marked;
}

static void mark_end(uint32_t channel, cudaStream_t stream) {
  pthread_rwlock_rdlock(&engine_lock);
  if (attached.end != NULL) attached.end(attached.engine, channel, stream);
  pthread_rwlock_unlock(&engine_lock);
}

/* A communicator that does not block may not have put it on its stream yet. Returns false if there is no room to
 * remember that. */
static bool keep_pending(const struct communication* one) {
  pthread_mutex_lock(&mutex);
  struct communicator* const entry = find(one->handle);
  const bool has_room = entry != NULL && entry->pending < streams_max;
  if (has_room) entry->pending_on[entry->pending++] = one->stream;
  pthread_mutex_unlock(&mutex);
  return has_room;
}

static void end_one(const struct communication* one, int result) {
  if (one->is_marked && !(result == ncclInProgress && keep_pending(one))) mark_end(one->channel, one->stream);
  communicator_done(one->handle);
}

static _Thread_local struct communication single; /* outside of groups */

int communication_begin(ncclComm_t handle, cudaStream_t stream) {
  atomic_fetch_add(&calls, 1);
  if (group.depth > 0) {
    for (uint32_t i = 0; i < group.count; ++i)
      if (group.all[i].handle == handle && group.all[i].stream == stream) return ncclSuccess;
    struct communication one = {handle, stream, 0, false};
    if (group.count == group_max) return communicator_use(handle);
    const int refused = use(handle, &one.channel);
    if (refused == ncclSuccess) group.all[group.count++] = one;
    return refused;
  }
  single = (struct communication){handle, stream, 0, false};
  const int refused = use(handle, &single.channel);
  if (refused == ncclSuccess) single.is_marked = mark_begin(single.channel, stream);
  return refused;
}

void communication_end(ncclComm_t handle, cudaStream_t stream, int result) {
  if (group.depth == 0) {
    end_one(&single, result);
    return;
  }
  for (uint32_t i = 0; i < group.count; ++i)
    if (group.all[i].handle == handle && group.all[i].stream == stream) return; /* ends with the group */
  communicator_done(handle);
}

void group_start(void) { ++group.depth; }

void group_ending(void) {
  if (group.depth != 1) return;
  for (uint32_t i = 0; i < group.count; ++i)
    group.all[i].is_marked = mark_begin(group.all[i].channel, group.all[i].stream);
}

void group_ended(int result) {
  if (group.depth == 0 || --group.depth != 0) return;
  for (uint32_t i = 0; i < group.count; ++i) end_one(&group.all[i], result);
  group.count = 0;
}

void communications_are_enqueued(ncclComm_t handle) {
  cudaStream_t streams[streams_max];
  uint32_t count = 0, channel = 0;
  pthread_mutex_lock(&mutex);
  struct communicator* const entry = find(handle);
  if (entry != NULL) {
    channel = entry->channel;
    count = entry->pending;
    memcpy(streams, entry->pending_on, count * sizeof streams[0]);
    entry->pending = 0;
  }
  pthread_mutex_unlock(&mutex);
  for (uint32_t i = 0; i < count; ++i) mark_end(channel, streams[i]);
}

/* ---- Ends ---- */

int communicator_ending(ncclComm_t handle) {
  const struct timespec until = in_ms(own_abort_wait_ms);
  pthread_mutex_lock(&mutex);
  struct communicator* entry = find(handle);
  int result = ncclInProgress;
  if (entry != NULL && entry->state == live) entry->state = ending;
  while (entry != NULL && entry->state == aborting && pthread_cond_timedwait(&changed, &mutex, &until) == 0)
    entry = find(handle);
  if (is_aborted(entry)) {
    result = entry->state == aborted ? ncclSuccess : ncclInternalError;
    if (entry->state == aborted) entry->state = unused;
  }
  pthread_mutex_unlock(&mutex);
  return result;
}

void communicator_ended(ncclComm_t handle) {
  pthread_mutex_lock(&mutex);
  struct communicator* const entry = find(handle);
  if (entry != NULL && entry->state == ending) entry->state = unused;
  pthread_mutex_unlock(&mutex);
}

const char* communicator_error(ncclComm_t handle) {
  pthread_mutex_lock(&mutex);
  const bool is_ours = is_aborted(find(handle));
  pthread_mutex_unlock(&mutex);
  return is_ours ? "libckptinterpose.so aborted this communicator, because the job was halted" : NULL;
}

/* On a thread of its own: NCCL's abort may never return. */
static void* abort_one(void* data) {
  static void* _Atomic found;
  struct communicator* const entry = data;
  int (*end)(ncclComm_t) = NULL;
  void* const function = nccl_function(&found, "ncclCommAbort");
  memcpy(&end, &function, sizeof end);
  const struct timespec until = in_ms(calls_end_ms);
  pthread_mutex_lock(&mutex);
  while (entry->users > 0 && pthread_cond_timedwait(&changed, &mutex, &until) == 0) continue;
  const ncclComm_t handle = entry->handle;
  pthread_mutex_unlock(&mutex);
  if (end != NULL) end(handle);
  pthread_mutex_lock(&mutex);
  entry->state = find(handle)->state == live ? unused : aborted; /* live: a new one at the same address */
  pthread_cond_broadcast(&changed);
  pthread_mutex_unlock(&mutex);
  return NULL;
}

static void abort_all(uint64_t incarnation) {
  struct communicator* begun[communicators_max];
  uint32_t count = 0;
  pthread_mutex_lock(&mutex);
  const bool is_first = incarnation != aborted_incarnation;
  aborted_incarnation = incarnation;
  for (uint32_t i = 0; is_first && i < table_end; ++i)
    if (table[i].state == live) {
      table[i].state = aborting;
      begun[count++] = &table[i];
    }
  pthread_mutex_unlock(&mutex);
  for (uint32_t i = 0; i < count; ++i) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, abort_one, begun[i]) == 0)
      pthread_detach(thread);
    else
      abort_one(begun[i]);
  }
}

/* ---- The engine ---- */

static void* watch(void* data) {
  const ckpt_interposed_engine engine = *(const ckpt_interposed_engine*)data;
  pthread_mutex_lock(&mutex);
  while (!is_stopping) {
    pthread_mutex_unlock(&mutex);
    uint64_t incarnation = 0;
    const bool is_halted = engine.wait_halt(engine.engine, look_ms, &incarnation) == 1;
    if (is_halted) abort_all(incarnation);
    const struct timespec until = in_ms(is_halted ? look_ms : 0);
    pthread_mutex_lock(&mutex);
    while (!is_stopping && pthread_cond_timedwait(&changed, &mutex, &until) == 0) continue;
  }
  pthread_mutex_unlock(&mutex);
  return NULL;
}

EXPORT const char* ckpt_interpose_attach(const ckpt_interposed_engine* engine) {
  pthread_rwlock_wrlock(&engine_lock);
  const bool is_taken = attached.engine != NULL;
  if (!is_taken) {
    attached = *engine;
    pthread_mutex_lock(&mutex);
    is_stopping = false;
    aborted_incarnation = 0;
    pthread_mutex_unlock(&mutex);
    has_watcher = engine->wait_halt != NULL && pthread_create(&watcher, NULL, watch, &attached) == 0;
  }
  pthread_rwlock_unlock(&engine_lock);
  if (is_taken) return "another engine of this process is attached to libckptinterpose.so already";
  static char late[4200];
  const char* const path = own_path_if_loaded_late();
  if (path == NULL) return NULL;
  static const char text[] =
      "libckptinterpose.so was loaded too late, so NCCL's calls do not come through it. Set "
      "LD_PRELOAD to its path before training starts: ";
  memcpy(late, text, sizeof text);
  strncat(late, path, sizeof late - sizeof text);
  return late;
}

EXPORT void ckpt_interpose_detach(void* engine) {
  pthread_rwlock_wrlock(&engine_lock);
  const bool is_own = attached.engine == engine;
  const bool joins = is_own && has_watcher;
  pthread_rwlock_unlock(&engine_lock);
  if (!is_own) return;
  pthread_mutex_lock(&mutex);
  is_stopping = true;
  pthread_cond_broadcast(&changed);
  pthread_mutex_unlock(&mutex);
  if (joins) pthread_join(watcher, NULL);
  pthread_rwlock_wrlock(&engine_lock);
  memset(&attached, 0, sizeof attached);
  has_watcher = false;
  pthread_rwlock_unlock(&engine_lock);
}

EXPORT uint32_t ckpt_interpose_abort(void* engine, uint64_t incarnation, int64_t timeout_ms) {
  pthread_rwlock_rdlock(&engine_lock);
  const bool is_own = attached.engine == engine;
  pthread_rwlock_unlock(&engine_lock);
  if (!is_own) return 0;
  abort_all(incarnation);
  const struct timespec until = in_ms(timeout_ms);
  pthread_mutex_lock(&mutex);
  while (count_aborting() > 0 && pthread_cond_timedwait(&changed, &mutex, &until) == 0) continue;
  const uint32_t left = count_aborting();
  pthread_mutex_unlock(&mutex);
  return left;
}

EXPORT uint64_t ckpt_interpose_calls(void) { return atomic_load(&calls); }
EXPORT const char* ckpt_interpose_static_nccl(void) { return static_nccl(); }
