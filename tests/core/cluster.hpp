// Runs a job of several nodes on the real core, in a world without faults. Messages, store writes and fetches are done
// at once. Time moves when a test says so. The simulator (src/sim) has faults.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/leader/rank_assignments.hpp"
#include "core/node.hpp"
#include "core/parity_pieces.hpp"

namespace ckpt::core {

inline std::string main_shard(Rank rank) { return "rank" + std::to_string(rank); }
inline std::string private_shard(Rank rank) { return "rank" + std::to_string(rank) + ".private"; }

// Every rank on the node of its number.
inline NodeId own_node(Rank rank) { return rank; }

// Main shards fill their parity groups evenly, whatever the number of members.
inline PieceInfo piece_of(const std::string& shard, CheckpointId checkpoint, std::uint32_t world_size) {
  const std::uint64_t length_bytes = shard.ends_with(".private") ? 1000 : 60 * placement::parity_unit_bytes;
  return {shard, checkpoint, length_bytes, 100, std::hash<std::string>{}(shard) ^ checkpoint.word(), world_size};
}

class Cluster {
 public:
  Cluster(std::uint32_t nodes, std::uint32_t world_size, std::uint32_t copies = 2)
      : protection(placement::Protection::of_copies(copies)), world_size_(world_size) {
    for (NodeId node = 0; node < nodes; ++node) boot(node);
  }

  // Starts (or replaces) a node with an empty arena.
  void boot(NodeId node) {
    persisted_.erase(node);
    boot(node, ++ids_, Recovered{});
  }
  // Ends all agents and starts them again. Whole pieces in the arenas stay whole.
  void restart_agents() {
    for (auto& [node, core] : nodes_) restart_agent(node);
    granted_.clear();
  }
  // `found_grants`: what the agent finds of trainers that have not come back to it.
  void restart_agent(NodeId node, std::vector<Recovered::Granted> found_grants = {}) {
    auto& core = nodes_.at(node);
    Recovered recovered;
    for (const PieceInfo& piece : core->status().pieces) {
      recovered.slots.push_back({*core->find(piece.shard, piece.checkpoint), piece, true});
    }
    const Persist& kept = persisted_[node];
    recovered.highest_commit = kept.highest_commit;
    recovered.newest_seen = kept.newest_seen;
    recovered.epoch = kept.epoch;
    recovered.newest_damaged = kept.newest_damaged;
    for (const auto& grant : found_grants) {
      for (const SlotRef& slot : grant.slots) recovered.slots.push_back({slot, {}, false});
    }
    recovered.granted = std::move(found_grants);
    core.reset();
    boot(node, arenas_.at(node), recovered);
  }
  // All agents stand still together, as when their machines are suspended. Nothing happens, and time passes.
  void pause(TimeMs ms) { now_ += ms; }
  void boot(NodeId node, std::uint64_t arena_id, const Recovered& recovered) {
    arenas_[node] = arena_id;
    Config config;
    config.node = node;
    config.arena_id = arena_id;
    config.protection = protection;
    config.strategy = strategy;
    config.domain = domains[node];
    config.standby = standbys.contains(node);
    config.storage = config.storage_writes = storage.has_value() && !without_storage.contains(node);
    config.storage_every = storage_every;
    configure(config);
    if (storage) ++config.local_slots, ++config.local_slots_max;
    nodes_[node] = std::make_unique<Node>(config, ++ids_, recovered);
    feed(node, LeaderRecordRead{leader_revision_, leader_});
    feed(node, IncarnationRecordRead{incarnation_revision_, incarnation_record_});
    drain();
  }
  void lose(NodeId node) { nodes_.erase(node); }
  // The node's agent hears nothing and does nothing; when it goes on, all that it finds is time that has passed.
  void stop(NodeId node) { stopped_[node] = nodes_.extract(node); }
  void resume(NodeId node) {
    nodes_.insert(std::move(stopped_.at(node)));
    stopped_.erase(node);
  }
  // All machines and the coordination store are gone, and as many new ones come.
  void lose_everything() {
    const auto nodes = static_cast<NodeId>(nodes_.size());
    nodes_.clear();
    granted_.clear();
    ready.clear();
    failed.clear();
    leader_ = {};
    incarnation_record_ = {};
    assignments.clear();
    leader_revision_ = incarnation_revision_ = 0;
    for (NodeId node = 0; node < nodes; ++node) boot(node);
    advance(100);
  }

  // The coordination store is empty again, and all agents start again.
  void lose_records() {
    leader_ = {};
    incarnation_record_ = {};
    assignments.clear();
    leader_revision_ = incarnation_revision_ = 0;
    restart_agents();
    ready.clear();
    commits.clear();
  }

  void hello(NodeId node, Rank rank, std::uint64_t incarnation = 0) {
    instances_[rank] = ++ids_;
    homes_[rank] = node;
    feed(node,
         TrainerHello{rank, instances_[rank], incarnation, world_size_, main_of(rank), private_shard(rank),
                      captures_every.contains(rank) ? captures_every.at(rank) : 1, halting.contains(rank), capture});
    drain();
  }
  void lose_incarnation_record() {
    lost_incarnation_ = incarnation();
    incarnation_record_ = {};
    incarnation_revision_ = 0;
  }
  // To an agent that was started again: an engine that has restored and lives.
  void come_back(Rank rank) {
    feed(homes_.at(rank),
         TrainerHello{rank, instances_.at(rank), incarnation(), world_size_, main_of(rank), private_shard(rank)});
    drain();
  }
  // A bad write into the coordination store, which every agent reads.
  void damage(const std::function<void(LeaderRecord&, IncarnationRecord&)>& write) {
    write(leader_, incarnation_record_);
    ++leader_revision_;
    ++incarnation_revision_;
    for (const auto& [node, core] : nodes_) {
      feed(node, LeaderRecordRead{leader_revision_, leader_});
      feed(node, IncarnationRecordRead{incarnation_revision_, incarnation_record_});
    }
    drain();
  }
  // Of the coordination store, the record of who is leader alone.
  void lose_leader_record() {
    leader_ = {};
    leader_revision_ = 0;
  }

  // All trainers end, and the job starts again with another number of ranks.
  void restart_with(std::uint32_t world_size, const std::function<NodeId(Rank)>& node_of) {
    end_trainers();
    world_size_ = world_size;
    start_incarnation(node_of);
  }
  void end_trainers() {
    for (Rank rank = 0; rank < world_size_; ++rank) {
      if (homes_.contains(rank)) exit_trainer(rank);
      granted_.erase(rank);
    }
    ready.clear();
    failed.clear();
  }

  void exit_trainer(Rank rank) {
    feed(homes_.at(rank), TrainerExited{rank, instances_.at(rank)});
    drain();
  }
  void ask_restore(Rank rank) {
    feed(homes_.at(rank), RestoreAsked{rank, wants_gpu_replication, takes_shards && rank != takes_no_shards});
    drain();
  }
  // Every rank says hello on its node and restores.
  void start_incarnation(const std::function<NodeId(Rank)>& node_of) {
    for (Rank rank = 0; rank < world_size_; ++rank) hello(node_of(rank), rank);
    for (Rank rank = 0; rank < world_size_; ++rank) ask_restore(rank);
  }
  void begin_training() {
    for (Rank rank = 0; rank < world_size_; ++rank) begin_training(rank);
  }
  void begin_training(Rank rank) {
    feed(homes_.at(rank), RestoreDone{rank});
    auto segments = parts_of(main_of(rank), shares_.at(rank));
    segments.push_back(private_shard(rank));
    const auto slots = static_cast<std::uint8_t>(storage ? own_slots + 1 : own_slots);
    feed(homes_.at(rank), SegmentsReady{rank, segments, slots, static_cast<std::uint8_t>(slots + spare_slots)});
    drain();
  }
  // A whole snapshot of one rank; false when it holds no grant (it then skips).
  bool snapshot(Rank rank, std::int64_t iteration) {
    const NodeId node = homes_.at(rank);
    const auto grant = granted_.find(rank);
    if (grant == granted_.end()) {
      feed(node, Progress{rank, iteration, -1});
      drain();
      return false;
    }
    const CheckpointId checkpoint(served_in_.at(rank), iteration);
    Captured captured{rank, {}};
    for (const SlotRef& slot : grant->second) captured.pieces.push_back(piece_of(slot.shard, checkpoint, world_size_));
    granted_.erase(grant);
    feed(node, captured);
    feed(node, Progress{rank, iteration, -1});
    drain();
    return true;
  }
  void snapshot_all(std::int64_t iteration) {
    for (Rank rank = 0; rank < world_size_; ++rank) snapshot(rank, iteration);
  }

  void feed(NodeId node, const Event& event) {
    if (!nodes_.contains(node)) return;
    for (Effect& effect : nodes_.at(node)->handle(event, now_)) pending_.emplace_back(node, std::move(effect));
  }
  void advance(TimeMs ms) {
    for (const TimeMs end = now_ + ms; now_ < end;) {
      now_ += 50;
      std::vector<NodeId> alive;
      for (const auto& [node, core] : nodes_) alive.push_back(node);
      for (const NodeId node : alive) feed(node, Tick{});
      drain();
    }
  }

  // The leader is cut off until another node is.
  void change_leader() {
    const NodeId old = *current_leader();
    for (const auto& [node, core] : nodes_) {
      cut.insert({node, old});
      cut.insert({old, node});
    }
    for (int i = 0; i < 400 && current_leader() == old; ++i) advance(50);
    cut.clear();
  }
  void finish_commit(NodeId from, const FinalizeCheckpoint& commit) {
    if (storage->trouble.empty()) {
      auto& step = storage->steps[commit.checkpoint];
      step.clear();
      for (const std::string& shard : commit.shards) step.push_back(storage->written.at(commit.checkpoint).at(shard));
    }
    storage->committed_damaged = commit.damaged;
    feed(from, FinalizeEnded{commit.checkpoint, storage->trouble});
  }

  NodeStatus status(NodeId node) const { return nodes_.at(node)->status(); }
  Health health(NodeId node) const { return nodes_.at(node)->health(now_); }
  std::uint64_t incarnation() const { return std::max(incarnation_record_.incarnation, lost_incarnation_); }
  const IncarnationRecord& incarnation_record() const { return incarnation_record_; }
  std::optional<NodeId> current_leader() const {
    for (const auto& [node, core] : nodes_) {
      if (core->status().is_leader && core->status().epoch == leader_.epoch) return node;
    }
    return std::nullopt;
  }

  // What trainers were told.
  std::map<Rank, RestoreReady> ready;
  std::map<Rank, RestoreFailed> failed;
  std::map<Rank, CheckpointId> commits;
  std::map<Rank, CheckpointId> stored;
  std::map<Rank, Fence> fenced;
  std::map<Rank, std::int64_t> resume_at;
  std::map<Rank, std::vector<NotifyHalt>> halts;
  std::map<Rank, std::vector<NotifyReplicationGroup>> replications;
  bool was_ready_before_replication = false;
  std::map<Rank, std::uint32_t> captures_every;  // options of ranks that say hello from now on
  std::set<Rank> halting;
  CaptureMode capture = CaptureMode::every;  // of all ranks, likewise
  bool wants_gpu_replication = false;        // every rank
  bool takes_shards = false;                 // every rank but the next one
  std::optional<Rank> takes_no_shards;
  std::map<AssignmentsName, std::vector<RankAssignment>> assignments;  // in the store
  bool reading_assignments = true;                                     // false: they are not told
  int assignments_asked = 0;
  AssignmentTable assignment_table() const {
    return AssignmentTable(incarnation_record_.assignments.incarnation,
                           assignments.at(incarnation_record_.assignments));
  }
  bool answering_leader_swaps = true;
  bool swapping =
      true;  // false: changes of the incarnation record stay under way, their rank assignments being written
  std::vector<std::pair<NodeId, SwapIncarnationRecord>> held_swaps;
  void release_swaps() {
    swapping = true;
    for (auto& [from, swap] : std::exchange(held_swaps, {})) carry_out(from, swap);
    drain();
  }
  bool fetching = true;   // false: fetches stay under way
  bool releasing = true;  // false: dropped slots keep a reader
  std::vector<StartFetch> held_fetches;
  std::vector<NodeId> held_by;
  void release_fetches() {
    fetching = true;
    const auto nodes = std::exchange(held_by, {});
    const auto fetches = std::exchange(held_fetches, {});
    for (std::size_t i = 0; i < fetches.size(); ++i) {
      StartFetch fetch = fetches[i];
      carry_out(nodes[i], fetch);
    }
    drain();
  }
  const SlotRef* find_slot(NodeId node, const PieceInfo& piece) const {
    return nodes_.at(node)->find(piece.shard, piece.checkpoint);
  }
  // A reader finds that the piece's bytes are not what they were.
  void rot(NodeId node, const std::string& shard, CheckpointId checkpoint) {
    feed(node, PieceCorrupt{*nodes_.at(node)->find(shard, checkpoint)});
    drain();
  }
  std::map<std::string, int> made;  // out of other pieces, by shard
  std::vector<SlotRef> held_releases;
  struct Storage {
    std::map<CheckpointId, std::map<std::string, PieceInfo>> written;
    std::map<CheckpointId, std::vector<PieceInfo>> steps;  // that are whole
    std::set<CheckpointId> damaged;
    std::set<CheckpointId> unreadable;  // that list well
    std::set<NodeId> cannot_read;       // nodes
    std::string trouble;                // while it does not answer
    std::string read_trouble;           // while it lists and cannot be read
    std::string withheld;               // why it does not tell all
    std::vector<std::string> unusable;
    std::uint64_t newest_incarnation = 0;
    bool knows_incarnations = true;
    bool writing = true;  // false: writes stay under way
    std::vector<std::pair<NodeId, StartWrite>> held_writes;
    bool committing = true;  // false: commits stay under way
    std::vector<std::pair<NodeId, FinalizeCheckpoint>> held_commits;
    std::vector<CheckpointId> committed_damaged;  // that the last commit was told of
    std::map<std::string, int> reads;             // by shard
  };
  std::uint8_t own_slots = 2;        // of ranks that begin to train from now on; with storage one more
  std::uint8_t spare_slots = 0;      // of their private shards, likewise: 1 in a job that can be halted
  std::optional<Storage> storage;    // of nodes that boot from now on
  std::set<NodeId> without_storage;  // likewise, as set up by mistake
  std::map<Rank, std::vector<AddSlots>> added_slots;
  std::int64_t storage_every = 0;           // likewise
  std::set<std::pair<NodeId, NodeId>> cut;  // messages from, to that are lost
  const std::map<Rank, std::vector<SlotRef>>& granted() const { return granted_; }
  const SlotRef& spare(Rank rank) const { return spares_.at(rank); }  // as it was last granted
  const Share& share(Rank rank) const { return shares_.at(rank); }

  // Which main shard a rank names; of its own unless a test says otherwise.
  std::function<std::string(Rank)> main_of = main_shard;
  placement::Protection protection;                                              // of nodes that boot from now on
  std::optional<placement::Strategy> strategy;                                   // likewise
  std::map<NodeId, std::string> domains;                                         // likewise
  std::set<NodeId> standbys;                                                     // likewise
  std::vector<MemberChanged> changes;                                            // that were told
  std::vector<std::string> notices;                                              // likewise
  std::function<void(const Directive&)> on_directive = [](const Directive&) {};  // that is sent
  // Of a message that is sent; a test may feed others in its place.
  std::function<bool(NodeId from, const Send&)> arrives = [](NodeId, const Send&) { return true; };
  std::function<void(Config&)> configure = [](Config&) {};  // of nodes that boot from now on

 private:
  void drain() {
    while (!pending_.empty()) {
      auto [node, effect] = std::move(pending_.front());
      pending_.pop_front();
      std::visit([&, from = node](auto& content) { carry_out(from, content); }, effect);
    }
  }
  void carry_out(NodeId from, Send& send) {
    if (const auto* directive = std::get_if<Directive>(&send.message)) on_directive(*directive);
    if (!cut.contains({from, send.to}) && arrives(from, send)) feed(send.to, MessageArrived{from, send.message});
  }
  void carry_out(NodeId from, SwapLeaderRecord& swap) {
    if (!answering_leader_swaps) return;
    if (swap.expected_revision == leader_revision_) {
      leader_ = swap.record;
      ++leader_revision_;
    }
    feed(from, LeaderRecordRead{leader_revision_, leader_});
    for (const auto& [node, core] : nodes_) {
      if (node != from) feed(node, LeaderRecordRead{leader_revision_, leader_});
    }
  }
  void carry_out(NodeId from, ReadAssignments& read) {
    ++assignments_asked;
    if (reading_assignments)
      feed(from, AssignmentsRead{read.name, assignments.contains(read.name) ? assignments.at(read.name)
                                                                            : std::vector<RankAssignment>()});
  }
  void carry_out(NodeId, RemoveAssignments& removal) {
    std::erase_if(assignments, [&](const auto& entry) { return entry.first.incarnation < removal.before_incarnation; });
  }
  void carry_out(NodeId from, SwapIncarnationRecord& swap) {
    if (!swap.assignments.empty()) assignments[swap.record.assignments] = swap.assignments;
    if (!swapping) {
      held_swaps.emplace_back(from, swap);
      return;
    }
    if (swap.expected_revision == incarnation_revision_) {
      incarnation_record_ = swap.record;
      ++incarnation_revision_;
    }
    feed(from, IncarnationRecordRead{incarnation_revision_, incarnation_record_});
  }
  void carry_out(NodeId from, StartFetch& fetch) {
    if (!fetching) {
      held_fetches.push_back(fetch);
      held_by.push_back(from);
      return;
    }
    if (fetch.source == storage_node) return read_stored(from, fetch);
    if (fetch.source == parity_node) return make(from, fetch);
    const bool there = nodes_.contains(fetch.source) &&
                       nodes_.at(fetch.source)->find(fetch.piece.shard, fetch.piece.checkpoint) != nullptr;
    feed(from, FetchEnded{fetch.fetch, there ? FetchResult::complete : FetchResult::failed, {}});
  }
  // Out of the ranges that are needed and no others.
  void make(NodeId from, const StartFetch& fetch) {
    const ParityManifest& parity_manifest = fetch.coding_inputs.parity_manifest;
    const auto wanted = group_piece(parity_manifest, fetch.piece.shard);
    const auto plan = plan_coding(parity_manifest, *wanted, lost_pieces(parity_manifest, fetch.coding_inputs.sources));
    const auto has = [&](const std::string& shard) {
      return std::any_of(fetch.coding_inputs.sources.begin(), fetch.coding_inputs.sources.end(),
                         [&](const auto& source) {
                           return source.shard == shard && nodes_.contains(source.node) &&
                                  nodes_.at(source.node)->find(shard, fetch.piece.checkpoint) != nullptr;
                         });
    };
    bool there = plan.lost.empty();
    for (const auto& step : plan.steps) {
      for (const auto& source : step.sources)
        there = there && (source.bytes.size_bytes == 0 ||
                          has(group_piece_name(parity_manifest, source.member, source.position)));
    }
    ++made[fetch.piece.shard];
    PieceInfo piece = fetch.piece;
    if (piece.root_digest == 0) piece.root_digest = std::hash<std::string>{}(piece.shard) ^ piece.checkpoint.word();
    feed(from, FetchEnded{fetch.fetch, there ? FetchResult::complete : FetchResult::failed, {}, piece});
  }
  void read_stored(NodeId from, const StartFetch& fetch) {
    ++storage->reads[fetch.piece.shard];
    const bool damaged = storage->damaged.contains(fetch.piece.checkpoint);
    const bool unreadable = storage->unreadable.contains(fetch.piece.checkpoint) || storage->cannot_read.contains(from);
    const std::string trouble = storage->trouble + storage->read_trouble +
                                (unreadable ? "it cannot be read"
                                 : damaged  ? "damaged"
                                            : "");
    const auto result = trouble.empty()          ? FetchResult::complete
                        : damaged && !unreadable ? FetchResult::corrupt
                                                 : FetchResult::failed;
    feed(from, FetchEnded{fetch.fetch, result, trouble});
  }
  void carry_out(NodeId from, ListStorage&) {
    StorageListed listed;
    listed.trouble = storage->trouble.empty() ? storage->withheld : storage->trouble;
    for (const auto& [checkpoint, pieces] : storage->steps) {
      if (storage->trouble.empty()) listed.pieces.insert(listed.pieces.end(), pieces.begin(), pieces.end());
    }
    if (storage->trouble.empty()) listed.unusable = storage->unusable;
    listed.newest_incarnation = storage->newest_incarnation;
    listed.knows_incarnations = storage->knows_incarnations && storage->trouble.empty();
    feed(from, listed);
  }
  void carry_out(NodeId from, StartWrite& write) {
    if (!storage->writing) {
      storage->held_writes.emplace_back(from, write);
      return;
    }
    for (const std::string& shard : write.discarded.shards) storage->written[write.discarded.checkpoint].erase(shard);
    for (const SlotRef& slot : write.slots)
      storage->written[write.checkpoint][slot.shard] = piece_of(slot.shard, write.checkpoint, world_size_);
    feed(from, WriteEnded{write.checkpoint, storage->trouble});
  }
  void carry_out(NodeId from, FinalizeCheckpoint& commit) {
    if (!storage->committing) {
      storage->held_commits.emplace_back(from, commit);
      return;
    }
    finish_commit(from, commit);
  }
  void carry_out(NodeId from, CancelFetch& cancel) { feed(from, FetchEnded{cancel.fetch, FetchResult::failed, {}}); }
  void carry_out(NodeId from, DropSlot& drop) {
    if (releasing)
      feed(from, SlotReleased{drop.slot});
    else
      held_releases.push_back(drop.slot);
  }
  void carry_out(NodeId, AddSlots& add) { added_slots[add.rank].push_back(add); }
  void carry_out(NodeId, GrantSlots& grant) {
    granted_[grant.rank] = grant.slots;
    if (grant.spare) spares_[grant.rank] = *grant.spare;
  }
  void carry_out(NodeId, RestoreReady& answer) {
    ready[answer.rank] = answer;
    served_in_[answer.rank] = answer.incarnation;
    shares_[answer.rank] = answer.share;
  }
  void carry_out(NodeId, RestoreFailed& answer) { failed[answer.rank] = answer; }
  void carry_out(NodeId, NotifyCommit& notify) { commits[notify.rank] = notify.committed; }
  void carry_out(NodeId, NotifyStored& notify) { stored[notify.rank] = notify.stored; }
  void carry_out(NodeId, NotifyResume& notify) { resume_at[notify.rank] = notify.resume_at; }
  void carry_out(NodeId, NotifyHalt& notify) { halts[notify.rank].push_back(notify); }
  void carry_out(NodeId, NotifyReplicationGroup& notify) {
    was_ready_before_replication = was_ready_before_replication || ready.contains(notify.rank);
    replications[notify.rank].push_back(notify);
  }
  void carry_out(NodeId, Fence& fence) { fenced[fence.rank] = fence; }
  void carry_out(NodeId from, Persist& persist) { persisted_[from] = persist; }
  void carry_out(NodeId, ReleaseSegment&) {}
  void carry_out(NodeId, MemberChanged& changed) { changes.push_back(changed); }
  void carry_out(NodeId, Notice& notice) { notices.push_back(notice.text); }

  std::uint32_t world_size_;
  std::uint64_t ids_ = 0;
  TimeMs now_ = 1000;
  std::map<NodeId, std::unique_ptr<Node>> nodes_;
  std::map<NodeId, std::map<NodeId, std::unique_ptr<Node>>::node_type> stopped_;
  std::map<NodeId, std::uint64_t> arenas_;
  std::map<NodeId, Persist> persisted_;  // in its arena
  std::map<Rank, std::uint64_t> instances_;
  std::map<Rank, NodeId> homes_;
  std::map<Rank, std::vector<SlotRef>> granted_;  // unused grants
  std::map<Rank, SlotRef> spares_;
  std::map<Rank, Share> shares_;
  std::map<Rank, std::uint64_t> served_in_;  // incarnation
  std::deque<std::pair<NodeId, Effect>> pending_;
  std::uint64_t leader_revision_ = 0;
  LeaderRecord leader_;
  std::uint64_t incarnation_revision_ = 0;
  IncarnationRecord incarnation_record_;
  std::uint64_t lost_incarnation_ = 0;  // of a record that was lost
};

}  // namespace ckpt::core
