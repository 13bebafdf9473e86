// Faults breaks things in a simulated run, by a plan that is drawn from the run's seed. Each fault waits for a phase
// (phase.hpp), such as a restore. It strikes in this phase, and is mended later. After the last fault nothing breaks
// any more, and the job has to recover. Not thread-safe.
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
  trainer_left_behind,  // the job restarts, but some trainers of the old incarnation go on running or sleeping
  rank_claimed_twice,   // a second process of some rank says hello
  update_unannounced,   // a trainer does not call before_update()
  silent_corruption,    // of several ranks that share a shard, one computes something else
  agent_crash,          // the agent restarts on the same arena
  agent_crash_midway,   // the same, between two effects of one event
  agent_freeze,
  leader_crash,
  node_loss,  // agent, trainers and arena are lost
  two_node_losses,
  node_outdated,  // a node is cut off for long while the job continues; then all other nodes are lost
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
  everything_lost,  // all machines are lost at once
  storage_outage,
  storage_damaged,  // a bit of the newest checkpoint on storage flips
  // The harder faults. They are drawn after the ones above, so the ones above are the same with and without them.
  agents_freeze,      // several agents freeze at once
  all_agents_freeze,  // all agents freeze, as in a suspended cluster
  all_clocks_jump,
  damage_found,       // a bit flips, preferably in an uncommitted checkpoint, and its node finds that at once
  store_record_lost,  // the coordination store loses the leader's or the incarnation's record
  store_record_old,   // the coordination store sets one of these records back
  effects_fail,       // for a while, an agent fails to do what its core asks
  // Only in runs in which all ranks share one main shard, or can take over shards:
  world_size_changed,  // the job restarts with another number of ranks
  // Only in runs in which agents watch the ranks. Such a fault strikes when all ranks train and the agents know all of
  // them. The launcher notices nothing at first.
  rank_dies,
  rank_stops,           // SIGSTOP
  rank_spins,           // it computes without progress
  communication_hangs,  // of all ranks, or of two
  rank_slow,            // it computes several times as long as the others
  rank_pauses,          // as for an evaluation
  node_suspended,       // agent and ranks, which notice nothing
  // Only in runs in which a suspicion halts the job. These faults, too, strike when all ranks train and the agents know
  // all of them.
  rank_dies_in_update,
  rank_thaws,         // it is stopped, and goes on while the others freeze
  false_suspicion,    // it computes past its deadline, and goes on while the others freeze
  late_capture_torn,  // a rank hangs, and some rank dies in the middle of its late capture
  halt_lost,          // a rank dies or is stopped, and messages are lost once the leader has made the halt
  // Only in runs in which ranks rejoin. The launcher notices deaths at once.
  newcomer_dies,   // a rank dies, and so does the process that takes its place, while it restores
  never_rejoins,   // a rank dies, and another one freezes and never rejoins
  survivor_spins,  // a rank dies, and another one computes without progress: it is captured, but cannot rejoin
  // Only in runs in which nodes repeat updates:
  update_disturbed,  // something else changes a rank's tensors beside the update, in some updates in a row
  repeat_wrong,      // a node that repeats an update computes something else
};
inline constexpr std::size_t fault_count = 53;
inline constexpr std::size_t first_faults = 28;  // how many are drawn first
inline constexpr std::size_t hard_faults = 7;    // how many harder ones are drawn then
inline constexpr std::size_t first_watched_fault = 36;
inline constexpr std::size_t watched_faults = 7;
inline constexpr std::size_t first_halting_fault = 43;
inline constexpr std::size_t halting_faults = 5;
inline constexpr std::size_t first_rejoining_fault = 48;
inline constexpr std::size_t rejoining_faults = 3;
inline constexpr std::size_t first_repeating_fault = 51;
inline constexpr std::array<const char*, fault_count> fault_names = {
    "trainer crash",      "trainer freeze",     "trainer left behind", "rank claimed twice", "update unannounced",
    "silent corruption",  "agent crash",        "agent crash midway",  "agent freeze",       "leader crash",
    "node loss",          "two node losses",    "node outdated",       "torn write",         "bit flip stored",
    "bit flip wire",      "memory full",        "partition",           "partition one way",  "messages lost",
    "messages repeated",  "messages reordered", "store outage",        "store answer lost",  "clock jump",
    "everything lost",    "storage outage",     "storage damaged",     "agents freeze",      "all agents freeze",
    "all clocks jump",    "damage found",       "store record lost",   "store record old",   "effects fail",
    "world size changed", "rank dies",          "rank stops",          "rank spins",         "communication hangs",
    "rank slow",          "rank pauses",        "node suspended",      "dies in update",     "rank thaws",
    "false suspicion",    "late capture torn",  "halt lost",           "newcomer dies",      "never rejoins",
    "survivor spins",     "update disturbed",   "repeat wrong"};

// How often each fault struck in each phase.
using FaultTable = std::array<std::array<std::uint64_t, phase_count>, fault_count>;

// True if the fault can strike in that phase. docs/simulator.md gives the reasons.
bool is_possible(Fault fault, Phase phase);

class Faults {
 public:
  explicit Faults(World& world) : world_(world) {}

  void start();
  void after_step();
  bool is_over() const { return plan_.empty() && unmended_ == 0; }  // all faults have struck and are mended
  const FaultTable& table() const { return table_; }
  // Descriptions of all faults that were drawn, in order. Includes those that the run leaves out.
  const std::vector<std::string>& planned() const { return planned_; }
  bool is_mended() const { return unmended_ == 0; }  // all faults that have struck are mended
  TimeMs struck_at() const { return struck_at_; }    // when the last fault struck

 private:
  struct Plan {
    Fault fault = Fault::trainer_crash;
    Phase phase = Phase::idle;
    bool is_last = true;     // false: the next fault of the plan follows at once
    bool on_leader = false;  // true: a fault that strikes an agent strikes the leader
    std::size_t number = 0;  // number of the fault in the plan, from 1
  };

  bool can_come(Phase phase) const;
  Plan draw();
  std::vector<Plan> with_prelude(const Plan& plan, Random& random) const;
  void plan_one();
  void plan_harder();
  void plan_rare();
  void plan_elastic();
  void plan_watched();
  void plan_halts();
  void plan_rejoins();
  void plan_repeats();
  void plan_anywhere(const std::vector<Plan>& plans, Random& random);
  void leave_out();
  void count(Fault fault, Phases phases);
  bool strike(const Plan& plan);  // returns false if there is nothing to strike now
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
  bool disturb_updates();
  bool repeat_wrong();
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
  bool strike_halted_rank(Fault fault, Trainer& trainer, TimeMs long_ms);
  void once(std::function<bool()> is_so, TimeMs at_most_ms, std::function<void()> action);
  void wake_in_halt(const Trainer& trainer, TimeMs at_most_ms);
  void tear_late_capture(TimeMs at_most_ms);
  void lose_halt(TimeMs at_most_ms);
  void halt(Trainer& trainer, TimeMs low_ms, TimeMs high_ms);
  bool strike_rejoining_rank(Fault fault, Trainer& trainer, TimeMs long_ms);

  Machine* leader_machine();  // null if it has no agent
  Machine* pick_machine();    // a machine with a running agent, preferably a busy one
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
