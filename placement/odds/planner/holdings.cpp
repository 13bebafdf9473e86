#include "placement/odds/planner/holdings.hpp"

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "placement/odds/bounds.hpp"
#include "placement/odds/sampling.hpp"
#include "placement/odds/survival.hpp"
#include "placement/parity_groups.hpp"

namespace ckpt::planner {
namespace {

using placement::Cell;
using placement::Domains;
using placement::LostNodes;
using placement::Pattern;
using placement::Placement;
using placement::Protection;
using placement::Shape;
using placement::Strategy;

std::optional<Domains> domains_of(const Inputs& in) {
  if (in.failures.domain_nodes == 0) return std::nullopt;
  std::vector<std::uint32_t> domain_of(in.cluster.nodes());
  for (std::uint32_t node = 0; node < domain_of.size(); ++node) domain_of[node] = node / in.failures.domain_nodes;
  return Domains::flat(domain_of);
}

// If more nodes train with a shard than there are copies, each part of the shard is on `copies` neighbours of a ring.
Strategy strategy_of(const Inputs& in, std::uint32_t copies) {
  return in.job.replicas > copies ? Strategy::ring : Strategy::group;
}

// The probability of loss with two copies and one parity row. Three lost nodes are fatal if two of them have each
// other's copies, and the third is in the parity group of one of these. For more lost nodes this is an upper bound.
double loss_of_both(const Protection& protection, std::uint32_t nodes, std::uint32_t lost) {
  if (lost < 3) return 0;
  const double fatal_triples = double(nodes) * (protection.members - 1);
  const double triples_in_loss = double(lost) * (lost - 1) * (lost - 2) / 6;
  return std::min(1.0, triples_in_loss * fatal_triples * std::exp(-placement::log_choose(nodes, 3)));
}

std::vector<Cell> parity_cells(const std::vector<std::vector<std::uint32_t>>& groups, std::uint32_t rows) {
  std::vector<Cell> cells;
  for (const auto& group : groups) {
    const auto size = static_cast<std::uint32_t>(group.size());
    if (!cells.empty() && cells.back().size == size) {
      ++cells.back().count;
    } else {
      cells.push_back({Shape::code, size, std::min(rows + 1, size), 1});
    }
  }
  return cells;
}

void lose_domain(const Inputs& in, std::uint32_t first, LostNodes& lost) {
  lost.clear();
  const std::uint32_t end = std::min(in.cluster.nodes(), first + in.failures.domain_nodes);
  for (std::uint32_t node = first; node < end; ++node) lost.add(node);
}

}  // namespace

std::string why_not(const Inputs& in, const Scheme& scheme) {
  const std::uint32_t nodes = in.cluster.nodes();
  const std::string& name = scheme.name;
  if (scheme.protection.copies > nodes)
    return name + " needs " + std::to_string(scheme.protection.copies) + " nodes, but there are only " +
           std::to_string(nodes);
  if (scheme.protection.has_parity() && nodes <= scheme.protection.rows)
    return name + " needs more than " + std::to_string(scheme.protection.rows) + " nodes, but there are only " +
           std::to_string(nodes);
  if (scheme.capture == Capture::late && in.job.replicas < 2)
    return name + " needs at least two replicas of the state, but replicas is 1";
  return "";
}

Holdings::Holdings(const Inputs& in, const Scheme& scheme)
    : nodes_(in.cluster.nodes()),
      protection_(scheme.protection),
      has_memory_(scheme.capture != Capture::stop_and_write),
      replicas_(in.job.replicas) {
  if (const std::string why = why_not(in, scheme); !why.empty()) throw std::invalid_argument(why);
  const std::optional<Domains> domains = domains_of(in);
  const Domains* known = domains && in.failures.domains_named ? &*domains : nullptr;
  const std::uint32_t copies = protection_.copies;
  copies_ =
      placement::place({.strategy = strategy_of(in, copies), .nodes = nodes_, .copies = copies, .domains = known});
  if (protection_.has_parity()) {
    groups_ = placement::parity_groups(nodes_, protection_.members, protection_.rows, known).groups;
    group_of_.resize(nodes_);
    for (std::uint32_t group = 0; group < groups_.size(); ++group)
      for (const auto node : groups_[group]) group_of_[node] = group;
  }
  for (std::uint32_t lost = 0; lost < loss_odds_count; ++lost) {
    memory_loss_odds_.push_back(memory_loss_odds(in, lost));
    replica_loss_odds_.push_back(replica_loss_odds(in, lost));
  }
  try_domains(in);
}

double Holdings::memory_loss_odds(const Inputs& in, std::uint32_t lost) const {
  if (lost == 0) return 0;
  if (lost >= nodes_ || !has_memory_) return 1;
  if (protection_.has_parity() && protection_.copies > 1) return loss_of_both(protection_, nodes_, lost);
  if (protection_.has_parity()) return survival_odds(parity_cells(groups_, protection_.rows), lost).loss;
  return survival_odds(Pattern(strategy_of(in, protection_.copies), nodes_, protection_.copies), lost).loss;
}

double Holdings::replica_loss_odds(const Inputs& in, std::uint32_t lost) const {
  if (lost < in.job.replicas) return 0;
  return lost >= nodes_ ? 1 : survival_odds(Pattern(Strategy::group, nodes_, in.job.replicas), lost).loss;
}

double Holdings::loss_odds(Source source, std::uint32_t lost) const {
  const auto& odds = source == Source::replica ? replica_loss_odds_ : memory_loss_odds_;
  return source != Source::storage && lost < odds.size() ? odds[lost] : 1;
}

bool Holdings::survives(Source source, const LostNodes& lost) const {
  return source == Source::replica ? replicas_survive(lost) : memory_survives(lost);
}

void Holdings::try_domains(const Inputs& in) {
  if (in.failures.domain_nodes == 0) return;
  double domains = 0;
  LostNodes lost(nodes_);
  for (std::uint32_t first = 0; first < nodes_; first += in.failures.domain_nodes, ++domains) {
    lose_domain(in, first, lost);
    for (const Source source : {Source::replica, Source::memory})
      domain_loss_[index(source)] += survives(source, lost) ? 0 : 1;
  }
  for (double& loss : domain_loss_) loss /= domains;
  try_domains_and_nodes(in);
}

void Holdings::try_domains_and_nodes(const Inputs& in) {
  constexpr int trials = 400;
  placement::Random random(1);
  LostNodes lost(nodes_);
  for (int trial = 0; trial < trials; ++trial) {
    const std::uint32_t node = placement::random_below(random, nodes_);
    lose_domain(in, node - node % in.failures.domain_nodes, lost);
    lost.add(placement::random_below(random, nodes_));
    for (const Source source : {Source::replica, Source::memory})
      domain_and_node_loss_[index(source)] += survives(source, lost) ? 0 : 1.0 / trials;
  }
}

bool Holdings::has_copy(std::uint32_t node, const LostNodes& lost) const {
  for (const auto home : copies_->stored_by(node)) {
    const auto holders = copies_->holders(home);
    if (std::all_of(holders.begin(), holders.end(), [&](std::uint32_t each) { return lost.contains(each); }))
      return false;
  }
  return true;
}

bool Holdings::is_decodable(std::uint32_t node, const LostNodes& lost) const {
  if (groups_.empty()) return false;
  const auto& group = groups_[group_of_[node]];
  const auto gone = std::count_if(group.begin(), group.end(), [&](std::uint32_t each) { return lost.contains(each); });
  return gone <= protection_.rows;
}

bool Holdings::memory_survives(const LostNodes& lost) const {
  if (!has_memory_) return false;
  return std::all_of(lost.list().begin(), lost.list().end(),
                     [&](std::uint32_t node) { return has_copy(node, lost) || is_decodable(node, lost); });
}

// Replicas are far apart: nodes with neighbouring numbers hold different shards.
bool Holdings::replicas_survive(const LostNodes& lost) const {
  if (replicas_ < 2) return false;
  if (lost.list().size() < replicas_) return true;
  const std::uint32_t shards = nodes_ / replicas_;
  std::vector<std::uint32_t> lost_of(shards, 0);
  for (const std::uint32_t node : lost.list()) ++lost_of[node % shards];
  return std::all_of(lost.list().begin(), lost.list().end(), [&](std::uint32_t node) {
    const std::uint32_t shard = node % shards;
    const std::uint32_t holders = (nodes_ - shard + shards - 1) / shards;
    return lost_of[shard] < holders;
  });
}

}  // namespace ckpt::planner
