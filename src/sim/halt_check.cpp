#include "sim/halt_check.hpp"

#include <algorithm>

#include "sim/world.hpp"

namespace ckpt::sim {

using namespace core;

namespace {
constexpr TimeMs known_after_ms = 3500;            // a leader knows by then how a node is that it can hear
constexpr std::size_t remembered_iterations = 64;  // iterations of a rank: more than lie between two restored ones
}  // namespace

const HaltCheck::State* HaltCheck::find(Key key, std::int64_t iteration) const {
  const auto found = states_.find(key);
  if (found == states_.end()) return nullptr;
  const auto state = std::find_if(found->second.begin(), found->second.end(),
                                  [&](const State& each) { return each.iteration == iteration; });
  return state == found->second.end() ? nullptr : &*state;
}

void HaltCheck::rested(const Trainer& trainer) {
  auto& states = states_[{trainer.incarnation(), trainer.rank}];
  states.push_back({trainer.iteration(), trainer.main_state(), trainer.private_state()});
  if (states.size() > remembered_iterations) states.pop_front();
}

void HaltCheck::corrupted(const Trainer& trainer) {
  states_.erase({trainer.incarnation(), trainer.rank});
  corrupted_.insert(world_.settings.main_shard(trainer.rank));
}

// Ranks that share the shard may have captured it differently. Nobody sees that where one rank captures each part.
bool HaltCheck::may_differ(Rank rank) const {
  return world_.invariants.history().ranks_ever_disagreed() || corrupted_.contains(world_.settings.main_shard(rank));
}

void HaltCheck::sealed(const Trainer& trainer, const PieceInfo& piece) const {
  const State* state = find({piece.checkpoint.incarnation(), trainer.rank}, piece.checkpoint.iteration());
  if (state == nullptr) return;
  const ShardPart part = parse_part(piece.shard);
  const bool is_private = piece.shard == world_.settings.private_shard(trainer.rank);
  const std::uint64_t bytes = is_private ? state->private_ : part_bytes(state->main, part.index, part.of);
  if (piece.root_digest == bytes) return;
  throw Violation{"I10", text("rank ", trainer.rank, " seals as ", piece.shard, " at ", describe(piece.checkpoint),
                              " what it did not have after that update")};
}

void HaltCheck::captured_late(const Trainer& trainer) {
  ++late_captures_;
  captured_late_[{trainer.incarnation(), trainer.rank}] = trainer.iteration();
}

// Only a rank whose shards nobody else may have captured differently is compared.
void HaltCheck::restored(const Trainer& trainer, CheckpointId checkpoint) {
  const Key key{checkpoint.incarnation(), trainer.rank};
  const auto late = captured_late_.find(key);
  const bool was_late = late != captured_late_.end() && late->second == checkpoint.iteration();
  late_restores_ += was_late;
  const State* state = find(key, checkpoint.iteration());
  if (!was_late || state == nullptr || may_differ(trainer.rank)) return;
  if (trainer.main_state() == state->main && trainer.private_state() == state->private_) return;
  throw Violation{"I10",
                  text("rank ", trainer.rank, " froze at ", describe(checkpoint), " and restores something else")};
}

void HaltCheck::kept(const Trainer& trainer, CheckpointId checkpoint, std::uint64_t main) {
  ++kept_;
  const State* state = find({checkpoint.incarnation(), trainer.rank}, checkpoint.iteration());
  if (state == nullptr || may_differ(trainer.rank)) return;
  if (main == state->main && main == trainer.main_state()) return;
  throw Violation{"I10", text("rank ", trainer.rank, " has rejoined and keeps its tensors as those of ",
                              describe(checkpoint), ", which they are not")};
}

// A rank that is passed over can only be started anew. Whoever obeys has the time that a halt may take.
void HaltCheck::incarnation_ends(const Machine& leader, std::uint64_t ended, TimeMs asked_at) const {
  if (!world_.settings.can_halt() || ended == 0) return;
  const TimeMs since = asked_at - known_after_ms;
  const TimeMs lasted_ms = halted_ == ended ? asked_at - halted_at_ : 0;
  if (leader.listens_since > since || lasted_ms >= world_.settings.core.halt_ms - known_after_ms) return;
  for (const Trainer* trainer : world_.launcher.trainers()) {
    if (trainer->incarnation() != ended || trainer->is_halted() || trainer->is_frozen_for_good()) continue;
    if (trainer->obeys_since() > since) continue;
    if (world_.is_reachable_from(world_.machines.at(trainer->node), leader, since))
      throw Violation{"I12", text("node ", leader.id, " ends incarnation ", ended, " although rank ", trainer->rank,
                                  " trains in it and is not frozen")};
  }
}

// A halt names who it names when it is made. Whoever is added later must be to blame, too.
void HaltCheck::told(const Machine& leader, const Directive& directive) {
  const Halt& halt = directive.halt;
  if (halt.incarnation == 0) return;
  if (halt.incarnation != halted_) {
    halted_ = halt.incarnation;
    halted_at_ = world_.event_queue.now();
    named_.clear();
    ++halts_;
  }
  for (const Culprit& culprit : halt.culprits) {
    const Rank rank = culprit.standing.rank;
    if (std::find(named_.begin(), named_.end(), rank) != named_.end()) continue;
    const std::string why = world_.watch_check.why_innocent(leader, culprit, directive);
    if (!why.empty())
      throw Violation{"I9", text("the halt of node ", leader.id, " names rank ", rank, " as ",
                                 trouble_name(culprit.standing.trouble), ", which ", why)};
    named_.push_back(rank);
  }
}

void HaltCheck::forget_everything() {
  states_.clear();
  captured_late_.clear();
  corrupted_.clear();
  halted_ = 0;
  named_.clear();
}

bool HaltCheck::is_under_way() const {
  const auto trainers = world_.launcher.trainers();
  return std::any_of(trainers.begin(), trainers.end(),
                     [](Trainer* trainer) { return trainer->has_heard_of_a_halt() && !trainer->is_frozen_for_good(); });
}

bool HaltCheck::is_halted() const {
  const auto trainers = world_.launcher.trainers();
  return std::any_of(trainers.begin(), trainers.end(), [](Trainer* trainer) { return trainer->has_heard_of_a_halt(); });
}

}  // namespace ckpt::sim
