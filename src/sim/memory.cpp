#include "sim/memory.hpp"

namespace ckpt::sim {

Slot* Arena::find(const SlotRef& ref) {
  const auto it = segments.find({ref.rank, ref.shard});
  return it == segments.end() || ref.slot >= it->second.size() ? nullptr : &it->second[ref.slot];
}

const Slot* Arena::find(const SlotRef& ref) const { return const_cast<Arena*>(this)->find(ref); }

void Arena::make_segment(Rank rank, const std::string& shard, std::size_t slots) {
  segments.try_emplace({rank, shard}, slots);
}

}  // namespace ckpt::sim
