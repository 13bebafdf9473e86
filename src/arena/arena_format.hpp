// The layout of the shared memory through which the agent and its trainers work together. The memory outlives both.
// docs/formats.md specifies every field.
//
// A node's arena is a directory <arena_dir>/<job>/<node>/ of files in tmpfs. The agent creates all of them:
//    node              NodeHeader: whose arena this is. The agent that uses the arena holds this file's flock
//    rank-<r>.control  RankControl: the words that the trainer of rank r and the agent exchange in each iteration; then
//                      CommWords: when the trainer communicates
//    rank-<r>.receive_buffer  ReceiveBufferHeader, ReplicationWords, and the pieces that other GPUs sent to rank r
//    <n>.segment       SegmentHeader, then the slots of one shard, with one writer
//
// Rules of the shared words:
// - Each word has one writer. Words of different writers share no cache line.
// - A writer first stores plain fields, then the word that publishes them (release). A reader first loads that word
//   (acquire).
// - A reader trusts nothing that a trainer wrote. It checks all bounds, and uses a piece only if its seal is valid.
// - Either side may die after any store. The process that attaches next still finds a valid state.
// - All integers are little endian.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace ckpt::arena {

using Word64 = std::atomic<std::uint64_t>;
using SignedWord64 = std::atomic<std::int64_t>;
using Word32 = std::atomic<std::uint32_t>;
static_assert(Word64::is_always_lock_free && Word32::is_always_lock_free);

// The formats of the files. Each header names its format. A reader refuses formats that it does not know.
inline constexpr std::uint32_t format_version = 4;                           // of ReceiveBufferHeader
inline constexpr std::uint32_t control_format_version = 8;                   // of RankControl. Format 7 had no bubbles
inline constexpr std::uint64_t node_magic = 0x31454e5450'4b43ull;            // "CKPTNE1"
inline constexpr std::uint64_t control_magic = 0x31544e5450'4b43ull;         // "CKPTNT1"
inline constexpr std::uint64_t segment_magic = 0x31474e5450'4b43ull;         // "CKPTNG1"
inline constexpr std::uint64_t receive_buffer_magic = 0x31474c5450'4b43ull;  // "CKPTLG1"
inline constexpr std::size_t page_bytes = 4096;
// In RankControl::fenced: the agent takes no more snapshots from this trainer, but no incarnation superseded it.
inline constexpr std::uint64_t fenced_without_incarnation = ~std::uint64_t{0};
inline constexpr std::size_t name_bytes_max = 256;
// Advice for errors when the arena's file system is full.
inline constexpr const char* room_advice =
    "enlarge that file system (mount -o remount,size=..., or --shm-size of the container) or set the option arena_dir "
    "to a larger tmpfs";

// Of SegmentHeader. Format 4 had all slots from the start. Format 5 did not say how far a piece has arrived.
inline constexpr std::uint32_t segment_format_version = 6;
inline constexpr std::uint32_t node_format_version = 4;  // of NodeHeader. Format 3 used `format_3` alone

// What a node must not forget when its agent restarts. NodeHeader has these words twice, and the agent writes them one
// after the other. So one of the two is always complete, even if the agent dies while it writes. Readers ignore words
// whose `check` is wrong.
struct NodeWords {
  alignas(64) Word64 arena_id;  // random: distinguishes a fresh arena from an earlier one of the same name
  Word64 number;                // the node's number in the job, plus 1; 0: not known
  Word64 highest_commit;        // newest commit that this node was told of, as CheckpointId::word()
  Word64 newest_seen;           // newest checkpoint that was ever captured or received here
  Word64 highest_epoch;         // newest epoch whose leader this node obeyed; it refuses older ones for ever
  Word64 newest_damaged;        // newest checkpoint that lost a piece here because the piece was damaged
  Word64 token[4];              // the job's token, if it came from the coordination store; otherwise 0
  Word64 check;                 // XXH3 of the words before it, the job's and the node's name
};
inline constexpr std::size_t node_words_checked = offsetof(NodeWords, check) / sizeof(Word64);

struct NodeHeader {
  std::uint64_t magic;
  std::uint32_t format;
  std::uint32_t reserved;
  std::uint64_t arena_id;  // the same as in `copies`, for people who look at the file
  char job[name_bytes_max];
  char node[name_bytes_max];
  alignas(64) std::uint64_t format_3[8];  // only format 3: highest commit, newest seen, highest epoch, newest damaged
  NodeWords copies[2];                    // written by the agent
};
static_assert(sizeof(NodeHeader) <= page_bytes);

inline constexpr std::size_t health_words = 168;

// The agent's verdict on the job's health, for one trainer. HealthPage reads and writes it.
struct HealthWords {
  // Written by the agent.
  alignas(64) Word64 heartbeats;  // +1 at each of the agent's ticks: it tells the trainer that the agent lives
  Word64 sequence;                // odd while `words` is being stored; 0: nothing published yet
  Word64 words[health_words];
};

// The control page: the first page of a rank's control file. A trainer maps its own file and no other.
struct RankControl {
  std::uint64_t magic;
  std::uint32_t format;
  std::uint32_t rank;

  // Written by the agent. `grant` is Grant::word() (control.hpp): in bits 24 to 63 the sequence, 0 if there is no
  // grant; in bits 16 to 23 the spare slot + 1, 0 if there is none; below, 4 bits for each segment's slot, the first
  // lowest.
  alignas(64) Word64 grant;
  SignedWord64 resume_at;  // all ranks skip the snapshots of iterations before this one
  Word64 committed;        // newest committed checkpoint of this incarnation
  Word64 share;   // parts that the rank captures: core::Share, as first << 32 | of << 16 | stored. Set before any grant
  Word64 fenced;  // the incarnation that superseded this trainer, or fenced_without_incarnation; 0: none
  Word64 writer_pid;          // trainer that may write here: a restarted agent knows it by pid and start time
  Word64 writer_start_ticks;  // field 22 of /proc/PID/stat: a later process with this pid has another one
  Word32 agent_doorbell;      // futex: +1 after any change above

  // Written by the trainer.
  alignas(64) Word64 used_grant;  // sequence of the last grant whose slots were sealed
  SignedWord64 attempted;         // last iteration offered to snapshot(), taken or not; -1: none
  Word64 capturing;               // checkpoint whose capture is under way, or may be; 0: none
  Word32 trainer_doorbell;        // futex: +1 after any change above
  Word64 not_taken;               // newest snapshot that failed: iteration << 8 | ckpt_status; 0: none
  Word64 used_spare;  // sequence of the last grant whose spare slot has the private shard; stored before used_grant

  HealthWords health;

  // Also written by the agent, which rings agent_doorbell after a change.
  alignas(64) Word64 stored;  // newest checkpoint known to be on storage, of any incarnation; 0: none
  Word64 halt_at;             // iteration at which ranks freeze, plus 2; 0: not decided yet. Stored before `halt`
  Word64 halt;                // number of the halt of this incarnation; 0: none

  // Written by the trainer's thread that watches for a halt. It rings trainer_doorbell afterwards.
  alignas(64) Word64 answered;  // number of the halt that `freeze` answers; stored before `freeze`
  Word64 freeze;                // core::Freeze << 56 | (the rank's iteration + 1); 0: no answer yet

  // Written by the trainer when a capture is sealed: what the engine's captures have copied of main shards, and when.
  // In bubbles, beside computation, in before_update().
  alignas(64) Word64 bubble_bytes;
  Word64 compute_bytes;
  Word64 update_bytes;
  Word64 layered;       // captures that followed a plan
  Word64 layered_late;  // of them, those that were late (see CopiedBytes)
};
static_assert(sizeof(RankControl) <= page_bytes);

inline constexpr std::uint32_t comm_channels_max = 8;
inline constexpr std::size_t comm_events_max = 4096;
inline constexpr std::uint32_t comm_gpu_max = 1024;
inline constexpr std::size_t pause_name_words = 4;

// Tells when a trainer communicates. It comes after the control page in the same file. All threads of the trainer may
// write here, and so may the trainer's GPU. CommWriter and CommReader (comm_log.hpp) write and read it.
struct CommWords {
  struct Channel {
    Word32 begun;  // communications that have begun, modulo 2^32
    Word32 ended;  // communications that have ended, modulo 2^32. Equal to `begun`: the channel is idle
  };
  alignas(64) Word64 written;  // number of events so far; +1 before each event is stored
  alignas(64) Channel channels[comm_channels_max];
  // Event i is at i % comm_events_max: lap << 56 | channel << 53 | kind << 50 | microseconds on CLOCK_MONOTONIC. The
  // lap, (i / comm_events_max + 1) mod 256, distinguishes a stored event from an older one in its place.
  alignas(64) Word64 events[comm_events_max];
  // Communications on the GPU's streams. For communication n, the GPU writes n, modulo 2^32, to `begun` and later to
  // `ended` of place n % comm_gpu_max. The host uses a place again only when both words have the number of the last
  // communication that used the place.
  alignas(64) Channel on_gpu[comm_gpu_max];
  // Pauses of training (ckpt_pause) that have begun and ended, modulo 2^32. If the numbers are equal, training does not
  // pause. `name` is the name of the newest pause, padded with zero bytes. It is stored before `begun` counts the
  // pause.
  struct Pauses {
    alignas(64) Word32 begun;
    Word32 ended;
    Word64 name[pause_name_words];
  };
  Pauses pauses;
  // The last iteration offered to snapshot(), plus 1; 0: none. Stored before the event of that iteration.
  // RankControl::attempted may change later than this word: only when the capture begins.
  alignas(64) Word64 offered;
  // Bubbles on the stream of the GPU that training computes on. For bubble n, the GPU writes n, modulo 2^32, to `begun`
  // and later to `ended`.
  alignas(64) Channel bubbles_on_gpu;
};
inline constexpr std::size_t control_file_bytes =
    page_bytes + (sizeof(CommWords) + page_bytes - 1) / page_bytes * page_bytes;

inline constexpr std::uint32_t receive_buffer_places_max = 32;

// The first page of a rank's receive buffer file. ReplicationWords follow it, and then a place for each rank of the
// replication group, this rank included. Each place begins at a page boundary. The places exist once the sizes of the
// ranks' pieces are known.
struct ReceiveBufferHeader {
  std::uint64_t magic;
  std::uint32_t format;
  std::uint32_t places;  // ranks in the group
  std::uint64_t capacity_bytes[receive_buffer_places_max];
  std::uint64_t incarnation;  // the job's incarnation that the file belongs to
  std::uint32_t member;       // this rank's number in the group
  std::uint32_t rows;         // of parity, if the rank's GPU makes parity; 0: pieces arrive
  alignas(8) Word64 ready;    // the agent stores 1 here once the places and their capacities exist

  // What has arrived from one rank of the group. The trainer writes it.
  struct Place {
    alignas(64) Word64 checkpoint;  // the checkpoint whose piece arrives in this place; 0: none
    Word64 gpu_received_bytes;      // how many of the piece's first bytes have arrived
  };
  Place place[receive_buffer_places_max];
};
static_assert(sizeof(ReceiveBufferHeader) <= page_bytes);

inline constexpr std::size_t communicator_id_bytes = 128;  // size of an NCCL unique id
inline constexpr std::size_t replication_state_words = 6 + communicator_id_bytes / 8;

// What a trainer and its agent tell each other about replication from GPU to GPU. It comes after ReceiveBufferHeader in
// the same file.
struct ReplicationWords {
  struct ReplicationSlot {
    alignas(64) Word64 sequence;  // odd while `words` is being stored; 0: nothing published yet
    Word64 words[replication_state_words];
  };
  // Written by the trainer.
  ReplicationSlot own;
  alignas(64) Word64 has_failed;  // 1: replication from GPU to GPU has failed for good, and `failure` is complete
  char failure[248];              // a sentence, ending in a zero byte

  // Written by the agent.
  alignas(64) Word64 taken[receive_buffer_places_max];  // by place: newest checkpoint whose piece the agent has taken
                                                        // or will never take
  ReplicationSlot members[receive_buffer_places_max];
};
inline constexpr std::size_t replication_words_bytes =
    (sizeof(ReplicationWords) + page_bytes - 1) / page_bytes * page_bytes;

// local: pieces that a rank of this node captures. held: pieces that the agent receives or computes.
enum class SegmentKind : std::uint32_t { local = 1, held = 2 };

// The first page of a segment file. Slot i begins at page_bytes + i * slot_stride(header). A slot has three areas:
// SlotHeader (one page); leaf digests and layout text (manifest_capacity_bytes); the data (data_capacity_bytes). Both
// capacities are multiples of page_bytes. The file has room for slots_max slots. Only the first slots_reserved of them
// have memory.
struct SegmentHeader {
  std::uint64_t magic;
  std::uint32_t format;
  SegmentKind kind;
  std::uint32_t rank;  // for kind local: the rank that writes the segment
  std::uint32_t slots_max;
  std::uint64_t data_capacity_bytes;
  std::uint64_t manifest_capacity_bytes;
  char shard[name_bytes_max];
  // Written by the agent.
  alignas(64) Word64 ready;  // 1 once the first slots have memory; until then, nobody uses the segment
  Word64 slots_reserved;     // the number of slots that have memory (reserved and touched); never decreases
};

// The first page of a slot: what is in the slot, and the seal. Its writer is the rank's trainer in a segment of kind
// `local`, and the agent in a segment of kind `held`.
struct SlotHeader {
  // Written by the slot's writer. The fields are valid only if seal == seal_of(fields), which is never 0. The writer
  // first stores seal = 0. Then it stores fields, data, digests and layout in any order. Last, after a fence, it stores
  // the seal.
  alignas(64) Word64 seal;
  std::uint64_t checkpoint;    // CheckpointId::word()
  std::uint64_t length_bytes;  // of the data
  std::uint64_t root_digest;   // over the leaf digests and the length
  std::uint64_t layout_bytes;  // of the layout text
  std::uint64_t layout_hash;   // XXH3 of the layout text
  std::uint32_t world_size;    // ranks of the job when the piece was captured
  std::uint32_t reserved;

  // Written by the agent.
  alignas(64) Word64 dropped;  // the checkpoint that the agent dropped; readers ignore a piece of this checkpoint

  // Written by the slot's writer: the gradient record behind the piece's data (gradient_record.hpp).
  alignas(64) Word64 record_seal;  // of the piece's checkpoint and length and the record's digests; 0: no record
  std::uint64_t record_bytes;

  // Written by the slot's writer: how far a piece has arrived that has no seal yet. `arrival` is odd while checkpoint
  // to world_size, the digests and the layout are those of that piece, and its first `arrived_bytes` bytes are here and
  // verified. The writer makes `arrival` even, by adding 1, before it changes any of these.
  alignas(64) Word64 arrival;
  Word64 arrived_bytes;
  Word32 arrival_doorbell;  // futex: +1 after any change of the two
};
static_assert(sizeof(SlotHeader) <= page_bytes);

}  // namespace ckpt::arena
