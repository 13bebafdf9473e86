#include "gpu_replication/gpu_source.hpp"

#include <utility>

#include "gpu_replication/received_fetch.hpp"

namespace ckpt::agent {
namespace {

constexpr std::int64_t receive_timeout_ms = 2'000;  // without anything that arrives

// The replication may end while the fetch waits for it.
class GpuFetch : public RunningFetch {
 public:
  GpuFetch(ReplicationManager& replications, const core::StartFetch& order, std::shared_ptr<ReceivedFetch> received)
      : replications_(replications), piece_(order.piece), source_(order.source), received_(std::move(received)) {}

  void cancel() override { received_->cancel(); }
  void look() override {
    if (replications_.place_of(piece_, source_))
      received_->look();
    else
      received_->stop_waiting();
  }

 private:
  ReplicationManager& replications_;
  const core::PieceInfo piece_;
  const core::NodeId source_;
  const std::shared_ptr<ReceivedFetch> received_;
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
  if (!is_node(order.source)) return nullptr;
  replications_.fetching(order.piece, order.source);
  const auto place = replications_.place_to_wait_for(order.piece, order.source);
  if (!place || request.urgent) return nullptr;
  auto done = [request, &queue = queue_](ReceivedFetch::Outcome outcome) {
    queue.post([request, outcome = std::move(outcome)]() mutable { end(request, std::move(outcome)); });
  };
  const auto received = std::make_shared<ReceivedFetch>(
      request.destination, ReceivedFetch::Order{order.source, false, request.timeout_ms, receive_timeout_ms},
      place->receive_buffer, place->number, pool_, transport_, std::move(done));
  received->start();
  return std::make_shared<GpuFetch>(replications_, order, received);
}

void GpuSource::ended(const core::StartFetch& order, const FetchOutcome& outcome) {
  if (outcome.result == core::FetchResult::complete)
    replications_.brought(order.piece, order.source, outcome.gpu_received_bytes);
  replications_.fetched(order.piece, order.source);
}

}  // namespace ckpt::agent
