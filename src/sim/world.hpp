// World is one simulated run, from one seed. It owns the machines, network, store, trainers, launcher, faults and
// invariants, and their virtual clock. Not thread-safe. Runs in different threads share nothing.
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
#include "sim/invariants.hpp"
#include "sim/launcher.hpp"
#include "sim/liveness_check.hpp"
#include "sim/memory.hpp"
#include "sim/network.hpp"
#include "sim/protection.hpp"
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
  TimeMs effects_fail_until = 0;  // some of them fail until then
  TimeMs memory_since = 0;        // since when its arena exists
  TimeMs awake_since = 0;         // since when its agent has run without a pause that others can notice
  TimeMs listens_since = 0;       // likewise, and without a jump of its own clock
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
  Agent* agent_on(NodeId node);                 // null if none runs
  Agent* agent(NodeId node, std::uint64_t id);  // null if that run of it is over
  void start_agent(Machine& machine);           // does nothing if one runs, or the machine is lost
  void crash_agent(Machine& machine);           // it comes back some time later
  void lose_machine(Machine& machine);          // with everything on it; it is replaced some time later
  std::vector<NodeId> usable_machines() const;  // for the launcher
  bool awaits_replacement() const { return replacements_due_ > 0; }
  bool decision_is_notified() const;  // whether a node other than the leader knows the newest decision
  TimeMs pause_ms() const { return settings.core.node_timeout_ms / 2; }  // nobody notices a shorter one
  // True if, since `since`, nothing has prevented `node` from reporting to a leader on `leader`: it ran, could send,
  // reach the leader, and could know that it leads. Whether the leader itself was awake does not matter here.
  bool is_reachable_from(const Machine& node, const Machine& leader, TimeMs since) const;
  // A leader that did its work knows everything that happened before this time, or can no longer believe the opposite.
  // A report counts for node_timeout_ms, and may have been on its way for as long as a message or a relay's pause
  // takes.
  TimeMs news_of_before() const;
  TimeMs pause_ended() const { return pause_ended_; }
  void agent_paused(Machine& machine, TimeMs since);

  // Trainers.
  std::uint64_t make_trainer(int launch, Rank rank, NodeId node);
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
  std::map<NodeId, Machine> machines;

 private:
  void add_machine(NodeId id);
  void replace(NodeId id);
  void deliver(NodeId from, NodeId to, const core::Message& message);

  std::map<std::uint64_t, std::unique_ptr<Trainer>> trainers_;
  std::vector<std::unique_ptr<Agent>> graveyard_;  // agents that died in this step: a function of theirs may still run
  NodeId next_node_ = 0;
  std::uint64_t decision_notified_ = 0;  // newest incarnation whose decision a node has learned
  std::uint64_t agents_ = 0;
  int replacements_due_ = 0;
  TimeMs pause_began_ = 0;  // of the newest pause that has ended, of any agent
  TimeMs pause_ended_ = -1'000'000;
};

}  // namespace ckpt::sim
