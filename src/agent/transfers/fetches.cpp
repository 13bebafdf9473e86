#include "agent/transfers/fetches.hpp"

#include <algorithm>
#include <utility>

#include "agent/pieces/parity_manifest_codec.hpp"

namespace ckpt::agent {
namespace {

using core::FetchResult;

// Bounds a fetch from a peer that sends very slowly. On a peer that sends nothing, the transport gives up much earlier.
std::int64_t fetch_timeout_ms(std::uint64_t length_bytes) {
  constexpr std::int64_t least_ms = 30'000;
  constexpr std::uint64_t slowest_bytes_per_ms = 10'000;
  return least_ms + static_cast<std::int64_t>(length_bytes / slowest_bytes_per_ms);
}

FetchOutcome failed(FetchResult result = FetchResult::failed) {
  FetchOutcome outcome;
  outcome.result = result;
  return outcome;
}

}  // namespace

Fetches::Fetches(Segments& segments, PieceIndex& index, Callbacks callbacks)
    : segments_(segments), index_(index), callbacks_(std::move(callbacks)) {}

void Fetches::start(const core::StartFetch& order, bool urgent) {
  fetches_[order.fetch] = {.order = order, .urgent = urgent};
  for (const auto& source : sources_) source->ordered(order, urgent);
  const SegmentKey key{order.slot.rank, order.slot.shard};
  const std::uint64_t parity_manifest_bytes = order.piece.is_parity() ? encoded_bytes(order.piece.parity_manifest) : 0;
  const SlotNeed need{order.piece.length_bytes, std::max(order.piece.layout_bytes, parity_manifest_bytes)};
  segments_.ensure({{key, need}}, 0, [this, fetch = order.fetch](const std::optional<Failure>& failure) {
    try {
      transfer(fetch, failure);
    } catch (const std::exception& error) {
      callbacks_.notice(bug_text(std::string("a fetch failed: ") + error.what()));
      end(fetch, failed());
    }
  });
}

void Fetches::transfer(std::uint64_t id, const std::optional<Failure>& failure) {
  Fetch& fetch = fetches_.at(id);
  const core::SlotRef& slot = fetch.order.slot;
  const auto segment = segments_.find({slot.rank, slot.shard});
  if (failure) callbacks_.notice(failure->what());
  if (failure || fetch.cancelled || segment == nullptr || slot.slot >= segment->slots())
    return end(id,
               failed(failure && failure->status() == CKPT_ERR_NO_SPACE ? FetchResult::no_space : FetchResult::failed));
  fetch.writes = true;
  const FetchRequest request = request_for(fetch, segment);
  for (const auto& source : sources_) {
    fetch.running = source->start(request);
    if (fetch.running == nullptr) continue;
    return callbacks_.began(request.order);
  }
  end(id, failed());
}

FetchRequest Fetches::request_for(const Fetch& fetch, std::shared_ptr<arena::Segment> segment) {
  const core::StartFetch& order = fetch.order;
  return {.order = order,
          .urgent = fetch.urgent,
          .timeout_ms = fetch_timeout_ms(order.piece.length_bytes),
          .destination = FetchDestination(std::move(segment), order.slot.slot, order.piece),
          .done = [this, id = order.fetch](FetchOutcome outcome) { end(id, std::move(outcome)); },
          .damaged = [this, checkpoint = order.piece.checkpoint](
                         const PieceRef& piece, bool is_wrong) { callbacks_.damaged(piece, checkpoint, is_wrong); }};
}

void Fetches::end(std::uint64_t id, FetchOutcome outcome) {
  const auto found = fetches_.find(id);
  if (found == fetches_.end()) return;
  const Fetch fetch = std::move(found->second);
  fetches_.erase(found);
  const core::SlotRef& slot = fetch.order.slot;
  const auto segment = segments_.find({slot.rank, slot.shard});
  const bool was_cut_off = segment == nullptr && outcome.result == FetchResult::complete;
  if (was_cut_off) outcome = failed();
  if (!outcome.trouble.empty()) callbacks_.notice(outcome.trouble);
  core::FetchEnded ended{id, outcome.result, outcome.trouble, {}};
  transfer_counters_.received_bytes += outcome.network_bytes;
  transfer_counters_.coded_bytes += outcome.coded_bytes;
  if (outcome.result == FetchResult::complete) {
    ended.made = piece_info(*outcome.manifest);
    index_.add(slot, segment, std::move(*outcome.manifest));
  }
  for (const auto& source : sources_) source->ended(fetch.order, outcome);
  callbacks_.ended(std::move(ended));
  segments_.unblock();
}

void Fetches::give_up(const core::StartFetch& order) {
  if (fetches_.contains(order.fetch)) return end(order.fetch, failed());
  callbacks_.ended({order.fetch, FetchResult::failed, {}, {}});
}

void Fetches::cancel(std::uint64_t id) {
  const auto found = fetches_.find(id);
  if (found == fetches_.end()) return;
  found->second.cancelled = true;
  if (found->second.running != nullptr) found->second.running->cancel();
}

void Fetches::cancel_all() {
  for (const auto& [id, fetch] : fetches_) {
    if (fetch.running != nullptr) fetch.running->cancel();
  }
}

void Fetches::look() {
  for (const auto& [id, fetch] : fetches_) {
    if (fetch.running != nullptr) fetch.running->look();
  }
}

bool Fetches::writes_into(const SegmentKey& key) const {
  return std::any_of(fetches_.begin(), fetches_.end(), [&](const auto& entry) {
    const core::SlotRef& slot = entry.second.order.slot;
    return entry.second.writes && key == SegmentKey{slot.rank, slot.shard};
  });
}

bool Fetches::writes_into(const core::SlotRef& slot) const {
  return std::any_of(fetches_.begin(), fetches_.end(),
                     [&](const auto& entry) { return entry.second.order.slot == slot; });
}

}  // namespace ckpt::agent
