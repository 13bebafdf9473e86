#include "core/repeated_updates.hpp"

#include "core/shard_parts.hpp"

namespace ckpt::core {

std::string why_not_repeated(CheckpointId base, const PieceShape& leads_to, const PieceShape& after,
                             const PieceShape& before) {
  if (leads_to != after) return "its gradients are those of another checkpoint";
  if (base != before.checkpoint) return "this node does not have the checkpoint right before";
  if (before.layout_hash != after.layout_hash || before.length_bytes != after.length_bytes)
    return "its layout has changed";
  return {};
}

RepeatEnd judge_repeated(bool has_owners_digests, bool record_is_whole) {
  if (has_owners_digests) return RepeatEnd::equal;
  return record_is_whole ? RepeatEnd::unequal : RepeatEnd::damaged;
}

// The base is the newest earlier checkpoint of the same incarnation.
RepeatedUpdates::Choice RepeatedUpdates::choose(const StartFetch& order, bool urgent,
                                                std::span<const Held> held) const {
  const PieceInfo& piece = order.piece;
  if (order.source >= parity_node || urgent || piece.is_parity() || piece.shard.ends_with(private_suffix)) return {};
  const auto vain = vain_.find(piece.shard);
  if (vain != vain_.end() && vain->second >= vain_max) return {true, nullptr};
  const Held* base = nullptr;
  for (const Held& each : held) {
    const bool is_earlier = each.checkpoint.incarnation() == piece.checkpoint.incarnation() &&
                            each.checkpoint < piece.checkpoint && each.slot != order.slot;
    if (!is_earlier || each.length_bytes != piece.length_bytes) continue;
    if (base == nullptr || base->checkpoint < each.checkpoint) base = &each;
  }
  return {true, base};
}

bool RepeatedUpdates::ended(const std::string& shard, RepeatEnd end) {
  if (end == RepeatEnd::equal) vain_.erase(shard);
  return end == RepeatEnd::unequal && ++vain_[shard] >= vain_max;
}

}  // namespace ckpt::core
