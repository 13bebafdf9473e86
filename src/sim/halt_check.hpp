// HaltCheck checks invariants I9, I10 and I12 in a simulated run (docs/simulator.md). I9: a halt names no rank that
// does what it should. I10: a restore gets the state with which a rank was frozen. I12: no incarnation ends before the
// ranks that the leader can hear are frozen. Not thread-safe.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "core/messages.hpp"
#include "sim/event_queue.hpp"
#include "sim/memory.hpp"

namespace ckpt::sim {

class Trainer;
class World;
struct Machine;

class HaltCheck {
 public:
  explicit HaltCheck(World& world) : world_(world) {}

  // The trainer has finished an update. Its tensors stay as they are until the next one.
  void rested(const Trainer& trainer);
  void corrupted(const Trainer& trainer);  // its state is wrong from now on
  // The trainer seals this piece.
  void sealed(const Trainer& trainer, const PieceInfo& piece) const;
  void captured_late(const Trainer& trainer);
  void restored(const Trainer& trainer, CheckpointId checkpoint);
  // The trainer has rejoined, and keeps its tensors instead of restoring them: they should hold this checkpoint.
  // `main`: what the main shard's tensors hold.
  void kept(const Trainer& trainer, CheckpointId checkpoint, std::uint64_t main);
  void told(const Machine& leader, const core::Directive& directive);
  // The leader ends the incarnation `ended`: at `asked_at` it asked the store to write the next one.
  void incarnation_ends(const Machine& leader, std::uint64_t ended, TimeMs asked_at) const;
  void forget_everything();

  // True while some rank of the newest launch has heard of a halt and is not frozen for good.
  bool is_under_way() const;
  bool is_halted() const;  // some rank of the newest launch has heard of a halt
  std::uint64_t halts() const { return halts_; }
  std::uint64_t late_captures() const { return late_captures_; }
  std::uint64_t late_restores() const { return late_restores_; }
  std::uint64_t kept() const { return kept_; }

 private:
  struct State {
    std::int64_t iteration = -1;
    std::uint64_t main = 0;
    std::uint64_t private_ = 0;
  };
  using Key = std::pair<std::uint64_t, Rank>;  // incarnation and rank
  const State* find(Key key, std::int64_t iteration) const;
  bool may_differ(Rank rank) const;

  World& world_;
  std::map<Key, std::deque<State>> states_;  // the newest of each rank
  std::map<Key, std::int64_t> captured_late_;
  std::set<std::string> corrupted_;  // main shards of ranks that were corrupted
  std::uint64_t halted_ = 0;         // incarnation of the newest halt
  TimeMs halted_at_ = 0;
  std::vector<Rank> named_;  // its culprits
  std::uint64_t halts_ = 0, late_captures_ = 0, late_restores_ = 0, kept_ = 0;
};

}  // namespace ckpt::sim
