#include "agent/fetches.hpp"

#include <algorithm>

#include "protocol/parity.hpp"

namespace ckpt::agent {
namespace {

using protocol::FetchResult;

// The transport gives up on a peer without progress long before; this bounds one that trickles.
std::int64_t fetch_timeout_ms(std::uint64_t length_bytes) {
  constexpr std::int64_t least_ms = 30'000;
  constexpr std::uint64_t slowest_bytes_per_ms = 10'000;
  return least_ms + static_cast<std::int64_t>(length_bytes / slowest_bytes_per_ms);
}

}  // namespace

Fetches::Fetches(protocol::NodeId node, Segments& segments, PieceIndex& index, WorkerPool& pool, ChunkBuffers& buffers,
                 CoreQueue& queue, Callbacks callbacks)
    : node_(node),
      segments_(segments),
      index_(index),
      pool_(pool),
      buffers_(buffers),
      queue_(queue),
      callbacks_(std::move(callbacks)) {}

void Fetches::start(const protocol::StartFetch& order, net::Transport& transport, StorageTier* storage) {
  fetches_[order.fetch].order = order;
  const SegmentKey key{order.slot.rank, order.slot.shard};
  const std::uint64_t recipe_bytes = order.piece.is_parity() ? encoded_bytes(order.piece.recipe) : 0;
  const SlotNeed need{order.piece.length_bytes, std::max(order.piece.layout_bytes, recipe_bytes)};
  segments_.ensure({{key, need}}, 0,
                   [this, &transport, storage, fetch = order.fetch](const std::optional<Failure>& failure) {
                     transfer(fetch, transport, storage, failure);
                   });
}

void Fetches::transfer(std::uint64_t id, net::Transport& transport, StorageTier* storage,
                       const std::optional<Failure>& failure) {
  Fetch& fetch = fetches_.at(id);
  const protocol::StartFetch& order = fetch.order;
  const auto segment = segments_.find({order.slot.rank, order.slot.shard});
  if (failure) callbacks_.notice(failure->what());
  if (failure || fetch.cancelled || segment == nullptr || order.slot.slot >= segment->spec().slots)
    return end(id, failure && failure->status() == CKPT_ERR_NO_SPACE ? FetchResult::no_space : FetchResult::failed,
               std::nullopt);
  fetch.writes = true;
  if (order.source == protocol::storage_node) {
    if (storage == nullptr) {
      const std::string trouble = "shard " + order.piece.shard +
                                  " is to be read from storage, but this agent was told of none; give all agents of "
                                  "the job the same option storage";
      callbacks_.notice(trouble);
      return end(id, FetchResult::failed, std::nullopt, trouble);
    }
    storage->read(order.piece, segment, order.slot.slot, fetch.stop.get_token(),
                  [this, id](FetchResult result, std::optional<arena::Manifest> manifest, const std::string& trouble) {
                    end(id, result, std::move(manifest), trouble);
                  });
    return;
  }
  if (order.source == protocol::parity_node) {
    if (!protocol::is_valid(order.making.recipe)) return end(id, FetchResult::failed, std::nullopt);
    return combine(id, transport, segment);
  }
  auto done = [this, id, &queue = queue_](FetchResult result, std::optional<arena::Manifest> manifest) {
    queue.post([this, id, result, manifest = std::move(manifest)] { end(id, result, manifest); });
  };
  fetch.sink = std::make_shared<FetchSink>(segment, order.slot.slot, order.piece, pool_, std::move(done));
  transport.fetch(order.source, {order.piece.shard, order.piece.version.word()}, fetch.sink,
                  fetch_timeout_ms(order.piece.length_bytes));
}

void Fetches::combine(std::uint64_t id, net::Transport& transport, const std::shared_ptr<arena::Segment>& segment) {
  Fetch& fetch = fetches_.at(id);
  auto done = [this, id, &queue = queue_](Combining::Outcome outcome) {
    queue.post([this, id, outcome = std::move(outcome)]() mutable { combined(id, std::move(outcome)); });
  };
  fetch.combining =
      std::make_shared<Combining>(Combining::Colleagues{node_, index_, pool_, buffers_, transport}, segment,
                                  fetch.order.slot.slot, fetch.order.piece, fetch.order.making, std::move(done));
  fetch.combining->start();
}

void Fetches::combined(std::uint64_t id, Combining::Outcome outcome) {
  const auto found = fetches_.find(id);
  if (found == fetches_.end()) return;
  moved_.received_bytes += outcome.received_bytes;
  for (const auto& source : outcome.damaged) callbacks_.damaged(source, found->second.order.piece.version);
  end(id, outcome.result, std::move(outcome.manifest));
}

void Fetches::end(std::uint64_t id, FetchResult result, std::optional<arena::Manifest> manifest,
                  const std::string& trouble) {
  const auto found = fetches_.find(id);
  if (found == fetches_.end()) return;
  const Fetch fetch = std::move(found->second);
  fetches_.erase(found);
  const protocol::SlotRef& slot = fetch.order.slot;
  protocol::FetchEnded ended{id, result, trouble, {}};
  if (result == FetchResult::complete) {
    ended.made = piece_info(*manifest);
    if (fetch.order.source == protocol::parity_node)
      moved_.made_bytes += ended.made.length_bytes;
    else if (fetch.order.source != protocol::storage_node)
      moved_.received_bytes += ended.made.length_bytes;
    index_.add(slot, segments_.find({slot.rank, slot.shard}), std::move(*manifest));
  }
  callbacks_.ended(fetch.order, std::move(ended));
  segments_.unblock();
}

void Fetches::cancel_all() {
  for (auto& [id, fetch] : fetches_) {
    if (fetch.combining != nullptr) fetch.combining->cancel();
  }
}

void Fetches::cancel(std::uint64_t id) {
  const auto found = fetches_.find(id);
  if (found == fetches_.end()) return;
  found->second.cancelled = true;
  found->second.stop.request_stop();
  if (found->second.sink != nullptr) found->second.sink->cancel();
  if (found->second.combining != nullptr) found->second.combining->cancel();
}

bool Fetches::writes_into(const SegmentKey& key) const {
  return std::any_of(fetches_.begin(), fetches_.end(), [&](const auto& entry) {
    const protocol::SlotRef& slot = entry.second.order.slot;
    return entry.second.writes && key == SegmentKey{slot.rank, slot.shard};
  });
}

bool Fetches::writes_into(const protocol::SlotRef& slot) const {
  return std::any_of(fetches_.begin(), fetches_.end(),
                     [&](const auto& entry) { return entry.second.order.slot == slot; });
}

}  // namespace ckpt::agent
