// WatchCheck checks invariant I8 in a simulated run: no leader names a rank that is not the cause, and every leader
// names a rank that hangs for good. It knows what each rank really did. Not thread-safe.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/messages.hpp"
#include "schedule/idle_forecast.hpp"
#include "sim/event_queue.hpp"
#include "sim/memory.hpp"

namespace ckpt::sim {

class Trainer;
class World;
struct Machine;

class WatchCheck {
 public:
  explicit WatchCheck(World& world) : world_(world) {}

  // What happens to trainers and agents. `joined`: the trainer gets the state of this incarnation.
  void joined(NodeId node, Rank rank, std::uint64_t instance, std::uint64_t incarnation);
  void marked(const Trainer& trainer, schedule::Mark::Kind kind);
  void halted(const Trainer& trainer);
  void went_on(const Trainer& trainer);
  void paused(const Trainer& trainer, bool begins);
  void interrupted(const Trainer& trainer);
  void ended(const Trainer& trainer);
  void agent_disturbed(NodeId node, TimeMs clock_jumped_ms);
  void agent_started(NodeId node);
  void watched(std::uint64_t instance);  // from now on, by a new agent
  void let_go();                         // communications that hung
  void forget_everything();

  void told(const Machine& leader, const core::Directive& directive);
  void after_step();

  // True if the agents have watched every rank for long enough to have deadlines.
  bool all_are_known() const;
  // Says why this rank is not to blame. "" if it is.
  std::string why_innocent(const Machine& leader, const core::Culprit& culprit, const core::Directive& directive) const;
  std::uint64_t named() const { return named_; }  // expected ranks that a leader named

 private:
  struct Span {
    TimeMs from = 0;
    TimeMs to = INT64_MAX;
  };
  struct Halt {
    Span span;
    char process = 0;        // as in /proc/PID/stat
    bool is_unseen = false;  // its whole node is suspended, so its agent does not see it
    bool in_communication = false;
  };
  struct Done {
    TimeMs at = 0;
    TimeMs took_ms = 0;
  };
  // One rank in one incarnation.
  struct Truth {
    NodeId node = 0;
    std::uint64_t instance = 0;
    int launch = 0;
    bool is_watched = true;
    TimeMs marked_at = 0;  // since then it computes or communicates
    bool is_communicating = false;
    TimeMs communicated_at = -1'000'000;  // when it last ended a communication
    std::deque<Halt> halts;
    std::deque<Span> pauses;
    std::optional<TimeMs> ended_at;  // died or closed its engine
    std::optional<TimeMs> died_at;
    bool is_death_known = true;     // its agent has run since
    std::deque<Done> stretches;     // long stretches of computing
    std::deque<Done> iterations;    // computing in each of the last ones
    TimeMs computed_ms = 0;         // in this iteration
    TimeMs longest_stretch_ms = 0;  // in this iteration
    TimeMs least_ms = INT64_MAX;    // each iteration has a longest stretch: the shortest of these
    TimeMs longest_computing_ms = 0, longest_waiting_ms = 0;
    std::uint32_t calm_iterations = 0;  // since it or its agent was last disturbed
  };
  using Key = std::pair<std::uint64_t, Rank>;  // incarnation and rank

  Truth* truth_of(std::uint64_t instance);
  static TimeMs computing_ms(const Truth& truth, TimeMs from, TimeMs to);
  TimeMs allowed_ms(TimeMs longest_ms) const;
  bool hung_in_computing(const Truth& truth, TimeMs since) const;
  bool hung_in_communication(TimeMs since) const;
  bool were_left_waiting(std::uint64_t incarnation, TimeMs since) const;
  bool is_slower(const Key& key) const;
  TimeMs believed_since(const Machine& leader, const Machine& machine) const;

  std::vector<const Truth*> truths_now() const;  // by rank; empty if somebody is missing
  bool agents_are_well() const;
  bool leader_is_well(const std::vector<const Truth*>& truths) const;
  bool is_halted() const;
  void check_is_named(const std::vector<const Truth*>& truths);
  void expect(const std::vector<Rank>& ranks, bool all, TimeMs due_at, const char* what);

  World& world_;
  std::map<Key, Truth> truths_;
  std::map<std::uint64_t, Key> keys_;            // of trainers' instances
  std::map<NodeId, core::Suspicion> last_told_;  // by leader
  TimeMs next_look_ = 0;
  TimeMs agents_well_since_ = 0;
  TimeMs leader_well_since_ = 0;
  std::pair<std::uint64_t, std::uint64_t> led_;  // epoch and incarnation
  TimeMs let_go_at_ = -1'000'000;
  TimeMs went_on_at_ = 0;  // when a rank that was stopped or spun last went on
  std::uint64_t named_ = 0;
  std::pair<std::string, std::vector<Rank>> counted_;  // cause and ranks that `named_` counted last
};

}  // namespace ckpt::sim
