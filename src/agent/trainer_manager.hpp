// The agent's trainers: their control pages and grants, and the requests of theirs that wait for an answer. Belongs to
// the core thread.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "agent/event_log.hpp"
#include "agent/piece_index.hpp"
#include "agent/rank_port.hpp"
#include "agent/replication_manager.hpp"
#include "agent/scheduler.hpp"
#include "agent/segments.hpp"
#include "agent/trainer_requests.hpp"
#include "protocol/node.hpp"

namespace ckpt::agent {

class TrainerManager {
 public:
  // Who the manager works with; all outlive it.
  struct Dependencies {
    const std::string& directory;  // of the arena
    Segments& segments;
    PieceIndex& index;
    CoreQueue& queue;
    EventLog& event_log;
    Scheduler& scheduler;
    TraceBuffer& trace;
    ReplicationManager& replications;
    std::function<void(protocol::Event)> to_core;
    // Looks at a piece's bytes again, tells the core where they are damaged, then calls back.
    std::function<void(const protocol::SlotRef&, std::function<void()>)> verify;
    // Why a restore may take long, for people.
    std::function<std::string()> what_is_missing;
    // Bytes that copies of peers' shards will still need, once this rank's segments are of these sizes.
    std::function<std::uint64_t(std::uint64_t rank_bytes)> bytes_for_peers;
  };
  // `granted`: grants that living trainers may be using, by rank.
  TrainerManager(Dependencies dependencies, std::map<protocol::Rank, OpenGrant> granted);

  // ---- Requests ----
  void hello(const protocol::TrainerHello& hello, std::int64_t pid, const Respond& respond);
  void exited(Asker asker);
  void restore(Asker asker, const RestoreRequest& request, const Respond& respond);
  void restored(Asker asker, const std::string& no_replication, const Respond& respond);
  void corrupt(Asker asker, const CorruptRequest& request, std::int64_t timeout_ms, const Respond& respond);
  void reserve(Asker asker, const ReserveRequest& request, const Respond& respond);

  // ---- Effects ----
  void carry_out(const protocol::GrantSlots& grant);
  void carry_out(const protocol::NotifyCommit& notify);
  void carry_out(const protocol::NotifyStored& notify);
  void carry_out(const protocol::NotifyResume& notify);
  void carry_out(const protocol::Fence& fence);
  void carry_out(const protocol::RestoreReady& ready);
  void carry_out(const protocol::RestoreFailed& failed);

  // The trainer looks at what its path's board says.
  void ring(protocol::Rank rank);

  // The trainers learn that this agent lives, and what it says of the job.
  void notify(const arena::HealthNews& news);

  // Answers restores whose time is up, and reads what hooks tell.
  void tick();

  struct Trainer {
    std::unique_ptr<RankPort> port;
    std::int64_t pid = 0;
    Clock::time_point progress_at = Clock::now();  // attached, was served, began an iteration or captured one
    std::string shortage = {};                     // as it said itself
    bool wants_gpu_replication = false;
    std::uint8_t failed = 0;  // ckpt_status of its newest snapshot, 0 where it did not fail
  };
  const std::map<protocol::Rank, Trainer>& trainers() const { return trainers_; }
  // What the rank was last given to restore from, or null. An agent that was restarted since does not know.
  const protocol::RestoreReady* served(protocol::Rank rank) const;

 private:
  struct PendingRestore {
    Respond respond;
    Deadline deadline;
    Clock::time_point asked_at;
  };

  RankPort* port_of(Asker asker);
  RankPort* port_of(protocol::Rank rank);
  bool refuse_unknown(Asker asker, const Respond& respond);
  void look(Asker asker);
  void trace_capture(protocol::Rank rank, const RankPort::ControlChanges& changes);
  void await_restore(protocol::Rank rank, std::int64_t timeout_ms, const Respond& respond);
  std::optional<PendingRestore> take_pending(protocol::Rank rank);
  const protocol::SlotRef* served_slot(protocol::Rank rank, const std::string& shard) const;
  void add_receive_buffer(protocol::Rank rank, Reply& reply);
  Reply restore_reply(const protocol::RestoreReady& ready);

  const Dependencies deps_;
  std::map<protocol::Rank, OpenGrant> granted_;
  std::map<protocol::Rank, Trainer> trainers_;
  std::map<protocol::Rank, PendingRestore> restores_;
  std::map<protocol::Rank, protocol::RestoreReady> served_;  // what each rank was last given to restore from
};

}  // namespace ckpt::agent
