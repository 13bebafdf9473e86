// Holdings says whether the job's state survives the loss of given nodes: in the checkpoint in memory, and on the GPUs
// of live replicas, which are other nodes that hold the same shards. A Holdings object is made for one cluster and one
// scheme (setting.hpp: a way to protect the job). Pure. It never changes, and takes O(nodes) time and memory to make.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "placement/odds/planner/inputs.hpp"
#include "placement/odds/planner/setting.hpp"
#include "placement/odds/recovery_plan.hpp"
#include "placement/placement.hpp"

namespace ckpt::planner {

// Returns a sentence that says why the scheme cannot run on this cluster, or "" if it can. Does not look at memory: see
// why_too_large() (behavior.hpp).
std::string why_not(const Inputs& inputs, const Scheme& scheme);

class Holdings {
 public:
  // Throws std::invalid_argument if why_not() has a reason.
  Holdings(const Inputs& inputs, const Scheme& scheme);

  // True if the checkpoint in memory can be restored without these nodes.
  bool memory_survives(const placement::LostNodes& lost) const;
  // True if every lost shard is still on the GPUs of another node.
  bool replicas_survive(const placement::LostNodes& lost) const;

  static constexpr std::uint32_t loss_odds_count = 7;
  // The probability that the state in `source` (memory or live replicas) does not survive the loss of `lost` random
  // nodes. Always 1 for storage, and if `lost` is loss_odds_count or more.
  double loss_odds(Source source, std::uint32_t lost) const;

  // The probability that the state in `source` (memory or live replicas) does not survive a loss. domain_loss(): of one
  // failure domain. domain_and_node_loss(): of one failure domain and one other node, estimated by random trials.
  double domain_loss(Source source) const { return domain_loss_[index(source)]; }
  double domain_and_node_loss(Source source) const { return domain_and_node_loss_[index(source)]; }

 private:
  bool is_decodable(std::uint32_t node, const placement::LostNodes& lost) const;
  bool has_copy(std::uint32_t node, const placement::LostNodes& lost) const;
  double memory_loss_odds(const Inputs& inputs, std::uint32_t lost) const;
  double replica_loss_odds(const Inputs& inputs, std::uint32_t lost) const;
  void try_domains(const Inputs& inputs);
  void try_domains_and_nodes(const Inputs& inputs);
  bool survives(Source source, const placement::LostNodes& lost) const;

  std::uint32_t nodes_;
  placement::Protection protection_;
  bool has_memory_;
  std::optional<placement::Placement> copies_;
  std::uint32_t replicas_;
  std::vector<std::vector<std::uint32_t>> groups_;  // the nodes of each parity group
  std::vector<std::uint32_t> group_of_;             // [node]: its parity group
  std::vector<double> memory_loss_odds_;
  std::vector<double> replica_loss_odds_;
  std::array<double, 2> domain_loss_ = {};  // by Source: replica, memory
  std::array<double, 2> domain_and_node_loss_ = {};
};

}  // namespace ckpt::planner
