// RankPort is the agent's side of one trainer: the control page, the grant, and a thread that waits for the doorbell.
//
// Only the agent's core thread uses it. When the doorbell rings, the waiting thread posts a task, in which the core
// thread reads the control page. The thread posts no second task before the first has run. So a trainer that rings all
// the time costs little.
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

// A grant that a trainer has. The trainer may be writing to its slots.
struct OpenGrant {
  std::uint64_t sequence = 0;
  std::vector<core::SlotRef> slots;
};

// Finds the grants that trainers may still be using since an earlier agent, by rank. It looks at living trainers only,
// in the control pages of the arena in `directory`.
std::map<core::Rank, OpenGrant> find_open_grants(const std::string& directory, const Log& log);

class RankPort {
 public:
  // `outstanding`: the grant that the trainer may still be using since an earlier agent. When the trainer rings the
  // doorbell, the port's own thread calls `look`. `look` must see to it that somebody calls looked() afterwards.
  RankPort(core::TrainerHello hello, arena::Control control, std::optional<OpenGrant> outstanding,
           std::function<void()> look);
  ~RankPort();  // joins the thread, which ends at once
  RankPort(const RankPort&) = delete;
  RankPort& operator=(const RankPort&) = delete;

  const core::TrainerHello& hello() const { return hello_; }
  const arena::Control& control() const { return *control_; }
  std::shared_ptr<const arena::Control> shared_control() const { return control_; }
  const std::optional<OpenGrant>& outstanding() const { return outstanding_; }

  // The rank takes part in this incarnation. From now on captures of other incarnations are refused.
  void joined(std::uint64_t incarnation) { incarnation_ = incarnation; }
  void grant(const core::Share& share, const std::vector<core::SlotRef>& slots);
  void commit(CheckpointId checkpoint) { control_->committed(checkpoint); }
  void stored(CheckpointId checkpoint) { control_->stored(checkpoint); }
  void resume_at(std::int64_t iteration) { control_->resume_at(iteration); }
  void halt(const arena::HaltWords& halt) { control_->halt(halt); }
  void ring() const { control_->ring_trainer(); }
  // Incarnation 0: the trainer was refused or given up as gone, and there is no newer incarnation.
  void fence(std::uint64_t incarnation) {
    control_->fence(incarnation != 0 ? incarnation : arena::fenced_without_incarnation);
  }

  struct ControlChanges {
    std::optional<core::Captured> captured;
    std::vector<std::pair<core::SlotRef, arena::Manifest>> pieces;  // with captured
    std::optional<core::Progress> progress;
    std::optional<core::FreezeAnswered> freeze;
    std::string complaint;    // what the trainer wrote and cannot be true
    bool skipped = false;     // the trainer skipped the last iteration that it was offered
    std::uint8_t failed = 0;  // ckpt_status of that iteration if it failed; a skip does not count
  };
  // Reads what the trainer wrote to the control page. If a granted slot is not whole, the slots are granted again.
  ControlChanges look(const Segments& segments);
  // The trainer has ended, and look() has taken what it captured. The sealed pieces of a later iteration that it left
  // in the slots of its grant.
  std::vector<std::pair<core::SlotRef, arena::Manifest>> left_behind(const Segments& segments) const;
  // Call this when the task that calls look() has run.
  void looked() { pending_.store(false, std::memory_order_release); }

 private:
  void watch();
  bool take_captured(const Segments& segments, ControlChanges& changes) const;
  std::optional<arena::Manifest> sealed_piece(const Segments& segments, const core::SlotRef& slot) const;

  const core::TrainerHello hello_;
  const std::shared_ptr<arena::Control> control_;
  std::uint64_t incarnation_ = hello_.incarnation;  // 0: has not joined an incarnation yet
  std::uint64_t sequence_ = 0;                      // of the newest grant
  std::optional<OpenGrant> outstanding_;
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
