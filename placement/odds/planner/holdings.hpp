// What memory still holds after losses, for one scheme on one cluster. Pure, and immutable once made. Making it takes
// O(nodes) time and memory.
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

// Why the scheme cannot run on this cluster, as a sentence. "" if it can. Memory is another question (behavior.hpp).
std::string why_not(const Inputs& inputs, const Scheme& scheme);

class Holdings {
 public:
  // Throws std::invalid_argument if why_not() has a reason.
  Holdings(const Inputs& inputs, const Scheme& scheme);

  // Whether memory, or a live replica on every lost shard, is left.
  bool memory_survives(const placement::LostNodes& lost) const;
  bool replicas_survive(const placement::LostNodes& lost) const;

  // The odds that `lost` random nodes are too many for memory or for live replicas, for 0 <= lost < loss_odds_count. 1
  // beyond.
  static constexpr std::uint32_t loss_odds_count = 7;
  double loss_odds(Source source, std::uint32_t lost) const;

  // The odds that memory, or live replicas, do not survive the loss of a failure domain; and of a domain and a node.
  // The latter are sampled.
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
  std::vector<std::vector<std::uint32_t>> groups_;  // of parity
  std::vector<std::uint32_t> group_of_;
  std::vector<double> memory_loss_odds_;
  std::vector<double> replica_loss_odds_;
  std::array<double, 2> domain_loss_ = {};  // of replicas, of memory
  std::array<double, 2> domain_and_node_loss_ = {};
};

}  // namespace ckpt::planner
