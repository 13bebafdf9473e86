// Communications is where simulated ranks wait for each other within an iteration. An iteration has some exchanges, and
// then the communication of the gradients, of all ranks (Launcher::arrived). All ranks take part in an exchange, or,
// with stages, two neighbours. A fault can hold up a communication. Not thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "sim/memory.hpp"

namespace ckpt::sim {

class Trainer;
class World;

class Communications {
 public:
  explicit Communications(World& world) : world_(world) {}

  std::uint32_t exchanges(Rank rank) const;  // of this rank in an iteration
  void join(const Trainer& trainer, std::int64_t k, std::uint32_t number);

  // From now on no communication of these ranks ends, until let_go().
  void hang(bool all_ranks, Rank rank);
  void let_go();
  bool hangs() const { return hung_.has_value(); }
  bool hung_lately(Rank rank) const { return lately_.first <= rank && rank <= lately_.second; }  // the last that hung
  // True if a communication of all ranks hangs. Then `action` runs when it is let go.
  bool keeps(const std::function<void()>& action);

  void forget_everything();  // the job restarts

 private:
  using Group = std::pair<Rank, Rank>;  // first and last rank
  Group group_of(Rank rank) const;
  void complete(Group group, std::uint64_t incarnation, std::int64_t k, std::uint32_t number);

  World& world_;
  // By group, incarnation, iteration and number: how many ranks.
  std::map<std::tuple<Group, std::uint64_t, std::int64_t, std::uint32_t>, Rank> joined_;
  std::optional<Group> hung_;
  Group lately_{1, 0};  // none yet
  std::vector<std::function<void()>> kept_;
};

}  // namespace ckpt::sim
