#include "sim/history.hpp"

#include <algorithm>
#include <utility>

namespace ckpt::sim {

using core::Decision;
using core::Verdict;

core::Rank History::world_size(std::uint64_t incarnation) const {
  const auto found = world_sizes_.find(incarnation);
  return found == world_sizes_.end() ? settings_->ranks : found->second;
}

History::Shards History::main_shards(std::uint64_t incarnation) const {
  const auto found = main_shards_.find(incarnation);
  if (found != main_shards_.end() && found->second.size() == world_size(incarnation)) return found->second;
  Shards all;
  for (core::Rank rank = 0; rank < world_size(incarnation); ++rank) all.push_back(settings_->main_shard(rank));
  return all;
}

bool History::takes_over(std::uint64_t incarnation, CheckpointId checkpoint) const {
  if (!settings_->resizes) return false;
  if (world_size(checkpoint) != world_size(incarnation)) return true;
  const Shards there = main_shards(checkpoint.incarnation()), needed = main_shards(incarnation);
  return std::any_of(needed.begin(), needed.end(), [&](const std::string& shard) {
    return std::find(there.begin(), there.end(), shard) == there.end();
  });
}

// The newest incarnation that began may have restored the checkpoint with fewer ranks than captured it. The private
// shards of the other ranks are void then.
core::Rank History::own_ranks(CheckpointId checkpoint) const {
  const auto last = std::find_if(decisions_.rbegin(), decisions_.rend(), [](const auto& entry) {
    return entry.second.verdict == Verdict::fresh || entry.second.verdict == Verdict::restore;
  });
  const bool is_restored = last != decisions_.rend() && last->second.checkpoint == checkpoint;
  return is_restored ? own_ranks_.at(last->first) : world_size(checkpoint);
}

const History::Shards& History::shards(CheckpointId checkpoint, std::optional<core::Rank> ranks) const {
  const std::pair key(checkpoint.incarnation(), ranks.value_or(own_ranks(checkpoint)));
  const auto [found, is_new] = shards_.try_emplace(key);
  if (is_new) found->second = settings_->shards(main_shards(key.first), key.second);
  return found->second;
}

void History::captured(const PieceInfo& piece) {
  core::Rank& world_size = world_sizes_[piece.checkpoint.incarnation()];
  if (std::exchange(world_size, piece.world_size) != piece.world_size) shards_.clear();
  auto& digests = digests_[piece.checkpoint][piece.shard];
  digests.insert(piece.root_digest);
  ranks_disagreed_ = ranks_disagreed_ || digests.size() > 1;
}

const std::set<std::uint64_t>& History::digests(CheckpointId checkpoint, const std::string& shard) const {
  static const std::set<std::uint64_t> none;
  const auto pieces = digests_.find(checkpoint);
  if (pieces == digests_.end()) return none;
  const auto found = pieces->second.find(shard);
  return found == pieces->second.end() ? none : found->second;
}

bool History::ranks_disagree(CheckpointId checkpoint) const {
  const auto pieces = digests_.find(checkpoint);
  return pieces != digests_.end() && std::any_of(pieces->second.begin(), pieces->second.end(),
                                                 [](const auto& shard) { return shard.second.size() > 1; });
}

void History::gained(NodeId node, const PieceInfo& piece) {
  if (!piece.is_parity()) {
    holders_[piece.checkpoint][piece.shard][node] = has_it;
    return;
  }
  Group& group = groups_[piece.checkpoint][core::parse_part(piece.shard).shard];
  group.shards.clear();
  for (const auto& parity_source : piece.parity_manifest.sources) group.shards.push_back(parity_source.shard);
  group.holders[piece.parity_manifest.member][node] = has_it;
}

void History::lost(NodeId node, const PieceInfo& piece, TimeMs now) {
  const auto lose = [&](Holders& holders) {
    const auto holder = holders.find(node);
    if (holder != holders.end() && holder->second == has_it) holder->second = now;
  };
  if (!piece.is_parity()) return lose(holders_[piece.checkpoint][piece.shard]);
  lose(groups_[piece.checkpoint][core::parse_part(piece.shard).shard].holders[piece.parity_manifest.member]);
}

std::size_t History::count(const Holders& holders, TimeMs since) {
  return static_cast<std::size_t>(
      std::count_if(holders.begin(), holders.end(), [&](const auto& holder) { return holder.second >= since; }));
}

std::string History::unprotected(CheckpointId checkpoint, const Shards& shards, TimeMs since) const {
  std::set<std::string> covered;
  if (const auto groups = groups_.find(checkpoint); groups != groups_.end()) {
    for (const auto& [name, group] : groups->second) {
      const bool is_whole = group.holders.size() == group.shards.size() &&
                            std::all_of(group.holders.begin(), group.holders.end(),
                                        [&](const auto& entry) { return count(entry.second, since) > 0; });
      if (is_whole) covered.insert(group.shards.begin(), group.shards.end());
    }
  }
  for (const std::string& shard : shards) {
    if (!covered.contains(shard)) return shard;
  }
  return {};
}

void History::dropped(NodeId node, const PieceInfo& piece) {
  if (const auto groups = groups_.find(piece.checkpoint); piece.is_parity() && groups != groups_.end())
    groups->second[core::parse_part(piece.shard).shard].holders[piece.parity_manifest.member].erase(node);
  const auto pieces = holders_.find(piece.checkpoint);
  if (pieces != holders_.end()) pieces->second[piece.shard].erase(node);
}

History::Scarcest History::scarcest(CheckpointId checkpoint, const Shards& shards, TimeMs since) const {
  const auto pieces = holders_.find(checkpoint);
  Scarcest scarcest{SIZE_MAX, {}};
  for (const std::string& shard : shards) {
    std::size_t copies = 0;
    if (pieces != holders_.end()) {
      const auto nodes = pieces->second.find(shard);
      copies = nodes == pieces->second.end() ? 0 : count(nodes->second, since);
    }
    if (copies < scarcest.copies) scarcest = {copies, shard};
  }
  return scarcest;
}

std::vector<CheckpointId> History::complete_checkpoints() const {
  std::vector<CheckpointId> checkpoints;
  for (const auto& [checkpoint, pieces] : holders_) {
    if (was_whole(checkpoint)) checkpoints.push_back(checkpoint);
  }
  return checkpoints;
}

const std::set<NodeId>& History::hosts(std::uint64_t incarnation) const {
  static const std::set<NodeId> none;
  const auto found = hosts_.find(incarnation);
  return found == hosts_.end() ? none : found->second;
}

void History::decided(std::uint64_t incarnation, const Decision& decision, core::Rank world_size, core::Rank own_ranks,
                      const Shards& main_shards) {
  decisions_[incarnation] = decision;
  main_shards_[incarnation] = main_shards;
  shards_.clear();
  world_sizes_[incarnation] = world_size;
  own_ranks_[incarnation] = own_ranks;
  reported_before_ = reported_;
  if (decision.verdict != Verdict::fresh && decision.verdict != Verdict::restore) return;
  // All newer checkpoints are void from now on.
  committed_ = std::min(committed_, decision.checkpoint);
  reported_ = std::min(reported_, decision.checkpoint);
}

const Decision* History::decision(std::uint64_t incarnation) const {
  const auto found = decisions_.find(incarnation);
  return found == decisions_.end() ? nullptr : &found->second;
}

// Follows the incarnations back from the newest one that began. Each went on from the checkpoint that it restored.
bool History::is_void(CheckpointId checkpoint) const {
  auto candidate = decisions_.rbegin();
  while (candidate != decisions_.rend()) {
    const auto& [incarnation, decision] = *candidate;
    const bool began = decision.verdict == Verdict::fresh || decision.verdict == Verdict::restore;
    if (began && checkpoint.incarnation() >= incarnation) return false;
    if (began && checkpoint > decision.checkpoint) return true;
    if (began && checkpoint.incarnation() == decision.checkpoint.incarnation()) return false;
    const std::uint64_t next = began ? decision.checkpoint.incarnation() : incarnation - 1;
    candidate = std::find_if(candidate, decisions_.rend(), [&](const auto& entry) { return entry.first <= next; });
  }
  return false;
}

void History::forget_incarnations(std::uint64_t from) {
  const CheckpointId first(from, 0);
  const auto forget = [](auto& all, const auto& since) { all.erase(all.lower_bound(since), all.end()); };
  forget(digests_, first);
  forget(holders_, first);
  forget(groups_, first);
  forget(damaged_, first);
  forget(commits_, first);
  forget(hosts_, from);
  forget(world_sizes_, from);
  forget(own_ranks_, from);
  forget(decisions_, from);
  committed_ = newest_valid_commit();
  reported_ = std::min(reported_, committed_);
}

void History::forget_decision(std::uint64_t incarnation) {
  decisions_.erase(incarnation);
  hosts_.erase(incarnation);
  committed_ = newest_valid_commit();
  reported_ = std::max(reported_, reported_before_);
}

CheckpointId History::newest_valid_commit() const {
  const auto newest =
      std::find_if(commits_.rbegin(), commits_.rend(), [&](CheckpointId each) { return !is_void(each); });
  return newest == commits_.rend() ? CheckpointId() : *newest;
}

void History::committed(CheckpointId checkpoint) {
  commits_.insert(checkpoint);
  committed_ = std::max(committed_, checkpoint);
  committed_ever_ = std::max(committed_ever_, checkpoint);
}

void History::reported(CheckpointId checkpoint) { reported_ = std::max(reported_, checkpoint); }

}  // namespace ckpt::sim
