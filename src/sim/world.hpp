// World is one simulated run, from one seed. It owns all parts of the run and their virtual clock. Not thread-safe. Two
// Worlds share nothing, so they may run in different threads.
#pragma once

#include <cstdint>
#include <functional>
#include <iosfwd>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "sim/agent.hpp"
#include "sim/commit_rate_check.hpp"
#include "sim/communications.hpp"
#include "sim/event_queue.hpp"
#include "sim/faults.hpp"
#include "sim/halt_check.hpp"
#include "sim/invariants.hpp"
#include "sim/launcher.hpp"
#include "sim/liveness_check.hpp"
#include "sim/memory.hpp"
#include "sim/network.hpp"
#include "sim/protection.hpp"
#include "sim/repeat_check.hpp"
#include "sim/run_trace.hpp"
#include "sim/settings.hpp"
#include "sim/storage.hpp"
#include "sim/store.hpp"
#include "sim/trainer.hpp"
#include "sim/transfers.hpp"
#include "sim/watch_check.hpp"

namespace ckpt::sim {

struct Machine {
  NodeId id = 0;
  Arena arena;
  std::unique_ptr<Agent> agent;
  bool is_lost = false;
  bool is_shunned = false;  // the launcher starts nothing on it
  TimeMs clock_offset_ms = 0;
  TimeMs memory_full_until = 0;
  TimeMs effects_fail_until = 0;  // until then, some of the effects of its core fail
  TimeMs memory_since = 0;        // since when its arena exists
  TimeMs awake_since = 0;         // since when its agent has run without a pause that other nodes can notice
  TimeMs listens_since = 0;       // since when its agent has run without such a pause and without a jump of its clock
  TimeMs paused_from = 0;         // when the last such pause began
};

struct Outcome {
  std::uint64_t seed = 0;
  std::optional<Violation> violation;
  TimeMs virtual_ms = 0;
  std::uint64_t steps = 0;
  std::uint64_t fingerprint = 0;
  FaultTable faults;
  Tally tally;
  std::vector<std::string> plan;  // the planned faults, including those left out
};

class World {
 public:
  World(const Settings& settings, std::ostream* trace_to);
  ~World();

  Outcome run();

  // Machines and their agents.
  Agent* agent_on(NodeId node);                 // null if no agent runs there
  Agent* agent(NodeId node, std::uint64_t id);  // null if this run of the agent is over
  void start_agent(Machine& machine);           // does nothing if an agent runs, or the machine is lost
  void crash_agent(Machine& machine);           // the agent starts again some time later
  void lose_machine(Machine& machine);          // loses all that is on it; another machine replaces it some time later
  std::vector<NodeId> usable_machines() const;  // machines on which the launcher may start ranks
  bool awaits_replacement() const { return replacements_due_ > 0; }
  bool decision_is_notified() const;  // true if a node other than the leader knows the newest decision
  TimeMs pause_ms() const { return settings.core.node_timeout_ms / 2; }  // no node notices a shorter pause
  // True if nothing since `since` has kept `node` from reporting to a leader on machine `leader`: the node ran, could
  // send, could reach the leader, and could know that it leads. Whether the leader was awake does not matter here.
  bool is_reachable_from(const Machine& node, const Machine& leader, TimeMs since) const;
  // A leader that does its work knows all that happened before this time. It may not know of later events: it believes
  // a report for node_timeout_ms, and the network or a paused relay may have delayed that report.
  TimeMs news_of_before() const;
  TimeMs pause_ended() const { return pause_ended_; }
  void agent_paused(Machine& machine, TimeMs since);

  // Trainers.
  std::uint64_t make_trainer(int launch, Rank rank, NodeId node, const std::optional<Kept>& kept = {});
  Trainer* trainer(std::uint64_t instance);  // null if it is dead
  std::vector<Trainer*> trainers_on(NodeId node);
  std::vector<Trainer*> living_trainers();
  void trainer_died(const Trainer& trainer);
  void notify(std::uint64_t instance, std::function<void(Trainer&)> message);

  // The operator removes all state of the job and starts it anew.
  void give_up_job();

  const Settings settings;
  Random random;
  EventQueue event_queue;
  RunTrace trace;
  Network network;
  Store store;
  Storage storage;
  Transfers transfers;
  Launcher launcher;
  Communications communications;
  Invariants invariants;
  Faults faults;
  LivenessCheck liveness_check;
  CommitRateCheck commit_rate_check;
  Protection protection;
  WatchCheck watch_check;
  HaltCheck halt_check;
  RepeatCheck repeat_check;
  std::map<NodeId, Machine> machines;

 private:
  void add_machine(NodeId id);
  void replace(NodeId id);
  void deliver(NodeId from, NodeId to, const core::Message& message);

  std::map<std::uint64_t, std::unique_ptr<Trainer>> trainers_;
  std::vector<std::unique_ptr<Agent>> graveyard_;  // agents that died in this step: their functions may still run
  NodeId next_node_ = 0;
  std::uint64_t decision_notified_ = 0;  // newest incarnation whose decision a node has learned
  std::uint64_t agents_ = 0;
  int replacements_due_ = 0;
  TimeMs pause_began_ = 0;  // when the newest pause of any agent began, of those that have ended
  TimeMs pause_ended_ = -1'000'000;
};

}  // namespace ckpt::sim
