// Communications is where simulated ranks wait for each other within an iteration. In an iteration, a rank takes part
// in some exchanges. Then all ranks communicate their gradients (Launcher::arrived). An exchange is between all ranks,
// or between two neighbours if the settings have stages. A fault can make communications hang. Not thread-safe.
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

  // Makes communications hang until let_go(): those of all ranks, or those of `rank` and its neighbour.
  void hang(bool all_ranks, Rank rank);
  void let_go();
  bool hangs() const { return hung_.has_value(); }
  bool hung_lately(Rank rank) const { return lately_.first <= rank && rank <= lately_.second; }  // of the last hang
  // If the communications of all ranks hang, keeps `action` until let_go() runs it, and returns true. Otherwise returns
  // false.
  bool keeps(const std::function<void()>& action);

  void forget_everything();  // the job restarts

 private:
  using Group = std::pair<Rank, Rank>;  // first and last rank
  Group group_of(Rank rank) const;
  void complete(Group group, std::uint64_t incarnation, std::int64_t k, std::uint32_t number);

  World& world_;
  // How many ranks have joined a communication: by group, incarnation, iteration, and number within the iteration.
  std::map<std::tuple<Group, std::uint64_t, std::int64_t, std::uint32_t>, Rank> joined_;
  std::optional<Group> hung_;
  Group lately_{1, 0};  // none yet
  std::vector<std::function<void()>> kept_;
};

}  // namespace ckpt::sim
