// Control is a rank's control file, through which a trainer and its agent tell each other in each iteration what they
// did: grants, captures, commits. The file also records when the trainer communicates (comm_log.hpp).
//
// A Control owns its mapping of the file. Some functions are for the agent and some for the trainer. Any thread may
// call getters. Only one thread at a time may call setters. Only the functions wait_*() block.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "arena/arena_format.hpp"
#include "arena/health_page.hpp"
#include "base/futex.hpp"
#include "base/mapping.hpp"
#include "base/unique_fd.hpp"
#include "core/checkpoint_id.hpp"
#include "core/shard_parts.hpp"

namespace ckpt::arena {

// Identifies a process: a later process with the same pid has another start time.
struct WriterId {
  std::uint64_t pid = 0;
  std::uint64_t start_ticks = 0;  // field 22 of /proc/PID/stat
};

// Permission for one capture: the slots that the trainer may write, one in each of its segments. First come the slots
// for the parts of the main shard that the rank stores, in order, and then the slot for its private shard. `spare` is a
// second slot for the private shard. The trainer captures the private shard in one of the two. After the capture, it
// may still write to the other one.
struct Grant {
  std::uint64_t sequence = 0;                            // grants are numbered from 1; 0: no grant
  std::array<std::uint8_t, core::captures_max> slots{};  // each below segment_slots_max
  std::optional<std::uint8_t> spare = {};

  std::uint64_t word() const;
  static Grant from_word(std::uint64_t word);
};

// What the agent tells the trainer about a halt: its number, and the iteration at which ranks freeze.
struct HaltWords {
  std::uint64_t number = 0;
  std::optional<std::int64_t> iteration = {};  // none: not decided yet
  bool operator==(const HaltWords&) const = default;
};
// What the trainer answers to halt number `halt`: how far the rank is with freezing (`state`, a core::Freeze), and the
// rank's iteration.
struct FreezeWords {
  std::uint64_t halt = 0;
  std::uint8_t state = 0;
  std::int64_t iteration = -1;
  bool operator==(const FreezeWords&) const = default;
};

// When captures have copied bytes of main shards in host memory: how many in bubbles, beside computation, and in
// before_update(). How many captures followed a plan (schedule/copy_pacer.hpp), and how many of those had put bytes off
// that were not copied yet when before_update() was called, or when a halt or close() ended the capture.
struct CopiedBytes {
  std::uint64_t in_bubbles = 0;
  std::uint64_t beside_computation = 0;
  std::uint64_t in_update = 0;
  std::uint64_t layered = 0;
  std::uint64_t layered_late = 0;
  bool operator==(const CopiedBytes&) const = default;
};

class Control {
 public:
  // Agent: creates a new file for a new incarnation of the rank. The new file replaces the old one, so an earlier
  // trainer of the rank, which has mapped the old one, cannot write to it. Throws Failure.
  static Control create(const std::string& directory, std::uint32_t rank);
  // Agent: maps the file that an earlier agent left in `directory`. Trainer: maps the file of a descriptor that the
  // agent sent. Both check everything, and throw Failure (CKPT_ERR_CORRUPT) if the file is missing, malformed, or of
  // another format version.
  static Control attach(const std::string& directory, std::uint32_t rank);
  static Control attach(UniqueFd fd, std::uint32_t rank);

  int fd() const { return fd_.get(); }
  // True if both objects map the same file.
  bool same_as(const Control& other) const;

  // The words of comm_log.hpp. Their address stays the same while this Control lives, even if it is moved.
  CommWords& comm() { return *comm_; }
  const CommWords& comm() const { return *comm_; }

  // The words that the agent writes. Each setter rings the trainer's doorbell, unless its comment says otherwise.
  void grant(Grant grant) { set(words_->grant, grant.word()); }
  void resume_at(std::int64_t iteration);
  void committed(CheckpointId checkpoint) { set(words_->committed, checkpoint.word()); }
  void stored(CheckpointId checkpoint) { set(words_->stored, checkpoint.word()); }
  void fence(std::uint64_t incarnation) { set(words_->fenced, incarnation); }
  void halt(const HaltWords& halt);
  // Wakes the trainer after a change elsewhere, for example in a ReplicationPage.
  void ring_trainer() { ring(words_->agent_doorbell, FutexScope::shared); }
  // Sets which process may write to this page. Does not ring. Call it before the trainer gets the page.
  void writer(WriterId id) {
    words_->writer_pid.store(id.pid, std::memory_order_release);
    words_->writer_start_ticks.store(id.start_ticks, std::memory_order_release);
  }
  WriterId writer() const {
    return {words_->writer_pid.load(std::memory_order_acquire),
            words_->writer_start_ticks.load(std::memory_order_acquire)};
  }
  void share(const core::Share& share);  // does not ring; call it before the first grant of slots for these parts
  core::Share share() const;
  Grant grant() const { return Grant::from_word(words_->grant.load(std::memory_order_acquire)); }
  std::int64_t resume_at() const { return words_->resume_at.load(std::memory_order_acquire); }
  CheckpointId committed() const { return CheckpointId::from_word(words_->committed.load(std::memory_order_acquire)); }
  CheckpointId stored() const { return CheckpointId::from_word(words_->stored.load(std::memory_order_acquire)); }
  std::uint64_t fenced() const { return words_->fenced.load(std::memory_order_acquire); }
  // None: this incarnation is not halted.
  std::optional<HaltWords> halt() const;
  std::uint32_t agent_doorbell() const { return words_->agent_doorbell.load(std::memory_order_acquire); }
  // Trainer: waits until the doorbell differs from `seen`, or the deadline passes. The agent's setters wake it.
  void wait_agent_doorbell(std::uint32_t seen, Deadline deadline) const {
    futex_wait(words_->agent_doorbell, seen, deadline, FutexScope::shared);
  }

  // Where the agent writes its verdict on the job's health, and the trainer reads it.
  HealthPage health() const { return HealthPage(words_->health); }

  // The words that the trainer writes. The setters do not wake the agent: call ring_agent() after them.
  void not_taken(std::int64_t iteration, std::uint8_t status) {
    words_->not_taken.store(static_cast<std::uint64_t>(iteration) << 8 | status, std::memory_order_release);
  }
  // Returns the ckpt_status of the newest failed snapshot, or 0 if its iteration is not later than `captured`. Do not
  // trust it: a trainer may write anything.
  std::uint8_t failure_since(std::int64_t captured) const {
    const std::uint64_t word = words_->not_taken.load(std::memory_order_acquire);
    return static_cast<std::int64_t>(word >> 8) > captured ? static_cast<std::uint8_t>(word) : 0;
  }
  void attempted(std::int64_t iteration) { words_->attempted.store(iteration, std::memory_order_release); }
  void capturing(CheckpointId checkpoint) { words_->capturing.store(checkpoint.word(), std::memory_order_release); }
  // `in_spare`: the private shard is in the grant's spare slot.
  void used_grant(std::uint64_t sequence, bool in_spare = false) {
    if (in_spare) words_->used_spare.store(sequence, std::memory_order_release);
    words_->used_grant.store(sequence, std::memory_order_release);
  }
  // The sums since the engine was created.
  void copied(const CopiedBytes& bytes);
  CopiedBytes copied() const;
  // Only for the thread that watches for a halt.
  void freeze(const FreezeWords& answer);
  void ring_agent() { ring(words_->trainer_doorbell, FutexScope::shared); }
  std::int64_t attempted() const { return words_->attempted.load(std::memory_order_acquire); }
  CheckpointId capturing() const { return CheckpointId::from_word(words_->capturing.load(std::memory_order_acquire)); }
  std::uint64_t used_grant() const { return words_->used_grant.load(std::memory_order_acquire); }
  // True if the private shard of the last used grant is in that grant's spare slot.
  bool used_spare() const {
    const std::uint64_t used = used_grant();
    return used != 0 && words_->used_spare.load(std::memory_order_acquire) == used;
  }
  FreezeWords freeze() const;
  std::uint32_t trainer_doorbell() const { return words_->trainer_doorbell.load(std::memory_order_acquire); }
  // Agent: waits until the doorbell differs from `seen`, or the deadline passes. ring_agent() wakes it.
  void wait_trainer_doorbell(std::uint32_t seen, Deadline deadline) const {
    futex_wait(words_->trainer_doorbell, seen, deadline, FutexScope::shared);
  }

 private:
  Control(UniqueFd fd, Mapping mapping);
  void set(Word64& word, std::uint64_t value) {
    word.store(value, std::memory_order_release);
    ring(words_->agent_doorbell, FutexScope::shared);
  }

  UniqueFd fd_;
  Mapping mapping_;
  RankControl* words_;
  CommWords* comm_;
};

}  // namespace ckpt::arena
