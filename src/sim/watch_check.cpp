#include "sim/watch_check.hpp"

#include <algorithm>
#include <utility>

#include "sim/world.hpp"

namespace ckpt::sim {

using namespace core;

namespace {

constexpr TimeMs look_every_ms = 100;
constexpr TimeMs stopped_least_ms = 500;  // docs/jit.md
constexpr TimeMs settled_ms = 300;
constexpr std::uint32_t known_after = 12;    // iterations
constexpr std::size_t remembered = 40;       // iterations and other spans
constexpr TimeMs notified_within_ms = 2200;  // ticks, messages, some of them lost, and a leader with much to do
constexpr TimeMs led_within_ms = 5000;       // a new leader hears everybody
// A leader goes by reports that are not older if nothing hindered the node.
constexpr TimeMs reported_within_ms = 3500;
constexpr TimeMs wake_up_ms = 300;

TimeMs overlap_ms(TimeMs from, TimeMs to, TimeMs other_from, TimeMs other_to) {
  return std::max<TimeMs>(0, std::min(to, other_to) - std::max(from, other_from));
}

template <class T>
void keep(std::deque<T>& list, T item) {
  list.push_back(item);
  if (list.size() > remembered) list.pop_front();
}

}  // namespace

// ---- What happens ----

WatchCheck::Truth* WatchCheck::truth_of(std::uint64_t instance) {
  const auto key = keys_.find(instance);
  if (!world_.settings.watches || key == keys_.end()) return nullptr;
  Truth& truth = truths_.at(key->second);
  return truth.instance == instance ? &truth : nullptr;
}

void WatchCheck::joined(NodeId node, Rank rank, std::uint64_t instance, std::uint64_t incarnation) {
  if (!world_.settings.watches) return;
  const Key key{incarnation, rank};
  keys_[instance] = key;
  Truth truth;
  truth.node = node;
  truth.instance = instance;
  truth.marked_at = world_.event_queue.now();
  const Trainer* trainer = world_.trainer(instance);
  if (trainer == nullptr) truth.died_at = truth.marked_at;
  if (trainer != nullptr) truth.launch = trainer->launch;
  if (trainer != nullptr && trainer->is_halted())
    truth.halts.push_back({{0}, trainer->process_state(), trainer->process_state() == 'S', false});
  truths_[key] = truth;
}

// Time in which its agent could not see that it went on does not count, and pauses neither.
TimeMs WatchCheck::computing_ms(const Truth& truth, TimeMs from, TimeMs to) {
  TimeMs ms = to - from;
  for (const Halt& halt : truth.halts)
    if (halt.is_unseen) ms -= overlap_ms(from, to, halt.span.from, halt.span.to);
  for (const Span& pause : truth.pauses) ms -= overlap_ms(from, to, pause.from, pause.to);
  return std::max<TimeMs>(0, ms);
}

void WatchCheck::marked(const Trainer& trainer, schedule::Mark::Kind kind) {
  Truth* truth = truth_of(trainer.instance);
  if (truth == nullptr) return;
  const TimeMs now = world_.event_queue.now();
  const TimeMs took_ms = now - truth->marked_at;
  if (truth->is_communicating) {
    truth->communicated_at = now;
    truth->longest_waiting_ms = std::max(truth->longest_waiting_ms, took_ms);
  } else {
    const TimeMs counted_ms = computing_ms(*truth, truth->marked_at, now);
    truth->longest_computing_ms = std::max(truth->longest_computing_ms, took_ms);
    truth->computed_ms += counted_ms;
    truth->longest_stretch_ms = std::max(truth->longest_stretch_ms, counted_ms);
    if (counted_ms >= world_.settings.hang_floor_ms) keep(truth->stretches, Done{now, counted_ms});
  }
  truth->marked_at = now;
  if (kind != schedule::Mark::Kind::iteration) {
    truth->is_communicating = kind == schedule::Mark::Kind::begin;
    return;
  }
  keep(truth->iterations, Done{now, truth->computed_ms});
  // The first one was not seen from its beginning.
  if (truth->is_watched) ++truth->calm_iterations;
  if (truth->calm_iterations > 1) truth->least_ms = std::min(truth->least_ms, truth->longest_stretch_ms);
  truth->longest_computing_ms = std::max(truth->longest_computing_ms, truth->computed_ms);
  truth->computed_ms = truth->longest_stretch_ms = 0;
}

void WatchCheck::halted(const Trainer& trainer) {
  if (Truth* truth = truth_of(trainer.instance))
    keep(truth->halts, Halt{{world_.event_queue.now()},
                            trainer.process_state(),
                            trainer.process_state() == 'S',
                            truth->is_communicating});
}

void WatchCheck::went_on(const Trainer& trainer) {
  went_on_at_ = world_.event_queue.now();
  Truth* truth = truth_of(trainer.instance);
  if (truth != nullptr && !truth->halts.empty())
    truth->halts.back().span.to = std::min(truth->halts.back().span.to, world_.event_queue.now());
}

void WatchCheck::paused(const Trainer& trainer, bool begins) {
  Truth* truth = truth_of(trainer.instance);
  if (truth == nullptr) return;
  truth->calm_iterations = 0;
  if (begins) {
    keep(truth->pauses, Span{world_.event_queue.now()});
  } else if (!truth->pauses.empty()) {
    truth->pauses.back().to = world_.event_queue.now();
  }
}

void WatchCheck::interrupted(const Trainer& trainer) {
  if (Truth* truth = truth_of(trainer.instance)) truth->calm_iterations = 0;
}

void WatchCheck::ended(const Trainer& trainer) {
  Truth* truth = truth_of(trainer.instance);
  if (truth == nullptr) return;
  truth->ended_at = world_.event_queue.now();
  if (trainer.is_closed()) {
    truth->calm_iterations = 0;
    return;
  }
  truth->died_at = world_.event_queue.now();
  truth->is_death_known = truth->is_watched && world_.agent_on(truth->node) != nullptr;
}

void WatchCheck::agent_disturbed(NodeId node, TimeMs clock_jumped_ms) {
  agents_well_since_ = world_.event_queue.now();
  if (clock_jumped_ms != 0) leader_well_since_ = agents_well_since_;  // a leader listens anew
  for (auto& [key, truth] : truths_) {
    if (truth.node != node) continue;
    truth.calm_iterations = 0;
    if (!truth.is_communicating) truth.computed_ms += clock_jumped_ms;
    truth.longest_computing_ms += clock_jumped_ms;
    truth.longest_waiting_ms += clock_jumped_ms;
  }
}

void WatchCheck::agent_started(NodeId node) {
  agent_disturbed(node, 0);
  for (auto& [key, truth] : truths_) {
    if (truth.node == node) truth.is_watched = truth.is_death_known = false;
  }
}

void WatchCheck::watched(std::uint64_t instance) {
  if (Truth* truth = truth_of(instance)) truth->is_watched = true;
}

void WatchCheck::let_go() { let_go_at_ = world_.event_queue.now(); }

void WatchCheck::forget_everything() {
  truths_.clear();
  keys_.clear();
}

bool WatchCheck::all_are_known() const {
  const auto truths = truths_now();
  return !truths.empty() && std::all_of(truths.begin(), truths.end(), [](const Truth* truth) {
    return !truth->died_at && truth->calm_iterations >= known_after;
  });
}

// ---- Nobody is named who is not the cause ----

// No agent allows less.
TimeMs WatchCheck::allowed_ms(TimeMs longest_ms) const {
  return std::max(world_.settings.hang_floor_ms, TimeMs{world_.settings.core.hang_factor} * longest_ms);
}

bool WatchCheck::hung_in_computing(const Truth& truth, TimeMs since) const {
  const TimeMs least_ms = allowed_ms(truth.least_ms == INT64_MAX ? 0 : truth.least_ms);
  const auto is_long = [&](const Done& done) { return done.at >= since && done.took_ms >= least_ms; };
  if (std::any_of(truth.stretches.begin(), truth.stretches.end(), is_long)) return true;
  if (std::any_of(truth.iterations.begin(), truth.iterations.end(), is_long)) return true;
  const TimeMs now = truth.died_at.value_or(world_.event_queue.now());
  const TimeMs stretch_ms = truth.is_communicating ? 0 : computing_ms(truth, truth.marked_at, now);
  return truth.computed_ms + stretch_ms >= least_ms;
}

// Communications hang, or some rank got stuck within one.
bool WatchCheck::hung_in_communication(TimeMs since) const {
  if (world_.communications.hangs() || let_go_at_ >= since) return true;
  return std::any_of(truths_.begin(), truths_.end(), [&](const auto& entry) {
    const auto& halts = entry.second.halts;
    return std::any_of(halts.begin(), halts.end(),
                       [&](const Halt& halt) { return halt.in_communication && halt.span.to >= since; });
  });
}

// The launcher has begun to stop all ranks, and all of them still run: it left them behind. From then on, none of their
// communications ends.
bool WatchCheck::were_left_waiting(std::uint64_t incarnation, TimeMs since) const {
  const Launcher& launcher = world_.launcher;
  return std::all_of(truths_.begin(), truths_.end(), [&](const auto& entry) {
    const Truth& truth = entry.second;
    if (entry.first.first != incarnation) return true;
    const bool is_over = truth.launch != launcher.launch() || launcher.is_between_launches();
    const bool has_run = truth.ended_at ? *truth.ended_at >= since : world_.trainer(truth.instance) != nullptr;
    return is_over && has_run && (truth.is_communicating || truth.communicated_at >= since);
  });
}

// Its computing in some five to eight iterations, without the longest of them, was long compared with the quickest such
// iterations of some other rank.
bool WatchCheck::is_slower(const Key& key) const {
  constexpr std::size_t least = 5, most = 8;
  double longest_ms = 0, least_ms = -1;
  for (const auto& [each, truth] : truths_) {
    if (each.first != key.first) continue;
    for (std::size_t end = least; end <= truth.iterations.size(); ++end) {
      for (std::size_t count = least; count <= std::min(most, end); ++count) {
        TimeMs sum_ms = 0, slowest_ms = 0;
        for (std::size_t i = end - count; i < end; ++i) {
          sum_ms += truth.iterations[i].took_ms;
          slowest_ms = std::max(slowest_ms, truth.iterations[i].took_ms);
        }
        const double mean_ms = static_cast<double>(sum_ms - slowest_ms) / static_cast<double>(count - 1);
        if (each == key) longest_ms = std::max(longest_ms, mean_ms);
        if (each != key) least_ms = least_ms < 0 ? mean_ms : std::min(least_ms, mean_ms);
      }
    }
  }
  return least_ms >= 0 && longest_ms * 1.25 >= least_ms * world_.settings.core.hang_factor * 0.8;
}

TimeMs WatchCheck::believed_since(const Machine& leader, const Machine& machine) const {
  const TimeMs since = world_.event_queue.now() - reported_within_ms;
  const bool is_calm = leader.listens_since <= since && world_.pause_ended() <= since &&
                       world_.is_reachable_from(machine, leader, since);
  return is_calm ? since : world_.news_of_before();
}

std::string WatchCheck::why_innocent(const Machine& leader, const Culprit& culprit, const Directive& directive) const {
  const RankStanding& standing = culprit.standing;
  const Key key{directive.incarnation, standing.rank};
  const Machine& machine = world_.machines.at(culprit.node);
  const TimeMs now = world_.event_queue.now(), since = believed_since(leader, machine);
  if (standing.trouble == RankTrouble::unreachable) {
    const TimeMs heard = std::min(now, std::max(now - reported_within_ms, leader.listens_since + wake_up_ms));
    return world_.is_reachable_from(machine, leader, heard) ? "is on a node that could be heard" : "";
  }
  const auto found = truths_.find(key);
  if (found == truths_.end()) return "did not run in this incarnation";
  const Truth& truth = found->second;
  if (truth.node != culprit.node) return text("runs on node ", truth.node);
  const auto was_halted = [&](auto is_one) {
    return std::any_of(truth.halts.begin(), truth.halts.end(),
                       [&](const Halt& halt) { return halt.span.to >= since && is_one(halt); });
  };
  switch (standing.trouble) {
    case RankTrouble::dead:
      return truth.died_at ? "" : "is alive";
    case RankTrouble::stopped:
      return was_halted([&](const Halt& halt) {
        return halt.process == 'T' && std::min(now, halt.span.to) - halt.span.from >= stopped_least_ms;
      })
                 ? ""
                 : "was not stopped";
    case RankTrouble::slow:
      return is_slower(key) ? "" : "computes no longer than the others";
    case RankTrouble::waiting:
      if (were_left_waiting(directive.incarnation, since)) return "";
      if (directive.suspicion.is_everybody)
        return hung_in_communication(since) ? "" : "waits, and no communication hangs";
      return was_halted([](const Halt& halt) { return halt.in_communication; }) ||
                     (hung_in_communication(since) && world_.communications.hung_lately(standing.rank))
                 ? ""
                 : "only waits";
    case RankTrouble::computing:
    case RankTrouble::unreachable:
      break;
  }
  return hung_in_computing(truth, since) ? "" : "made progress within its deadline";
}

// A leader that has just woken may repeat what it said before its pause.
void WatchCheck::told(const Machine& leader, const Directive& directive) {
  const bool is_news = !std::exchange(last_told_[leader.id], directive.suspicion).says_the_same(directive.suspicion);
  if (!is_news && world_.event_queue.now() < leader.listens_since + wake_up_ms) return;
  for (const Culprit& culprit : directive.suspicion.culprits) {
    const std::string why = why_innocent(leader, culprit, directive);
    if (why.empty()) continue;
    throw Violation{"I8", text("node ", leader.id, " names rank ", culprit.standing.rank, " as ",
                               trouble_name(culprit.standing.trouble), ", which ", why)};
  }
}

// ---- Whoever hangs for good is named ----

std::vector<const WatchCheck::Truth*> WatchCheck::truths_now() const {
  std::vector<const Truth*> truths;
  const IncarnationRecord& record = world_.store.incarnation_record().record;
  for (Rank rank = 0; rank < record.world_size; ++rank) {
    const auto found = truths_.find({record.incarnation, rank});
    if (found == truths_.end() || found->second.launch != world_.launcher.launch()) return {};
    truths.push_back(&found->second);
  }
  return truths;
}

bool WatchCheck::agents_are_well() const {
  return std::all_of(world_.machines.begin(), world_.machines.end(), [&](const auto& entry) {
    const Machine& machine = entry.second;
    if (machine.is_lost) return !world_.awaits_replacement();  // another has its place
    return machine.agent && !machine.agent->is_frozen() && machine.effects_fail_until <= world_.event_queue.now();
  });
}

bool WatchCheck::leader_is_well(const std::vector<const Truth*>& truths) const {
  const TimeMs now = world_.event_queue.now();
  const NodeId leader = world_.store.leader().record.node;
  const auto machine = world_.machines.find(leader);
  if (machine == world_.machines.end() || !machine->second.agent || machine->second.agent->is_frozen()) return false;
  if (machine->second.effects_fail_until > now || world_.store.is_out() || world_.network.fair_since() > now)
    return false;
  if (!world_.decision_is_notified() || world_.launcher.is_between_launches()) return false;
  std::vector<NodeId> nodes{leader};
  for (const Truth* truth : truths) nodes.push_back(truth->node);
  for (const NodeId one : nodes) {
    if (world_.store.answers_since(one) > now) return false;
    for (const NodeId other : nodes)
      if (one != other && !world_.network.open_both_ways(one, other)) return false;
  }
  return true;
}

void WatchCheck::after_step() {
  const TimeMs now = world_.event_queue.now();
  if (!world_.settings.watches || now < next_look_) return;
  next_look_ = now + look_every_ms;
  const auto truths = truths_now();
  const std::pair led{world_.store.leader().record.epoch, world_.store.incarnation_record().record.incarnation};
  if (truths.empty() || !agents_are_well()) agents_well_since_ = now;
  if (truths.empty() || led != led_ || !leader_is_well(truths)) leader_well_since_ = now;
  led_ = led;
  if (agents_well_since_ != now && leader_well_since_ != now) check_is_named(truths);
}

void WatchCheck::check_is_named(const std::vector<const Truth*>& truths) {
  // Whoever failed has been replaced. The new trainer may have died before it could join.
  const auto is_replaced = [&](const Truth* truth) { return !world_.launcher.is_newest(truth->instance); };
  if (world_.settings.can_rejoin() &&
      (world_.launcher.is_joining() || std::any_of(truths.begin(), truths.end(), is_replaced)))
    return;
  const TimeMs now = world_.event_queue.now();
  const TimeMs tick_ms = world_.settings.core.report_ms / 2;
  std::vector<Rank> gone, spinning, waiting;
  // While a rank is stopped, that one is named and no other.
  TimeMs gone_due = agents_well_since_, spinning_due = went_on_at_, waiting_due = went_on_at_;
  bool are_deaths_known = true, are_all_calm = true;
  for (Rank rank = 0; rank < truths.size(); ++rank) {
    const Truth& truth = *truths[rank];
    const Trainer* trainer = world_.trainer(truth.instance);
    are_deaths_known =
        are_deaths_known && (!truth.died_at || (truth.is_death_known && !world_.machines.at(truth.node).is_lost));
    const TimeMs from = std::max(truth.marked_at, agents_well_since_);
    if (truth.died_at) {
      gone.push_back(rank);
      gone_due = std::max(gone_due, *truth.died_at);
    } else if (trainer != nullptr && truth.is_watched && trainer->process_state() == 'T') {
      gone.push_back(rank);
      const TimeMs stopped_at = truth.halts.empty() ? now : truth.halts.back().span.from;
      gone_due = std::max(gone_due, std::max(stopped_at, agents_well_since_) + stopped_least_ms);
    } else if (truth.calm_iterations < known_after) {
      are_all_calm = false;
    } else if (truth.is_communicating) {
      waiting.push_back(rank);
      waiting_due = std::max(waiting_due, from + allowed_ms(truth.longest_waiting_ms));
    } else if (trainer != nullptr && trainer->process_state() == 'R') {
      spinning.push_back(rank);
      spinning_due = std::max(spinning_due, from + allowed_ms(truth.longest_computing_ms));
    }
  }
  if (!are_deaths_known) return;
  if (!gone.empty()) {
    expect(gone, true, gone_due + tick_ms, "is dead or stopped");
  } else if (!spinning.empty() && are_all_calm) {
    expect(spinning, false, spinning_due + tick_ms, "spins");
  } else if (waiting.size() == truths.size() && !is_halted()) {
    expect(waiting, false, waiting_due + tick_ms, "waits, as all ranks do");
  }
}

// Then ranks wait for those that the halt holds.
bool WatchCheck::is_halted() const {
  const Agent* leader = world_.agent_on(world_.store.leader().record.node);
  if (leader == nullptr) return false;
  const core::NodeStatus status = leader->node().status();
  return status.halt.incarnation != 0 && status.halt.incarnation == status.incarnation;
}

// `all`: all of them are named. Otherwise at least one.
void WatchCheck::expect(const std::vector<Rank>& ranks, bool all, TimeMs due_at, const char* what) {
  const TimeMs now = world_.event_queue.now();
  const TimeMs notified_at = std::max(due_at + settled_ms, leader_well_since_ + led_within_ms) + notified_within_ms;
  if (now < notified_at) return;
  const NodeId leader = world_.store.leader().record.node;
  const Suspicion suspicion = world_.agent_on(leader)->node().status().suspicion;
  const auto is_named = [&](Rank rank) {
    return std::any_of(suspicion.culprits.begin(), suspicion.culprits.end(),
                       [&](const Culprit& culprit) { return culprit.standing.rank == rank; });
  };
  const bool is_well = all ? std::all_of(ranks.begin(), ranks.end(), is_named) || suspicion.count > culprits_max
                           : std::any_of(ranks.begin(), ranks.end(), is_named);
  if (!is_well)
    throw Violation{"I8", text("rank ", ranks.front(), " ", what, ", and node ", leader,
                               ", the leader, has not named it ", now - due_at, " ms after it should have")};
  const std::pair counted{text(what, led_.first, led_.second), ranks};
  if (counted != counted_) ++named_;
  counted_ = counted;
}

}  // namespace ckpt::sim
