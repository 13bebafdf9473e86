// Driver connects the protocol's core, which decides, with the rest of the agent. It passes one event at a time to the
// core. The core returns effects, and the driver lets the right part of the agent carry out each effect. All of this
// happens on one thread, the core thread. Slow work runs on other threads. When it has ended, they put a task into the
// core thread's queue.
//
// Functions marked [any thread] only put a task into that queue. Only the core thread calls the others.
#pragma once

#include <deque>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "agent/agent_control.hpp"
#include "agent/arena_watch.hpp"
#include "agent/event_log.hpp"
#include "agent/health_reporter.hpp"
#include "agent/local_pieces.hpp"
#include "agent/member_watch.hpp"
#include "agent/peers.hpp"
#include "agent/pieces/core_queue.hpp"
#include "agent/pieces/segments.hpp"
#include "agent/queued_requests.hpp"
#include "agent/space_forecast.hpp"
#include "agent/trainers/trainer_manager.hpp"
#include "agent/transfer_orders.hpp"
#include "core/node.hpp"

namespace ckpt::agent {

class StorePoller;

class Driver : public EventSink {
 public:
  // The parts of the agent that the driver uses. All of them outlive it.
  struct Parts {
    const Options& options;
    arena::NodeArena& arena;
    PieceIndex& index;
    ArrivingPieces& arriving;
    CoreQueue& queue;
    WorkerPool& digests;
    ChunkBuffers& buffers;
    Scheduler& scheduler;
    TraceBuffer& trace;
    Log log;
    AgentControl& agent;
    const std::vector<persist::CheckpointSourceFactory>& sources;  // see AgentSetup::sources
  };
  Driver(const Parts& parts, core::NodeId node, std::uint64_t agent_id);

  // Call this before run() and requests(). Both arguments must live until run() has returned.
  void use(net::Transport& transport, StorePoller& store);
  TrainerRequests& requests() { return *requests_; }

  // The body of the core thread. Returns when the queue is closed.
  void run();
  // Cancels all fetches. Call this after run(). Afterwards nothing uses the transport any more.
  void end_transfers() { transfers_.close(); }

  // [any thread] Pass on to the core thread: a message of another node, a record of the coordination store, the nodes'
  // entries in that store.
  void message_arrived(core::NodeId from, std::span<const std::byte> bytes);
  void store_read(core::Event read);
  void nodes_read(const std::vector<coord::NodeEntry>& nodes);
  void remark(const std::string& sentence);  // writes a notice for people

  void handle(core::Event event) override;

 private:
  // Grants that an earlier agent gave and that trainers may still be using, by rank.
  using Grants = std::map<core::Rank, OpenGrant>;
  Driver(const Parts& parts, core::NodeId node, std::uint64_t agent_id, const Grants& granted);
  core::Recovered recover(const Grants& granted);

  void run_task(const Task& task);
  void tick();
  void receive(core::NodeId from, core::WireMessage message);
  void log_decision(const core::IncarnationRecord& incarnation_record);

  void carry_out_alone(const core::Effect& effect);
  template <class Effect>
  void carry_out(const Effect& effect);
  void carry_out(const core::Send& send);
  void carry_out(const core::Persist& persist);
  void carry_out(const core::Notice& notice) { event_log_.note(notice.text); }
  template <class Effect>
  void failed(const Effect& effect, const std::string& why);
  void finish_effects();

  const Parts parts_;
  StorePoller* store_ = nullptr;
  std::string local_store_;  // as StatusSources::local_store
  EventLog event_log_;
  Peers peers_;
  Segments segments_;
  SpaceForecast space_;
  LocalPieces pieces_;
  TransferOrders transfers_;
  TrainerManager trainers_;
  core::Node core_;
  MemberWatch members_;
  HealthReporter health_;
  ArenaWatch arena_watch_;
  std::optional<QueuedRequests> requests_;

  std::deque<core::Event> events_;  // events from the core thread itself, handled before the queue's tasks
  bool handling_ = false;
  // Failed effects to try again at the next tick: at most one per slot, and one for the rank assignments.
  std::vector<core::Effect> unfinished_;
  std::uint64_t decided_incarnation_ = 0;  // the incarnation whose restore decision was logged last
  CheckpointId committed_;
  std::optional<Clock::time_point> committed_at_;  // when this agent learned of committed_
};

}  // namespace ckpt::agent
