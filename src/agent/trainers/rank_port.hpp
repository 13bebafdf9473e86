// RankPort is the agent's side of one trainer: the control page, the grant, and a thread that waits for the doorbell.
//
// Only the agent's core thread uses it. When the trainer rings the doorbell, the waiting thread has a task posted to
// the core thread, which then reads the control page. Until that task runs, further rings cause no second task. So a
// trainer that rings all the time costs little.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "agent/log.hpp"
#include "agent/pieces/segments.hpp"
#include "arena/control.hpp"
#include "core/events.hpp"

namespace ckpt::agent {

// The slots that a trainer may be writing to.
struct OpenGrant {
  std::uint64_t sequence = 0;        // the grant's number
  std::vector<core::SlotRef> slots;  // empty: the trainer has used the grant
  // A second slot for the private shard. Once the grant is used: the one of the two that the trainer did not fill.
  std::optional<core::SlotRef> spare = {};
};

// Finds the grants of an earlier agent that trainers may still be using, by rank. Reads the control pages of living
// trainers in the arena in `directory`.
std::map<core::Rank, OpenGrant> find_open_grants(const std::string& directory, const Log& log);

// A grant has two slots for the private shard, and the trainer fills one of them. `used` is that slot. `left` is the
// other one, which the trainer keeps for its next private shard.
struct OwnSlots {
  core::SlotRef used;
  std::optional<core::SlotRef> left;
};
OwnSlots own_slots_of(const OpenGrant& grant, const arena::Control& control);

// Pieces in granted slots, with the slots.
using LeftPieces = std::vector<std::pair<core::SlotRef, arena::Manifest>>;

// Returns the sealed pieces that a dead trainer left in the slots of `grant`. Use it for a trainer that had the grant
// from an earlier agent and ended without connecting to this one. Returns only pieces of the iteration that it captured
// last, not older ones in these slots.
LeftPieces left_by_orphan(const std::string& directory, core::Rank rank, const OpenGrant& grant,
                          const Segments& segments);

class RankPort {
 public:
  // `outstanding`: slots of an earlier agent's grant that the trainer may still be using. When the trainer rings the
  // doorbell, the port's own thread calls the argument `look`. That function must post a task to the core thread, and
  // the task must call looked() and then look() of this port.
  RankPort(core::TrainerHello hello, arena::Control control, std::optional<OpenGrant> outstanding,
           std::function<void()> look);
  ~RankPort();  // joins the thread, which ends at once
  RankPort(const RankPort&) = delete;
  RankPort& operator=(const RankPort&) = delete;

  const core::TrainerHello& hello() const { return hello_; }
  const arena::Control& control() const { return *control_; }
  std::shared_ptr<const arena::Control> shared_control() const { return control_; }
  const std::optional<OpenGrant>& outstanding() const { return outstanding_; }

  // Call this when the rank joins this incarnation. From now on look() refuses captures of other incarnations.
  void joined(std::uint64_t incarnation) { incarnation_ = incarnation; }
  // Grants slots for the next snapshot. The arguments are as in core::GrantSlots.
  void grant(const core::Share& share, const std::vector<core::SlotRef>& slots,
             const std::optional<core::SlotRef>& spare = std::nullopt);
  void commit(CheckpointId checkpoint) { control_->committed(checkpoint); }
  void stored(CheckpointId checkpoint) { control_->stored(checkpoint); }
  void resume_at(std::int64_t iteration) { control_->resume_at(iteration); }
  void halt(const arena::HaltWords& halt) { control_->halt(halt); }
  void ring() const { control_->ring_trainer(); }
  // Tells the trainer that it must not go on, because the job is at this newer incarnation. 0: there is no newer
  // incarnation, but the agent refused the trainer, or believed that its process had ended.
  void fence(std::uint64_t incarnation) {
    control_->fence(incarnation != 0 ? incarnation : arena::fenced_without_incarnation);
  }

  struct ControlChanges {
    std::optional<core::Captured> captured;                         // a new capture
    std::vector<std::pair<core::SlotRef, arena::Manifest>> pieces;  // of that capture
    std::optional<core::Progress> progress;
    std::optional<core::FreezeAnswered> freeze;
    std::string complaint;    // for people: what the trainer wrote that cannot be true; "" if nothing
    bool skipped = false;     // the trainer skipped its newest snapshot
    std::uint8_t failed = 0;  // ckpt_status of the newest snapshot that failed after the last capture; 0 if none did
  };
  // Reads what the trainer wrote to the control page. If the trainer reports a capture, but did not seal a whole piece
  // in each slot, grants the same slots again.
  ControlChanges look(const Segments& segments);
  // Call this when the trainer has ended, after a last look(). Returns the pieces of a newer iteration that the trainer
  // sealed in the slots of its grant, but did not report as captured.
  LeftPieces left_behind(const Segments& segments) const;
  // Call this before look(). A ring from now on causes another task.
  void looked() { pending_.store(false, std::memory_order_release); }

 private:
  void watch();
  bool take_captured(const Segments& segments, ControlChanges& changes) const;
  std::optional<arena::Manifest> sealed_piece(const Segments& segments, const core::SlotRef& slot) const;

  const core::TrainerHello hello_;
  const std::shared_ptr<arena::Control> control_;
  std::uint64_t incarnation_ = hello_.incarnation;  // that the trainer has joined; 0: none yet
  std::uint64_t sequence_ = 0;                      // of the newest grant
  std::optional<OpenGrant> outstanding_;
  std::optional<core::SlotRef> spare_;  // that the trainer has while no grant is outstanding
  CheckpointId last_captured_;
  std::int64_t attempted_ = -1;
  std::int64_t capturing_ = -1;
  core::FreezeAnswer freeze_;

  const std::function<void()> look_;
  std::atomic<bool> pending_{false};
  std::atomic<bool> stop_{false};
  std::thread watcher_;
};

}  // namespace ckpt::agent
