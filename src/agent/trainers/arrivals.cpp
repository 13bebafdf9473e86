#include "agent/trainers/arrivals.hpp"

namespace ckpt::agent {

std::vector<Arrivals::News> Arrivals::tell(core::Rank rank, const core::AwaitedPieces& awaited) {
  std::vector<News> news;
  bool is_any_arriving = false;
  auto& notified = notified_[rank];
  for (const core::SlotRef& slot : awaited.filling) {
    const auto fetch = fetches_.find(slot);
    if (fetch == fetches_.end()) continue;
    is_any_arriving = true;
    Fetch& told = notified[slot];
    if (told.number == fetch->second.number) continue;
    told = fetch->second;
    news.push_back({slot, told.checkpoint, false});
  }
  if (!is_any_arriving) return {};
  for (const core::SlotRef& slot : awaited.whole) {
    Fetch& told = notified[slot];
    if (told.checkpoint == awaited.checkpoint) continue;
    told = {0, awaited.checkpoint};
    news.push_back({slot, told.checkpoint, true});
  }
  return news;
}

}  // namespace ckpt::agent
