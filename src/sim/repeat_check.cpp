#include "sim/repeat_check.hpp"

#include "sim/world.hpp"

namespace ckpt::sim {

using namespace core;

namespace {

constexpr std::uint32_t in_vain_max = 3;  // docs/mechanisms.md

bool is_copy_of_a_main_shard(const StartFetch& order) {
  return order.source < parity_node && !order.piece.is_parity() && !order.piece.shard.ends_with(private_suffix);
}

}  // namespace

void RepeatCheck::chosen(const Machine& machine, std::uint64_t agent, const StartFetch& order, bool restores,
                         const RepeatedUpdates::Held* base) {
  const std::string what =
      text("node ", machine.id, " gets ", order.piece.shard, " of ", describe(order.piece.checkpoint));
  const auto vain = vain_.find({agent, order.piece.shard});
  const bool is_tired = vain != vain_.end() && vain->second >= in_vain_max;
  if (base != nullptr) {
    if (restores) throw Violation{"I13", text(what, " by repeating an update, although ranks wait for it")};
    if (is_tired) throw Violation{"I13", text(what, " by repeating an update, after ", vain->second, " in vain")};
    return;
  }
  if (restores || is_tired || !is_copy_of_a_main_shard(order)) return;
  const auto segment = machine.arena.segments.find({order.slot.rank, order.slot.shard});
  for (std::size_t slot = 0; slot < segment->second.size(); ++slot) {
    const Slot& there = segment->second[slot];
    const CheckpointId checkpoint = there.header.checkpoint;
    if (slot == order.slot.slot || !there.counted || checkpoint.incarnation() != order.piece.checkpoint.incarnation() ||
        checkpoint.iteration() + 1 != order.piece.checkpoint.iteration())
      continue;
    throw Violation{"I13", text(what, " in full, although it has the checkpoint right before")};
  }
}

void RepeatCheck::repeated(const Transfer& transfer, const UpdateRecord& record, const Slot& base, std::uint64_t bytes,
                           RepeatEnd end) {
  const PieceInfo& piece = transfer.order.piece;
  const std::string what =
      text("node ", transfer.to, " repeats an update of ", piece.shard, " to ", describe(piece.checkpoint));
  std::uint32_t& vain = vain_[{transfer.to_agent, piece.shard}];
  switch (end) {
    case RepeatEnd::equal:
      if (!world_.invariants.history().digests(piece.checkpoint, piece.shard).contains(bytes))
        throw Violation{"I13", what + ", and counts bytes that its owner did not capture"};
      vain = 0;
      ++equal_;
      return;
    case RepeatEnd::unequal:
      if (base.header.checkpoint != record.base)
        throw Violation{"I13", text(what, " from ", describe(base.header.checkpoint), ", although it leads from ",
                                    describe(record.base))};
      if (transfer.flip) throw Violation{"I13", what + ", and blames the owner for gradients that arrived damaged"};
      if (record.is_all && base.intact() && !transfer.is_wrong)
        throw Violation{"I13", what + " in vain, although nothing else has changed the tensors"};
      ++vain;
      ++in_vain_;
      return;
    case RepeatEnd::damaged:
      if (!transfer.flip) throw Violation{"I13", what + ", and takes whole gradients for damaged ones"};
      ++missing_;
      return;
    case RepeatEnd::missing:
      ++missing_;
  }
}

}  // namespace ckpt::sim
