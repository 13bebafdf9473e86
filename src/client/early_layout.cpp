#include "client/early_layout.hpp"

#include <algorithm>
#include <iterator>

namespace ckpt::client {
namespace {

constexpr std::int64_t poll_ms = 50;  // a slot that has its piece already rings no more

std::optional<arena::Manifest> manifest_in(const ArrivingSlot& arriving) {
  const arena::Slot slot = arriving.segment.slot(arriving.slot);
  if (auto whole = slot.read(); whole && whole->checkpoint == arriving.checkpoint) return whole;
  if (auto arrival = slot.arrival(); arrival && arrival->manifest.checkpoint == arriving.checkpoint)
    return std::move(arrival->manifest);
  return std::nullopt;
}

}  // namespace

void EarlyLayout::add(ArrivingSlots news) {
  incarnation_ = news.incarnation;
  if (!news.slots.empty()) checkpoint_ = news.slots.front().checkpoint;
  std::move(news.slots.begin(), news.slots.end(), std::back_inserter(slots_));
}

// Returns the slot that was named last: if a fetch fails, the next one may write to another slot.
const ArrivingSlot* EarlyLayout::find_slot(bool is_private) const {
  const auto found = std::find_if(slots_.rbegin(), slots_.rend(), [&](const ArrivingSlot& each) {
    return each.is_private == is_private && each.checkpoint == checkpoint_;
  });
  return found == slots_.rend() ? nullptr : &*found;
}

bool EarlyLayout::find(Deadline deadline) {
  const ArrivingSlot* const main = find_slot(false);
  const ArrivingSlot* const own = find_slot(true);
  if (main == nullptr || own == nullptr) return false;
  for (;;) {
    const arena::Slot waited = (main_ ? own : main)->segment.slot((main_ ? own : main)->slot);
    const std::uint32_t seen = waited.arrival_doorbell();
    main_ = manifest_in(*main);
    private_ = manifest_in(*own);
    if (main_ && private_) return true;
    if (deadline.passed()) return false;
    waited.wait_arrival(seen, Deadline::in_ms(std::min<std::int64_t>(poll_ms, deadline.remaining_ms())));
  }
}

std::string EarlyLayout::json() const { return stored_layout_json(*main_, *private_, incarnation_); }

bool EarlyLayout::is_of(const Stored& stored) const {
  return stored.found && !stored.is_taken_over() && stored.main.front().manifest.layout_hash == main_->layout_hash &&
         stored.private_->manifest.layout_hash == private_->layout_hash;
}

}  // namespace ckpt::client
