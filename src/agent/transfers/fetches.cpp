#include "agent/transfers/fetches.hpp"

#include <algorithm>

#include "core/lists.hpp"
#include "core/parity_pieces.hpp"
#include "net/wire.hpp"

namespace ckpt::agent {
namespace {

using core::FetchResult;

constexpr std::int64_t receive_timeout_ms = 2'000;  // without anything that arrives

// The transport gives up on a peer without progress long before; this bounds one that trickles.
std::int64_t fetch_timeout_ms(std::uint64_t length_bytes) {
  constexpr std::int64_t least_ms = 30'000;
  constexpr std::uint64_t slowest_bytes_per_ms = 10'000;
  return least_ms + static_cast<std::int64_t>(length_bytes / slowest_bytes_per_ms);
}

// As it travels; 0 where it does not grow with a group.
std::uint64_t manifest_bytes(const core::PieceInfo& piece) {
  if (!piece.is_parity()) return 0;
  return arena::encoded_bytes(piece.shard.size(), piece.length_bytes, encoded_bytes(piece.parity_manifest));
}

}  // namespace

Fetches::Fetches(core::NodeId node, Segments& segments, PieceIndex& index, WorkerPool& pool, ChunkBuffers& buffers,
                 CoreQueue& queue, ReplicationManager& replication, Callbacks callbacks)
    : node_(node),
      segments_(segments),
      index_(index),
      pool_(pool),
      buffers_(buffers),
      queue_(queue),
      replication_(replication),
      callbacks_(std::move(callbacks)) {}

void Fetches::start(const core::StartFetch& order, bool urgent, net::Transport& transport, StorageTier* storage) {
  fetches_[order.fetch].order = order;
  fetches_[order.fetch].urgent = urgent;
  const SegmentKey key{order.slot.rank, order.slot.shard};
  const std::uint64_t parity_manifest_bytes = order.piece.is_parity() ? encoded_bytes(order.piece.parity_manifest) : 0;
  const SlotNeed need{order.piece.length_bytes, std::max(order.piece.layout_bytes, parity_manifest_bytes)};
  segments_.ensure({{key, need}}, 0,
                   [this, &transport, storage, fetch = order.fetch](const std::optional<Failure>& failure) {
                     try {
                       transfer(fetch, transport, storage, failure);
                     } catch (const std::exception& error) {
                       callbacks_.notice(std::string("internal error: ") + error.what());
                       end(fetch, FetchResult::failed, std::nullopt);
                     }
                   });
}

void Fetches::transfer(std::uint64_t id, net::Transport& transport, StorageTier* storage,
                       const std::optional<Failure>& failure) {
  Fetch& fetch = fetches_.at(id);
  const core::StartFetch& order = fetch.order;
  const auto segment = segments_.find({order.slot.rank, order.slot.shard});
  if (failure) callbacks_.notice(failure->what());
  if (failure || fetch.cancelled || segment == nullptr || order.slot.slot >= segment->slots())
    return end(id, failure && failure->status() == CKPT_ERR_NO_SPACE ? FetchResult::no_space : FetchResult::failed,
               std::nullopt);
  fetch.writes = true;
  if (order.source == core::storage_node) {
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
  if (order.source == core::parity_node) {
    if (!core::is_valid(order.coding_inputs.parity_manifest)) return end(id, FetchResult::failed, std::nullopt);
    if (port_ == nullptr) port_ = std::make_shared<TransportPort>(transport);
    return start_coding_job(id);
  }
  replication_.fetching(order.piece, order.source);
  if (const auto place = replication_.place_to_wait_for(order.piece, order.source); place && !fetch.urgent)
    return take_received(id, *place, transport);
  auto done = [this, id, &queue = queue_](FetchResult result, std::optional<arena::Manifest> manifest) {
    queue.post([this, id, result, manifest = std::move(manifest)] { end(id, result, manifest); });
  };
  fetch.sink = std::make_shared<FetchSink>(segment, order.slot.slot, order.piece, pool_, std::move(done));
  const net::FetchPart whole{.urgent = fetch.urgent};
  transport.fetch(order.source, {order.piece.shard, order.piece.checkpoint.word()}, whole, fetch.sink,
                  fetch_timeout_ms(order.piece.length_bytes));
}

void Fetches::take_received(std::uint64_t id, const ReplicationManager::Place& place, net::Transport& transport) {
  Fetch& fetch = fetches_.at(id);
  const core::StartFetch& order = fetch.order;
  if (port_ == nullptr) port_ = std::make_shared<TransportPort>(transport);
  auto done = [this, id, &queue = queue_](ReceivedFetch::Outcome outcome) {
    queue.post([this, id, outcome = std::move(outcome)]() mutable {
      end(id, outcome.result, std::move(outcome.manifest), {}, outcome.gpu_received_bytes);
    });
  };
  fetch.received = std::make_shared<ReceivedFetch>(
      segments_.find({order.slot.rank, order.slot.shard}), order.slot.slot,
      ReceivedFetch::Order{order.piece, order.source, false, fetch_timeout_ms(order.piece.length_bytes),
                           receive_timeout_ms},
      place.receive_buffer, place.number, pool_, port_, std::move(done));
  fetch.received->start();
}

void Fetches::look() {
  for (auto& [id, fetch] : fetches_) {
    if (fetch.received == nullptr) continue;
    if (replication_.place_of(fetch.order.piece, fetch.order.source))
      fetch.received->look();
    else
      fetch.received->stop_waiting();
  }
}

void Fetches::start_coding_job(std::uint64_t id) {
  Fetch& fetch = fetches_.at(id);
  const auto& [number, piece, source, slot, coding_inputs] = fetch.order;
  const auto segment = segments_.find({slot.rank, slot.shard});
  if (const auto bytes = manifest_bytes(piece); segment == nullptr || bytes > net::wire::manifest_bytes_max) {
    callbacks_.notice("parity " + piece.shard + " is not made: the manifests of what it protects take " +
                      std::to_string(bytes >> 20) + " MiB, more than agents send; use smaller groups, as in xor(4)");
    return end(id, FetchResult::failed, std::nullopt);
  }
  auto done = [this, id, &queue = queue_](CodingJob::Outcome outcome) {
    queue.post([this, id, outcome = std::move(outcome)]() mutable { combined(id, std::move(outcome)); });
  };
  fetch.coding_job =
      std::make_shared<CodingJob>(CodingJob::Dependencies{node_, index_, pool_, buffers_, port_, fetch.urgent}, segment,
                                  slot.slot, piece, coding_inputs, std::move(done));
  fetch.coding_job->start();
}

// What could not be used is done without, as long as the rest suffices: each time there is less of it.
void Fetches::combined(std::uint64_t id, CodingJob::Outcome outcome) {
  const auto found = fetches_.find(id);
  if (found == fetches_.end()) return;
  Fetch& fetch = found->second;
  transfer_counters_.received_bytes += outcome.received_bytes;
  for (const auto& source : outcome.damaged) callbacks_.damaged(source, fetch.order.piece.checkpoint, false);
  for (const auto& source : outcome.wrong) callbacks_.damaged(source, fetch.order.piece.checkpoint, true);
  const auto was_unusable = [&](const core::CodingInputs::Source& source) {
    return core::contains(outcome.unusable, CodingJob::PieceRef{source.node, source.shard});
  };
  const bool has_failed = outcome.result != FetchResult::complete && !fetch.cancelled;
  if (has_failed && std::erase_if(fetch.order.coding_inputs.sources, was_unusable) != 0) return start_coding_job(id);
  if (has_failed && suspect_another(fetch, outcome.suspects)) return start_coding_job(id);
  if (outcome.result == FetchResult::complete && is_convicted(fetch))
    callbacks_.damaged(*fetch.suspected, fetch.order.piece.checkpoint, true);
  end(id, outcome.result, std::move(outcome.manifest));
}

// Where one of several parity pieces is wrong, the rest may still make what is true: each of them is left out once, all
// others that were suspected with it are read again. False: none is left to try, and none was convicted.
bool Fetches::suspect_another(Fetch& fetch, const std::vector<CodingJob::PieceRef>& suspects) {
  if (!fetch.coding_inputs_of_all) {
    if (suspects.empty()) return false;
    fetch.coding_inputs_of_all = fetch.order.coding_inputs;
    fetch.suspects = suspects;
  }
  if (fetch.suspects.empty()) return false;
  fetch.suspected = fetch.suspects.back();
  fetch.suspects.pop_back();
  fetch.order.coding_inputs = *fetch.coding_inputs_of_all;
  fetch.left_out = std::erase_if(fetch.order.coding_inputs.sources,
                                 [&](const auto& source) { return source.shard == fetch.suspected->shard; });
  return true;
}

// Without it and nothing else what was made is true: of the others all that were suspected were read then, as a decoder
// takes the first that are there.
bool Fetches::is_convicted(const Fetch& fetch) {
  return fetch.suspected &&
         fetch.order.coding_inputs.sources.size() + fetch.left_out == fetch.coding_inputs_of_all->sources.size();
}

void Fetches::end(std::uint64_t id, FetchResult result, std::optional<arena::Manifest> manifest,
                  const std::string& trouble, std::uint64_t gpu_received_bytes) {
  const auto found = fetches_.find(id);
  if (found == fetches_.end()) return;
  const Fetch fetch = std::move(found->second);
  fetches_.erase(found);
  const core::SlotRef& slot = fetch.order.slot;
  core::FetchEnded ended{id, result, trouble, {}};
  const auto segment = segments_.find({slot.rank, slot.shard});
  if (segment == nullptr && result == FetchResult::complete) ended.result = FetchResult::failed;  // somebody cut it off
  if (ended.result == FetchResult::complete) {
    ended.made = piece_info(*manifest);
    if (fetch.order.source == core::parity_node)
      transfer_counters_.coded_bytes += ended.made.length_bytes;
    else if (fetch.order.source != core::storage_node)
      transfer_counters_.received_bytes += ended.made.length_bytes - gpu_received_bytes;
    index_.add(slot, segment, std::move(*manifest));
    replication_.brought(fetch.order.piece, fetch.order.source,
                         fetch.received ? std::optional(gpu_received_bytes) : std::nullopt);
  }
  replication_.fetched(fetch.order.piece, fetch.order.source);
  callbacks_.ended(fetch.order, std::move(ended));
  segments_.unblock();
}

void Fetches::close() {
  for (auto& [id, fetch] : fetches_) {
    if (fetch.coding_job != nullptr) fetch.coding_job->cancel();
  }
  if (port_ != nullptr) port_->close();
}

void Fetches::give_up(const core::StartFetch& order) {
  if (fetches_.contains(order.fetch)) return end(order.fetch, FetchResult::failed, std::nullopt);
  callbacks_.ended(order, {order.fetch, FetchResult::failed, {}, {}});
}

void Fetches::cancel(std::uint64_t id) {
  const auto found = fetches_.find(id);
  if (found == fetches_.end()) return;
  found->second.cancelled = true;
  found->second.stop.request_stop();
  if (found->second.sink != nullptr) found->second.sink->cancel();
  if (found->second.received != nullptr) found->second.received->cancel();
  if (found->second.coding_job != nullptr) found->second.coding_job->cancel();
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
