// The leader decides for the whole job. It computes from the newest report of each node what the node shall do, and
// sends that as a directive. It keeps almost no state of its own, so a newly elected leader concludes the same from the
// same reports. It consists of parts: each concludes one thing. The parts share a JobView, and Leader calls them in
// order.
//
// Why an older leader does no harm:
// - The older leader can change the incarnation's record only by compare-and-swap. That fails once the newer leader's
//   epoch is in it.
// - Every node that obeys the newer epoch ignores the older leader's directives.
// - The newer leader commits or abandons only with reports of *all* nodes of the incarnation at its own epoch. So it
//   knows all commits of the older one. Exception: it abandons a checkpoint at once if its ranks captured different
//   bytes. No leader can have committed that.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "core/election.hpp"
#include "core/events.hpp"
#include "core/leader/admission.hpp"
#include "core/leader/commits.hpp"
#include "core/leader/decision.hpp"
#include "core/leader/halts.hpp"
#include "core/leader/job_view.hpp"
#include "core/leader/known_assignments.hpp"
#include "core/leader/local_decoding.hpp"
#include "core/leader/losses.hpp"
#include "core/leader/record_writer.hpp"
#include "core/leader/restore_progress.hpp"
#include "core/leader/storage.hpp"
#include "core/leader/suspicions.hpp"
#include "core/parity_pieces.hpp"

namespace ckpt::core {

class Leader {
 public:
  Leader(const Config& config, std::uint64_t epoch, const Predecessor& predecessor, TimeMs now,
         const InheritedHealth& known = {})
      : view_(config, epoch, now),
        storage_(view_.config, now),
        losses_(view_, record_writer_, predecessor),
        clock_(known.clock),
        health_(known.health),
        standing_since_(now - known.health.lasts_ms) {
    snapshot_interval_.inherit(known.health.pace_ms);
  }

  void on(const IncarnationRecordRead& read, bool is_in_store = true);  // see RecordWriter::accept()
  void on(const AssignmentsRead& read) { assignments_.on(read); }
  void on(NodeId from, const Report& report, TimeMs now);  // `from`: the node itself, or its relay
  // Node `other` has sent a directive, so it still believes that it leads.
  void on_directive_of(NodeId other, TimeMs now) { losses_.on_directive_of(other, now); }
  void on(const StorageListed& listed, TimeMs now) { storage_.on(listed, now); }
  void on(const FinalizeEnded& ended, TimeMs now) { storage_.on(ended, now); }
  // This node did nothing between `before` and `now`. Silence in that time counts against nobody, and every wait starts
  // again.
  void on_pause(TimeMs before, TimeMs now);
  // This node handled no event for `work_ms`, perhaps because the leader worked for so long. So this time does not
  // count as silence of other nodes.
  void on_long_work(TimeMs work_ms);
  // Call this when the nodes whose listeners refuse this node's token have changed. Replaces the earlier list.
  void distrust(const std::vector<NodeId>& nodes) { distrusted_ = nodes; }

  // Compares the reports with what should be. Adds the writes to the store and the directives that are due. With many
  // pieces it runs only now and then, and then handles all news since.
  void reconcile(TimeMs now, Effects& effects);
  std::optional<TimeMs> reconcile_wanted_at() const;  // none: nothing new to reconcile
  TimeMs reconcile_gap_ms() const;

  std::uint64_t epoch() const { return view_.epoch; }
  bool in_charge() const { return record_writer_.in_charge(); }
  std::vector<NodeId> nodes_present(TimeMs now) const;

  // True if another node obeys this leader, or may be about to. If not, the leader may be cut off from all others,
  // although it can write to the store. It then lets its lease run out, so that another node can take over.
  bool is_obeyed(TimeMs now) const;

 private:
  void receive_roll_call(TimeMs now);

  void reconcile_placement(Effects& effects);
  bool is_of_these_ranks(CheckpointId checkpoint) const;
  void reconcile_storage(TimeMs now, Effects& effects);
  void send_directives(TimeMs now, Effects& effects);
  static void send_batch(NodeId via, std::vector<DirectiveBatch::Item> items, Effects& effects);
  void call_absent(const Directive& common, TimeMs now, Effects& effects);
  void call(NodeId node, const Directive& common, TimeMs now, Effects& effects);
  Directive common_directive() const;
  Directive directive_for(const Peer& peer, Directive directive, TimeMs now) const;
  void reconcile_decoding(TimeMs now);
  void add_fetches(NodeId node, CheckpointId checkpoint, TimeMs now, Directive& directive) const;
  void add_local_decoding(NodeId node, const Pieces& pieces, Directive& directive) const;
  FetchOrder restore_of(NodeId node, const Places::value_type& place, const Holders& holders, TimeMs now) const;
  FetchOrder in_chain(NodeId node, const std::string& piece, const Place& place, const std::vector<NodeId>& fetching,
                      const Holders& holders) const;
  static FetchOrder decode_of(NodeId node, const Place& place, const CodedPiece& lost, const Pieces& pieces);
  static FetchOrder fetch_of(NodeId node, const Place& place, const Holders& holders);
  bool takes_orders(const Peer& peer) const;
  bool fetches_now(NodeId node, TimeMs now) const;
  std::vector<NodeId> nodes_fetching(const Places::value_type& place, const Holders& holders, TimeMs now) const;
  NodeId encoder_of(const Place& place, CheckpointId checkpoint, TimeMs now) const;
  bool should_have(const Role& role, CheckpointId checkpoint) const;

  // Why the job is degraded or not protected, for its health (leader_health.cpp).
  struct Obstacle {
    Cause cause = Cause::none;
    NodeId node = no_node;
    Rank rank = no_rank;
    std::string detail = {};
    std::uint8_t status = 0;
  };
  // The first thing that a checkpoint lacks for its commit, and the node that lacks it.
  struct Lack {
    NodeId node = no_node;
    bool is_capture = false;  // false: a copy or parity is missing
  };
  void reconcile_health(TimeMs now);
  void time_commit(TimeMs now);
  Obstacle find_obstacle(TimeMs now, bool is_overdue) const;
  Obstacle obstacle_of_restore() const;
  Obstacle obstacle_of_members(TimeMs now) const;
  Obstacle obstacle_of_trainers() const;
  Obstacle obstacle_of_copies() const;
  Obstacle obstacle_of_progress() const;
  Obstacle lesser_trouble(TimeMs now) const;
  Obstacle other_options() const;
  std::uint32_t capture_every() const;
  const RankReport* report_of(Rank rank) const;
  std::optional<Lack> first_lack(CheckpointId checkpoint, const Pieces& pieces) const;

  JobView view_;
  RecordWriter record_writer_{view_};
  KnownAssignments assignments_{view_, view_.assignment_table, view_.given_up_assignments};
  JobStorage storage_;
  AdmissionControl admission_{view_, view_.bindings, view_.alarm, record_writer_, storage_};
  Commits commits_{view_, view_.inventory, view_.alarm, record_writer_};
  Losses losses_;
  DecisionMaker decision_{
      view_, view_.inventory, view_.alarm, {record_writer_, assignments_, admission_, losses_, storage_}};
  RestoreProgress restore_progress_{view_, record_writer_, storage_};
  std::optional<TimeMs> led_since_;  // when this leader could send its first directive

  std::size_t pieces_received_ = 0;  // of all peers
  std::map<CheckpointId, std::map<std::string, CodedPiece>>
      decodable_;                 // from inventory_, for checkpoints that may still be needed
  std::set<std::string> lost_;    // shards of the checkpoint to restore that no node had at some time
  LocalDecoding local_decoding_;  // of these shards
  std::map<NodeId, std::vector<FetchOrder>> reads_;  // orders to read from storage, by the node that reads
  // For each piece of the checkpoint to restore, by name: the nodes that fetch it now. Filled while directives are
  // made.
  mutable std::map<std::string_view, std::vector<NodeId>> fetching_;
  // At which node the chains of each such piece begin. Kept, because nodes in a chain must have orders that agree.
  mutable std::map<std::string, NodeId> chain_from_;
  TimeMs called_at_ = view_.elected_at;  // when it last sent directives to members that it never heard
  NodeId called_last_ = no_node;
  CommitClock clock_;
  SnapshotInterval snapshot_interval_;
  Health health_;
  Suspicions suspicions_;
  Halts halts_;
  TimeMs standing_since_ = 0;
  std::vector<NodeId> distrusted_;
  // Times of one checkpoint on its way to the commit. They show which step is the slowest.
  struct Timing {
    CheckpointId checkpoint;
    TimeMs begun_at = 0;
    std::optional<TimeMs> captured_at;
    NodeId last_capturer = no_node;
    NodeId last_holder = no_node;
  };
  std::optional<Timing> timing_;
  struct Answer {
    Directive last;
    bool is_due = false;  // a report came: repeat the directive even without a change
  };
  std::map<NodeId, Answer> answers_;
  std::uint64_t directive_sequence_ = 0;
  TimeMs reconciled_at_ = 0;
  bool is_reconciled_ = true;
};

}  // namespace ckpt::core
