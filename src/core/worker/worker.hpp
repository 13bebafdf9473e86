// Worker decides what one node does for its trainers and with its pieces. It grants slots, keeps and drops pieces,
// fetches what the leader orders, answers restores, and reports to the leader. reconcile() compares the newest
// directive with the slots and orders the difference. So a lost or repeated event does no harm.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "core/events.hpp"
#include "core/node.hpp"
#include "core/worker/slot_demand.hpp"
#include "core/worker/slots.hpp"

namespace ckpt::core {

class Worker {
 public:
  Worker(const Config& config, std::uint64_t agent_id, const Recovered& recovered);

  void on(const TrainerHello& hello);
  void on(const TrainerExited& exited);
  void on(const RestoreAsked& asked);
  void on(const RestoreDone& done);
  void on(const SegmentsReady& ready);
  void on(const Progress& progress);
  void on(const Captured& captured);
  void on(const FreezeAnswered& answered);
  void on(const TroubleReported& reported);
  void on(const LeftBehind& left);
  void on(const FetchEnded& ended, TimeMs now);
  void on(const SlotReleased& released);
  void on(const PieceCorrupt& corrupt, Effects& effects);
  void on(const WriteEnded& ended);
  void on(const Observed& observed) { observed_ = observed; }
  void on(const RanksWatched& watched, TimeMs now) {
    watched_ = watched;
    watched_at_ = now;
  }
  void on(const Directive& directive);
  void on_epoch(std::uint64_t epoch);  // a newer leader's epoch: from now on the node obeys nothing older
  void on_decided_incarnation(std::uint64_t incarnation) {
    newest_known_incarnation_ = std::max(newest_known_incarnation_, incarnation);
  }
  // The incarnation's record names this first commit.
  void on_first_commit(CheckpointId commit) { notified_commit_ = std::max(notified_commit_, commit); }

  // This node was stopped for a while. A directive may have been sent before that pause ended, unless it acknowledges a
  // report that this node sent afterwards. hears_of_now(): the newest directive acknowledges such a report.
  void on_pause() { fresh_from_ = report_sequence_ + 1; }
  bool hears_of_now() const {
    return fresh_from_ == 0 ||
           (directive_.acknowledged_agent == agent_id_ && directive_.acknowledged_report >= fresh_from_);
  }

  // Compares the slots and trainers with the directive, and orders what is missing. Idempotent.
  void reconcile(TimeMs now, Effects& effects);

  // Returns the report if it has news or the heartbeat is due.
  std::optional<Report> report_if_due(TimeMs now);

  std::uint64_t epoch() const { return epoch_; }
  const Directive& directive() const { return directive_; }
  const SlotTable& slots() const { return slots_; }
  CheckpointId highest_commit() const { return highest_commit_; }
  CheckpointId newest_seen() const { return newest_seen_; }
  std::vector<RankReport> rank_reports() const;
  // See Node::awaited().
  AwaitedPieces awaited(Rank rank) const;

 private:
  struct Trainer {
    TrainerHello hello;
    std::uint64_t incarnation = 0;   // incarnation that admitted it; 0: none yet
    std::uint64_t served_in = 0;     // incarnation whose decision it received; it takes part in no other
    bool asked = false;              // waits for the answer to restore()
    bool restored = false;           // it may take snapshots
    std::optional<Refusal> refusal;  // why it no longer takes part
    std::optional<Share> share;      // of the main shard that it captures in this incarnation
    bool is_replicated = false;      // see Admission
    std::string adopts;              // the private shard that it restores instead of its own, "": its own
    std::vector<Cut> takes;          // see RankAssignment
    bool wants_gpu_replication = false;
    bool takes_shards = false;
    std::uint64_t notified_replication_in = 0;  // incarnation
    std::vector<std::string> segments;          // the shards whose segments are ready
    std::uint8_t slots = 0;                     // how many slots each segment has
    bool has_spare = false;                     // the private shard's segment has a slot more
    std::uint8_t slots_asked = 0;               // how many slots per segment the driver was last asked for
    SlotDemand demand;
    std::vector<SlotRef> granted;  // one per segment; empty: no grant is open
    std::optional<SlotRef> spare;  // the spare slot; it stays granted while no grant is open
    std::int64_t attempted = -1;
    std::int64_t capturing = -1;
    CheckpointId notified_commit;
    CheckpointId notified_stored;
    std::int64_t notified_resume = 0;
    FreezeAnswer freeze;
    std::uint64_t notified_halt = 0;
    std::optional<std::int64_t> notified_halt_iteration;
    bool reports_trouble = false;
  };
  struct Fetch {
    PieceInfo piece;
    NodeId source = 0;
    SlotRef slot;
    bool cancelled = false;
  };
  struct Writing {
    Written order;
    std::uint64_t epoch = 0;
    std::vector<SlotRef> slots;
  };
  using Attempt = std::tuple<std::string, CheckpointId, NodeId>;
  struct Failures {
    int count = 0;
    int corrupt = 0;  // how many of these had wrong bytes
    TimeMs retry_at = 0;
  };

  bool decided() const;
  bool keeps(CheckpointId checkpoint) const;
  bool is_current(CheckpointId checkpoint) const;
  void make_room(const std::string& shard, Effects& effects);
  bool is_to_be_written(const SlotRef& ref, const PieceInfo& piece) const;
  bool is_member(const Trainer& trainer) const;
  bool is_admitted(const Trainer& trainer) const;
  void take_back_grant(Trainer& trainer);
  void take_back_orphan(Rank rank);
  void persist_if_newer(Effects& effects);

  void reconcile_admissions(Effects& effects);
  void reconcile_drops(Effects& effects);
  void reconcile_fetches(TimeMs now, Effects& effects);
  void reconcile_restore(Trainer& trainer, Effects& effects);
  void reconcile_grant(Trainer& trainer, Effects& effects);
  void reconcile_demand(Trainer& trainer, Effects& effects) const;
  void reconcile_words(Trainer& trainer, Effects& effects);
  void reconcile_segments(Effects& effects);
  void reconcile_writes(Effects& effects);
  bool is_void() const;
  bool knows_what_is_here() const;
  std::vector<const FetchOrder*> orders_in_turn() const;
  bool awaits_inputs(const FetchOrder& order, TimeMs now) const;
  bool has_failed(const std::string& shard, CheckpointId checkpoint) const;
  bool start_fetch(const FetchOrder& order, TimeMs now, Effects& effects);
  std::optional<SlotRef> destination(const std::string& shard);
  const Trainer* home_of(const std::string& shard) const;
  static std::vector<std::string> captures(const Trainer& trainer);
  std::optional<std::vector<RestoreSource>> find_sources(const std::vector<std::string>& shards) const;
  std::optional<NodeId> pick_source(const FetchOrder& order, TimeMs now) const;
  Tier tier_of(const SlotRef& ref) const;
  std::uint32_t parts_stored(const std::string& main_shard) const;
  std::vector<std::string> main_pieces(const Trainer& trainer) const;
  static std::vector<std::string> private_pieces(const Trainer& trainer);

  const Config config_;
  const std::uint64_t agent_id_;
  SlotTable slots_;
  std::map<Rank, Trainer> trainers_;
  std::map<Rank, Recovered::Granted> orphaned_grants_;  // their writers may still be alive and come back
  std::map<std::uint64_t, Fetch> fetches_;
  std::map<Attempt, Failures> failures_;
  struct LastFailure {
    FetchTrouble trouble = FetchTrouble::none;
    NodeId source = no_node;
  };
  std::map<std::string, LastFailure> fetch_failures_;  // by shard, until a piece of it arrives
  Observed observed_;
  RanksWatched watched_;
  TimeMs watched_at_ = 0;
  std::uint64_t next_fetch_ = 1;
  std::optional<Writing> writing_;
  Written written_;
  std::uint64_t written_epoch_ = 0;  // of the leader that ordered it
  std::set<CheckpointId> damaged_;
  std::string read_trouble_;

  Directive directive_;
  std::uint64_t epoch_ = 0;
  CheckpointId highest_commit_;
  CheckpointId newest_seen_;
  CheckpointId newest_damaged_;
  std::uint64_t newest_known_incarnation_ = 0;
  CheckpointId notified_commit_;  // first commit that a record named; not persisted, because later agents read it, too
  Persist persisted_;

  std::uint64_t report_sequence_ = 0;
  std::uint64_t orders_from_ = 1;  // obey orders only of a leader that has heard this report
  std::uint64_t fresh_from_ = 0;   // first report after a pause; 0: there was no pause
  TimeMs last_report_at_ = 0;
  Report last_report_;
};

}  // namespace ckpt::core
