#include "gpu_replication/gpu_source.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/parity_pieces.hpp"
#include "gpu_replication/parity_place.hpp"
#include "gpu_replication/received_fetch.hpp"
#include "kernels/digest.hpp"

namespace ckpt::agent {
namespace {

constexpr std::int64_t receive_timeout_ms = 2'000;  // without anything that arrives

// The replication may end while the fetch waits for it. `Fetch`: ReceivedFetch, or a RunningFetch of the coding source.
template <class Fetch>
class GpuFetch : public RunningFetch {
 public:
  GpuFetch(ReplicationManager& replications, const core::StartFetch& order, std::shared_ptr<Fetch> fetch)
      : replications_(replications), piece_(order.piece), source_(order.source), fetch_(std::move(fetch)) {}

  void cancel() override { fetch_->cancel(); }
  void look() override {
    if (replications_.place_of(piece_, source_))
      fetch_->look();
    else
      fetch_->stop_waiting();
  }

 private:
  ReplicationManager& replications_;
  const core::PieceInfo piece_;
  const core::NodeId source_;
  const std::shared_ptr<Fetch> fetch_;
};

// Parity of one checkpoint in a place of a receive buffer, where the trainer's GPU makes it.
class ParityInPlace : public MadeParity {
 public:
  ParityInPlace(ReplicationManager::Place place, CheckpointId checkpoint, const schedule::ParityPlace& parity)
      : place_(std::move(place)), checkpoint_(checkpoint), parity_(parity) {}

  std::size_t leaves() const override {
    return std::min(place_.receive_buffer->received(place_.number, checkpoint_), parity_.parity_bytes()) /
           kernels::leaf_size_bytes;
  }
  Leaf copy(std::size_t leaf, std::byte* to) const override {
    const std::span<const std::byte> bytes = place_.receive_buffer->bytes(place_.number);
    std::vector<std::uint64_t> digests(parity_.digests_per_leaf());
    std::memcpy(digests.data(), bytes.data() + parity_.digests_at(leaf), digests.size() * sizeof(digests[0]));
    std::memcpy(to, bytes.data() + leaf * kernels::leaf_size_bytes, kernels::leaf_size_bytes);
    const std::uint64_t digest = digests.back();
    digests.pop_back();
    return {std::move(digests), digest};
  }

 private:
  const ReplicationManager::Place place_;
  const CheckpointId checkpoint_;
  const schedule::ParityPlace parity_;
};

void end(const FetchRequest& request, ReceivedFetch::Outcome received) {
  FetchOutcome outcome;
  outcome.result = received.result;
  outcome.gpu_received_bytes = received.gpu_received_bytes;
  if (received.manifest) outcome.network_bytes = received.manifest->length_bytes - received.gpu_received_bytes;
  outcome.manifest = std::move(received.manifest);
  if (received.result == core::FetchResult::corrupt)
    request.damaged({request.order.source, request.order.piece.shard}, false);
  request.done(std::move(outcome));
}

}  // namespace

std::shared_ptr<RunningFetch> GpuSource::start(const FetchRequest& request) {
  const core::StartFetch& order = request.order;
  if (order.source == core::storage_node) return nullptr;
  replications_.fetching(order.piece, order.source);
  const auto place = replications_.place_to_wait_for(order.piece, order.source);
  if (!place || request.urgent) return nullptr;
  if (order.source == core::parity_node) return start_parity(request, *place);
  auto done = [request, &queue = queue_](ReceivedFetch::Outcome outcome) {
    queue.post([request, outcome = std::move(outcome)]() mutable { end(request, std::move(outcome)); });
  };
  const auto received = std::make_shared<ReceivedFetch>(
      request.destination, ReceivedFetch::Order{order.source, false, request.timeout_ms, receive_timeout_ms},
      place->receive_buffer, place->number, pool_, transport_, std::move(done));
  received->start();
  return std::make_shared<GpuFetch<ReceivedFetch>>(replications_, order, received);
}

std::shared_ptr<RunningFetch> GpuSource::start_parity(const FetchRequest& request,
                                                      const ReplicationManager::Place& place) {
  const core::ParityManifest& parity_manifest = request.order.piece.parity_manifest;
  const schedule::ParityPlace parity(core::layout_of(parity_manifest), parity_manifest.member);
  auto encoding =
      coding_.start(request, std::make_shared<const ParityInPlace>(place, request.order.piece.checkpoint, parity));
  return std::make_shared<GpuFetch<RunningFetch>>(replications_, request.order, std::move(encoding));
}

void GpuSource::ended(const core::StartFetch& order, const FetchOutcome& outcome) {
  if (outcome.result == core::FetchResult::complete)
    replications_.brought(order.piece, order.source, outcome.gpu_received_bytes);
  replications_.fetched(order.piece, order.source);
}

}  // namespace ckpt::agent
