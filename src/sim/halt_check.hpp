// HaltCheck checks invariants I9 and I10 in a simulated run, and knows what I11 needs: nobody who obeys is named by a
// halt, and what a rank froze at an iteration is what is restored as that iteration. Not thread-safe.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
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

  // The trainer has finished an update, and its tensors stay as they are.
  void rested(const Trainer& trainer);
  void corrupted(const Trainer& trainer);  // what it is left with is nobody's intention
  // It seals this piece.
  void sealed(const Trainer& trainer, const PieceInfo& piece) const;
  void captured_late(const Trainer& trainer);
  void restored(const Trainer& trainer, CheckpointId checkpoint);
  void told(const Machine& leader, const core::Directive& directive);
  void forget_everything();

  // True while some rank of the newest launch has heard of a halt and is not frozen for good.
  bool is_under_way() const;
  bool is_halted() const;  // some rank has heard of it
  std::uint64_t halts() const { return halts_; }
  std::uint64_t late_captures() const { return late_captures_; }
  std::uint64_t late_restores() const { return late_restores_; }

 private:
  struct State {
    std::int64_t iteration = -1;
    std::uint64_t main = 0;
    std::uint64_t private_ = 0;
  };
  using Key = std::pair<std::uint64_t, Rank>;  // incarnation and rank
  const State* find(Key key, std::int64_t iteration) const;

  World& world_;
  std::map<Key, std::deque<State>> states_;  // the newest of each rank
  std::map<Key, std::int64_t> captured_late_;
  std::uint64_t halted_ = 0;  // incarnation of the newest halt
  std::vector<Rank> named_;   // its culprits
  std::uint64_t halts_ = 0, late_captures_ = 0, late_restores_ = 0;
};

}  // namespace ckpt::sim
