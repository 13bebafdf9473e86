// Runs the protocol's core. It hands the core one event at a time and carries out the effects that the core returns, on
// one thread, the core thread. Work that takes time runs on other threads and comes back as a task in the queue.
//
// Functions marked [any thread] only put a task into the queue. All others belong to the core thread.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "agent/pieces/core_queue.hpp"
#include "agent/event_log.hpp"
#include "agent/transfers/fetches.hpp"
#include "agent/member_hook.hpp"
#include "core/message_codec.hpp"
#include "agent/pieces/piece_index.hpp"
#include "gpu_replication/replication_manager.hpp"
#include "agent/pieces/segments.hpp"
#include "agent/transfers/storage_tier.hpp"
#include "agent/trainers/trainer_manager.hpp"
#include "agent/trainers/trainer_requests.hpp"
#include "agent/pieces/worker_pool.hpp"
#include "arena/node_arena.hpp"
#include "options/options.hpp"
#include "coord/node_registry.hpp"
#include "net/transport.hpp"
#include "core/node.hpp"

namespace ckpt::agent {

class StorePoller;

// Why the agent ends: somebody asked it to, or another agent serves its node now.
enum class EndReason { asked, replaced };

class Driver : public TrainerRequests {
 public:
  // All outlive the driver.
  struct Parts {
    const Options& options;
    arena::NodeArena& arena;
    PieceIndex& index;
    CoreQueue& queue;
    WorkerPool& digests;
    ChunkBuffers& buffers;
    Scheduler& scheduler;
    TraceBuffer& trace;
    Log log;
    std::function<void(EndReason, const std::string& why)> stop_agent;  // any thread
    std::vector<persist::CheckpointSourceFactory> sources = {};         // besides storage
    std::function<void()> listen_again = [] {};                         // any thread: makes the agent's socket again
  };
  Driver(const Parts& parts, core::NodeId node, std::uint64_t agent_id);
  ~Driver() override;

  // To be called before run(). Both must live until run() has returned.
  void use(net::Transport& transport, StorePoller& store);

  // The body of the core thread. Returns when the queue is closed.
  void run();
  // To be called after run(). On return nothing uses the transport any more.
  void end_transfers();

  // [any thread] What other threads report to the core.
  void post(core::Event event);
  void message_arrived(core::NodeId from, std::span<const std::byte> bytes);
  void store_read(core::Event read);
  void nodes_read(const std::vector<coord::NodeEntry>& nodes);
  void remark(const std::string& sentence);  // for people

  // [any thread] TrainerRequests.
  void hello(const core::TrainerHello& hello, std::int64_t pid, Respond respond) override;
  void exited(Asker asker) override;
  void restore(Asker asker, const RestoreRequest& request, Respond respond) override;
  void restored(Asker asker, std::string no_replication, Respond respond) override;
  void corrupt(Asker asker, const CorruptRequest& request, std::int64_t timeout_ms, Respond respond) override;
  void reserve(Asker asker, const ReserveRequest& request, Respond respond) override;
  void status(Respond respond) override;
  void health(Respond respond) override;
  void trace(Respond respond) override;
  void stop(Respond respond) override;

 private:
  struct Recovery;
  Driver(const Parts& parts, core::NodeId node, std::uint64_t agent_id, Recovery recovery);
  static Recovery recover(const Parts& parts);

  void handle(core::Event event);
  void run_task(const Task& task);

  void carry_out_alone(const core::Effect& effect);
  // Tell the core that an effect failed, if the core waits for its result. The core repeats all other effects by
  // itself.
  void failed(const core::StartFetch& fetch, const std::string& why);
  void failed(const core::ListStorage& list, const std::string& why);
  void failed(const core::StartWrite& write, const std::string& why);
  void failed(const core::FinalizeCheckpoint& commit, const std::string& why);
  void failed(const core::DropSlot& drop, const std::string&) { unfinished_.emplace_back(drop); }
  void failed(const core::ReadAssignments& read, const std::string&) { unfinished_.emplace_back(read); }
  template <class Other>
  void failed(const Other&, const std::string&) {}
  void finish_effects();

  void carry_out(const core::Send& send);
  void carry_out(const core::SwapLeaderRecord& swap);
  void carry_out(const core::SwapIncarnationRecord& swap);
  void carry_out(const core::ReadAssignments& read);
  void carry_out(const core::RemoveAssignments& removal);
  void carry_out(const core::Persist& persist);
  void carry_out(const core::StartFetch& fetch);
  void carry_out(const core::CancelFetch& cancel);
  void carry_out(const core::DropSlot& drop);
  void carry_out(const core::ReleaseSegment& release);
  void carry_out(const core::ListStorage& list);
  void carry_out(const core::StartWrite& write);
  void carry_out(const core::FinalizeCheckpoint& commit);
  void carry_out(const core::MemberChanged& changed);
  void carry_out(const core::NotifyReplicationGroup& notify) { replications_.notify(notify); }
  void carry_out(const core::Notice& notice);
  template <class OfTrainer>
  void carry_out(const OfTrainer& effect) {
    trainers_.carry_out(effect);
  }

  void log_decision(const core::IncarnationRecord& incarnation_record);
  void heed_alarm();
  // driver_health.cpp
  void heed_health();
  void observe();
  void probe_unauthenticated();
  void notify_health(const core::Health& health);
  nlohmann::json health_json() const;
  void heed_arena();
  void drop_damaged_segments();
  std::string alarm() const;
  void notify(const core::MemberChanged& changed, net::Reach reach);
  void listener_answered(const core::MemberChanged& lost, net::Reach reach);
  void fetch_ended(const core::StartFetch& fetch, core::FetchEnded ended);
  void source_damaged(const std::string& shard, CheckpointId checkpoint, core::NodeId node, bool is_wrong);
  void look_again(const core::VerifyRequest& request);
  void verify(const core::SlotRef& slot, std::function<void()> then);
  void take_nodes(const std::vector<coord::NodeEntry>& nodes);
  std::string node_name(core::NodeId node) const;
  std::string what_is_missing() const;
  std::uint64_t bytes_for_peers(std::uint64_t rank_bytes) const;
  std::uint64_t bytes_to_come(std::uint64_t piece_bytes) const;
  nlohmann::json status_json() const;
  nlohmann::json trace_json() const;
  nlohmann::json segments_json() const;
  nlohmann::json tiers_json(const core::NodeStatus& status) const;
  nlohmann::json storage_json(const core::NodeStatus& status) const;
  nlohmann::json ranks_json(const core::NodeStatus& status) const;

  const Parts parts_;
  const core::NodeId id_;
  const std::uint64_t agent_id_;
  net::Transport* transport_ = nullptr;
  StorePoller* store_ = nullptr;
  EventLog event_log_;
  MemberHook hook_;
  Segments segments_;
  std::optional<StorageTier> storage_;  // if there is storage
  ReplicationManager replications_;
  Fetches fetches_;
  TrainerManager trainers_;
  core::Node core_;
  std::deque<core::Event> events_;  // made on the core thread itself; handled before the queue's tasks
  bool handling_ = false;
  std::vector<core::Effect>
      unfinished_;  // tried again at the next tick; one for each slot and rank assignments at most
  std::string arena_alarm_;
  Deadline arena_look_ = Deadline::in_ms(0);
  std::map<core::NodeId, coord::NodeEntry> nodes_;
  std::map<core::NodeId, net::Reach> lost_;  // lost members, if this agent leads in lost_epoch_
  std::uint64_t lost_epoch_ = 0;
  // Nodes whose listeners are being probed, and the changes reported meanwhile.
  std::map<core::NodeId, std::vector<core::MemberChanged>> probing_;
  std::set<core::SlotRef> verifying_;
  std::uint64_t decided_incarnation_ = 0;  // its decision is in the log
  std::string alarm_;                      // the alarm that is in the log
  core::Observed observed_;
  Clock::time_point observe_again_at_ = {};
  Clock::time_point probe_again_at_ = {};
  std::set<core::NodeId> distrusted_;          // their listeners said that they have another token
  std::optional<core::Health> logged_health_;  // the verdict that is in the log
  CheckpointId committed_;
  std::optional<Clock::time_point> committed_at_;  // when this agent learned of it
};

}  // namespace ckpt::agent
