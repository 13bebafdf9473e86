#include "agent/trainers/arrivals.hpp"

namespace ckpt::agent {

std::vector<Arrivals::News> Arrivals::tell(core::Rank rank, const std::vector<core::SlotRef>& awaited) {
  std::vector<News> news;
  for (const core::SlotRef& slot : awaited) {
    const auto fetch = fetches_.find(slot);
    if (fetch == fetches_.end() || !notified_[rank].insert(fetch->second.number).second) continue;
    news.push_back({slot, fetch->second.checkpoint});
  }
  return news;
}

}  // namespace ckpt::agent
