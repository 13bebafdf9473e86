// TrainerManager keeps what the agent has for each of its trainers: the control page, the grant, and the requests that
// wait for an answer. Only the agent's core thread uses it.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>

#include "agent/event_log.hpp"
#include "agent/local_pieces.hpp"
#include "agent/pieces/piece_index.hpp"
#include "agent/pieces/segments.hpp"
#include "agent/scheduler.hpp"
#include "agent/space_forecast.hpp"
#include "agent/trainers/arrivals.hpp"
#include "agent/trainers/rank_port.hpp"
#include "agent/trainers/rank_reader.hpp"
#include "agent/trainers/trainer_requests.hpp"
#include "core/node.hpp"
#include "gpu_replication/replication_manager.hpp"

namespace ckpt::agent {

class TrainerManager {
 public:
  // What the manager uses. All of it outlives the manager.
  struct Dependencies {
    const std::string& directory;  // of the arena
    Segments& segments;
    PieceIndex& index;
    CoreQueue& queue;
    EventLog& event_log;
    Scheduler& scheduler;
    TraceBuffer& trace;
    ReplicationManager& replications;
    EventSink& core;
    LocalPieces& pieces;
    const SpaceForecast& space;
    core::RankWatch::Limits limits;
    const core::Node& node;
  };
  // `granted`: grants that living trainers may be using, by rank.
  TrainerManager(Dependencies dependencies, std::map<core::Rank, OpenGrant> granted);

  // ---- Requests ----
  void hello(const core::TrainerHello& hello, std::int64_t pid, const Respond& respond);
  void exited(Asker asker, bool died);
  void restore(Asker asker, const RestoreRequest& request, const Respond& respond);
  void restored(Asker asker, const std::string& no_replication, const Respond& respond);
  void corrupt(Asker asker, const CorruptRequest& request, std::int64_t timeout_ms, const Respond& respond);
  void reserve(Asker asker, const ReserveRequest& request, const Respond& respond);
  void trouble(Asker asker, const std::string& text, const Respond& respond);

  // A fetch writes to its slot from now on. Ranks that wait for its piece may follow it.
  void fetch_began(const core::StartFetch& fetch);
  void fetch_ended(std::uint64_t fetch) { arrivals_.ended(fetch); }

  // ---- Effects ----
  void carry_out(const core::GrantSlots& grant);
  void carry_out(const core::AddSlots& add);
  void carry_out(const core::NotifyCommit& notify);
  void carry_out(const core::NotifyStored& notify);
  void carry_out(const core::NotifyResume& notify);
  void carry_out(const core::NotifyHalt& notify);
  void carry_out(const core::Fence& fence);
  void carry_out(const core::RestoreReady& ready);
  void carry_out(const core::RestoreFailed& failed);

  // Wakes the rank's trainer, so that it reads its arena::ReplicationPage.
  void ring(core::Rank rank);

  // Tells all trainers the job's health. This also shows them that the agent lives.
  void notify(const arena::HealthNews& news);

  // Call this regularly. Reads the events of the communication hooks, and looks whether the trainers make progress.
  void tick();
  // has_overdue_restore(): whether the deadline of a restore has passed. end_overdue_restores() answers all such
  // restores with a timeout. `why` tells people what they waited for.
  bool has_overdue_restore() const;
  void end_overdue_restores(const std::string& why);

  struct Trainer {
    std::unique_ptr<RankPort> port;
    std::int64_t pid = 0;
    // When the trainer last made progress: it connected, got its state, began an iteration or captured one.
    Clock::time_point progress_at = Clock::now();
    std::string shortage = {};  // what its GPU lacks memory for, as it reported for people; "" if nothing
    bool wants_gpu_replication = false;
    bool takes_shards = false;
    bool follows_arrivals = false;
    std::optional<Clock::time_point> asked_at = {};  // since when it waits for its state
    std::optional<Clock::time_point> ready_at = {};  // since when all of it is here
    std::uint8_t failed = 0;         // ckpt_status of its newest failed snapshot; 0: none failed since its last capture
    std::string slots_refused = {};  // why the agent could not add a slot that its captures need; otherwise ""
  };
  const std::map<core::Rank, Trainer>& trainers() const { return trainers_; }
  const RankReader& watch() const { return watch_; }
  // The pieces that this agent last gave the rank to restore from. Null if it has not given any.
  const core::RestoreReady* served(core::Rank rank) const;

 private:
  struct PendingRestore {
    Respond respond;
    Deadline deadline;
  };

  RankPort* port_of(Asker asker);
  RankPort* port_of(core::Rank rank);
  bool refuse_unknown(Asker asker, const Respond& respond);
  core::SegmentsReady segments_of(core::Rank rank, const std::vector<std::string>& shards) const;
  bool has_spare(core::Rank rank, const std::string& shard) const;
  void look(Asker asker);
  void take_left_behind(core::Rank rank, LeftPieces&& pieces);
  void watch_ranks();
  void trace_capture(core::Rank rank, const RankPort::ControlChanges& changes);
  void await_restore(core::Rank rank, std::int64_t timeout_ms, const Respond& respond);
  std::optional<PendingRestore> take_pending(core::Rank rank);
  const core::SlotRef* served_slot(core::Rank rank, const std::string& shard) const;
  void add_receive_buffer(core::Rank rank, Reply& reply);
  void no_longer_waits(core::Rank rank);
  void tell_arrivals();
  void tell_arrivals(core::Rank rank);

  const Dependencies deps_;
  std::map<core::Rank, OpenGrant> granted_;
  std::map<core::Rank, Trainer> trainers_;
  RankReader watch_;
  std::map<core::Rank, PendingRestore> restores_;
  std::map<core::Rank, core::RestoreReady> served_;  // see served()
  Arrivals arrivals_;
};

}  // namespace ckpt::agent
