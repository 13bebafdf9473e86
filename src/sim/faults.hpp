// Faults breaks things in a simulated run, by a plan that is drawn from the run's seed. Each fault waits for a phase,
// such as a restore, strikes in it, and is mended later. After the last fault nothing breaks any more, and the job has
// to recover. Not thread-safe.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <vector>

#include "core/types.hpp"
#include "sim/event_queue.hpp"
#include "sim/phase.hpp"
#include "sim/random.hpp"

namespace ckpt::sim {

class Trainer;
class World;
struct Machine;

enum class Fault : std::uint8_t {
  trainer_crash,
  trainer_freeze,       // SIGSTOP, woken later
  trainer_left_behind,  // the job restarts, and some trainers of the old incarnation run or sleep on
  rank_claimed_twice,   // a second process of some rank says hello
  update_unannounced,   // before_update() is forgotten
  silent_corruption,    // one of several ranks that share a shard computes something else
  agent_crash,          // and restarts on the same arena
  agent_crash_midway,   // between two effects of one event
  agent_freeze,
  leader_crash,
  node_loss,  // agent, trainers and arena
  two_node_losses,
  node_outdated,  // cut off for long while the job continues; then only this node is left
  torn_write,     // the writer of a half-written slot dies
  bit_flip_stored,
  bit_flip_wire,
  memory_full,  // no room for new segments
  partition,
  partition_one_way,
  messages_lost,
  messages_repeated,
  messages_reordered,
  store_outage,
  store_answer_lost,
  clock_jump,
  everything_lost,  // all machines at once
  storage_outage,
  storage_damaged,  // a bit of the newest checkpoint
  // These are drawn after the ones above. So a seed does the same with or without them.
  agents_freeze,      // several at once
  all_agents_freeze,  // all of them: a suspended cluster
  all_clocks_jump,
  damage_found,       // a flipped bit that its node finds at once, preferably in an uncommitted checkpoint
  store_record_lost,  // one of the coordination store's records
  store_record_old,   // a record is again as it was before
  effects_fail,       // for a while, the agent fails to do what its core asks
  // Only in runs in which all ranks share one main shard.
  world_size_changed,  // the job restarts with another number of ranks
  // Only in runs in which agents watch the ranks. All of them train and are known to the agents by then. The launcher
  // notices nothing at first.
  rank_dies,
  rank_stops,           // SIGSTOP
  rank_spins,           // it computes without progress
  communication_hangs,  // of all ranks, or of two
  rank_slow,            // it computes several times as long as the others
  rank_pauses,          // as for an evaluation
  node_suspended,       // agent and ranks, which notice nothing
};
inline constexpr std::size_t fault_count = 43;
inline constexpr std::size_t first_faults = 28;   // those drawn first
inline constexpr std::size_t hard_faults = 7;     // those drawn then
inline constexpr std::size_t watched_faults = 7;  // the last ones
inline constexpr std::array<const char*, fault_count> fault_names = {
    "trainer crash",      "trainer freeze",     "trainer left behind", "rank claimed twice", "update unannounced",
    "silent corruption",  "agent crash",        "agent crash midway",  "agent freeze",       "leader crash",
    "node loss",          "two node losses",    "node outdated",       "torn write",         "bit flip stored",
    "bit flip wire",      "memory full",        "partition",           "partition one way",  "messages lost",
    "messages repeated",  "messages reordered", "store outage",        "store answer lost",  "clock jump",
    "everything lost",    "storage outage",     "storage damaged",     "agents freeze",      "all agents freeze",
    "all clocks jump",    "damage found",       "store record lost",   "store record old",   "effects fail",
    "world size changed", "rank dies",          "rank stops",          "rank spins",         "communication hangs",
    "rank slow",          "rank pauses",        "node suspended"};

// How often each fault struck in each phase.
using FaultTable = std::array<std::array<std::uint64_t, phase_count>, fault_count>;

// True if the fault can strike in that phase. docs/simulator.md gives the reasons.
bool is_possible(Fault fault, Phase phase);

class Faults {
 public:
  explicit Faults(World& world) : world_(world) {}

  void start();
  void after_step();
  bool is_over() const { return plan_.empty() && unmended_ == 0; }
  const FaultTable& table() const { return table_; }
  // All faults drawn, in order, including those that the run leaves out.
  const std::vector<std::string>& planned() const { return planned_; }
  bool is_mended() const { return unmended_ == 0; }
  TimeMs struck_at() const { return struck_at_; }  // when the last fault struck

 private:
  struct Plan {
    Fault fault = Fault::trainer_crash;
    Phase phase = Phase::idle;
    bool is_last = true;     // false: the next fault follows at once
    bool on_leader = false;  // for a fault that strikes an agent: strike the leader's
    std::size_t number = 0;  // in the plan, from 1
  };

  bool can_come(Phase phase) const;
  Plan draw();
  std::vector<Plan> with_prelude(const Plan& plan, Random& random) const;
  void plan_one();
  void plan_harder();
  void plan_rare();
  void plan_elastic();
  void plan_watched();
  void leave_out();
  void count(Fault fault, Phases phases);
  bool strike(const Plan& plan);  // false: there is nothing to strike now
  void mend_after(TimeMs low_ms, TimeMs high_ms, std::function<void()> mend);

  bool strike_trainer(Fault fault);
  bool strike_agent(Fault fault);
  bool lose_machines(std::size_t count);
  bool outdate_machine();
  bool tear_write();
  bool flip_stored_bit();
  bool flip_wire_bit();
  bool corrupt_silently();
  bool change_world_size();
  bool claim_twice();
  bool freeze_agent(bool on_leader, TimeMs least_ms);
  void freeze(Machine& machine, TimeMs low_ms, TimeMs high_ms);
  bool freeze_agents(bool all);
  bool fill_memory();
  void jump(Machine& machine, TimeMs by_ms);
  bool jump_clock();
  bool jump_all_clocks();
  bool find_damage();
  bool spoil_record(Fault fault);
  bool fail_effects();
  bool cut_network(bool one_way);
  bool worsen_conditions(Fault fault);
  bool stop_store(Fault fault);
  bool lose_everything();
  bool hurt_storage(Fault fault);
  bool strike_rank(Fault fault);
  bool suspend_node();
  void halt(Trainer& trainer, TimeMs low_ms, TimeMs high_ms);

  Machine* leader_machine();  // null where it has no agent
  Machine* pick_machine();    // one with a running agent, preferably one that is busy
  Trainer* pick_trainer();

  World& world_;
  std::deque<Plan> plan_;
  std::vector<std::string> planned_;
  FaultTable table_{};
  TimeMs armed_at_ = 0;
  TimeMs struck_at_ = 0;
  int unmended_ = 0;
};

}  // namespace ckpt::sim
