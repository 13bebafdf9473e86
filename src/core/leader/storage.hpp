// JobStorage is the part of the leader that deals with persistent storage. It knows which checkpoints are there, and
// chooses the next one to write. One checkpoint is written at a time. When that is complete or has failed, the newest
// commit is next. So slow storage skips commits and still gets the newest one.
//
// A new leader takes nothing over: it lists storage and starts again. Nodes then write an unfinished checkpoint again.
// A restore never uses an unfinished one.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "core/events.hpp"
#include "core/job_placement.hpp"
#include "core/leader/restore_decision.hpp"

namespace ckpt::core {

class JobStorage {
 public:
  JobStorage(const Config& config, TimeMs now) : config_(config), stored_at_(now) {}

  void on(const StorageListed& listed, TimeMs now);
  void on(const FinalizeEnded& ended, TimeMs now);
  // Takes from a report what the node has written, and what it found damaged on storage. Pass in reports of all nodes,
  // present or not.
  void on(const Report& report);
  // Forgets what storage listed: the new incarnation lists storage again for its decision. Writing a checkpoint of the
  // previous incarnation stops. But if that checkpoint is already being completed, this goes on, and nothing else is
  // written until it has ended.
  void on_new_incarnation();

  // Asks storage what is there, until the answer is complete.
  void reconcile_listing(TimeMs now, Effects& effects);

  // has_listing(): true once storage has answered in this incarnation. knows_all(): true if the answer is complete, and
  // no checkpoint is being completed. knows_incarnations(): false if newer incarnations may have written to storage,
  // too.
  bool has_listing() const { return known_listing_.has_value(); }
  bool knows_all() const { return known_listing_ && known_listing_->trouble.empty() && !is_finishing(); }
  bool knows_incarnations() const { return known_listing_ && known_listing_->knows_incarnations; }
  const StorageListed& known_listing() const { return *known_listing_; }
  // A checkpoint of the previous incarnation is being completed.
  bool is_finishing() const { return writing_ && writing_->is_of_older_incarnation; }

  // Unusable checkpoints: those that proved damaged when read, and one that this incarnation passes over because it
  // could not be read for too long. pass_over(): the next incarnation passes over this checkpoint.
  bool is_unusable(CheckpointId checkpoint) const { return unusable().contains(checkpoint); }
  std::set<CheckpointId> unusable() const;
  void pass_over(CheckpointId checkpoint) { passed_over_next_ = checkpoint; }
  bool has_read_trouble() const;
  bool has_read_trouble(NodeId node) const;
  // The pieces of a usable checkpoint on storage, by shard. Empty if it is not usable.
  std::map<std::string, const PieceInfo*> pieces_of(CheckpointId checkpoint) const;
  // Why nobody knows what storage has. "" if it is known, or if no present node has storage.
  std::string why_unknown(const std::vector<const Report*>& present) const;
  std::uint64_t newest_incarnation() const { return newest_incarnation_; }

  // What reconcile_writes() must know about the incarnation.
  struct CommitState {
    CheckpointId committed;   // newest commit that is known
    CheckpointId began_from;  // the restored checkpoint
    bool is_short = false;    // the commit has fewer copies than asked for
    std::uint32_t world_size = 0;
    const Places& restored_places;  // of the restored checkpoint
    const Places& places;           // of all other checkpoints
    const Inventory& inventory;     // of the nodes that are present
  };
  void reconcile_writes(const CommitState& state, TimeMs now, Effects& effects);

  WriteOrder order_for(NodeId node) const;
  CheckpointId stored() const { return stored_; }
  std::uint64_t skipped() const { return skipped_; }
  std::string trouble() const;

 private:
  struct Writing {
    CheckpointId checkpoint;
    std::uint64_t attempt = 0;
    std::uint32_t world_size = 0;
    std::map<std::string, NodeId> writers;                 // the writer of every piece
    std::map<NodeId, std::vector<std::string>> by_writer;  // the same, by writer
    std::set<std::string> written;
    bool is_committing = false;
    bool is_of_older_incarnation = false;
  };
  std::int64_t periods_passed(const CommitState& state) const;
  bool is_due(const CommitState& state, TimeMs now) const;
  void begin(const CommitState& state);
  bool assign(const CommitState& state);
  void fail(const std::string& trouble, TimeMs now);
  void take(const StorageListed& listed);

  const Config& config_;
  std::optional<StorageListed> known_listing_;
  std::uint64_t newest_incarnation_ = 0;
  bool listing_ = false;
  bool listing_is_stale_ = false;  // the answer on its way was asked for in the previous incarnation
  TimeMs list_again_at_ = 0;
  std::set<CheckpointId> damaged_;
  std::optional<CheckpointId> passed_over_;       // in this incarnation
  std::optional<CheckpointId> passed_over_next_;  // in the next one

  std::optional<Writing> writing_;
  std::map<NodeId, Written> reported_;
  std::map<NodeId, std::string> read_troubles_;
  std::uint64_t attempts_ = 0;
  TimeMs write_again_at_ = 0;
  CheckpointId stored_;
  TimeMs stored_at_ = 0;
  std::uint64_t skipped_ = 0;
  std::string write_trouble_;
};

}  // namespace ckpt::core
