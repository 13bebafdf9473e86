#include "agent/transfer_orders.hpp"

#include <utility>

#include "agent/trainers/trainer_manager.hpp"
#include "agent/transfers/coding_source.hpp"
#include "agent/transfers/storage_reader.hpp"
#include "gpu_replication/gpu_source.hpp"

namespace ckpt::agent {

TransferOrders::TransferOrders(const Dependencies& deps)
    : deps_(deps),
      replications_({deps.directory, deps.segments, deps.queue,
                     [this](core::NodeId to, const core::ReplicationUpdate& update) { deps_.peers.send(to, update); },
                     [this](core::Rank rank) { deps_.trainers.ring(rank); }, [this] { fetches_.look(); },
                     [this](const std::string& text) { deps_.event_log.note(text); },
                     [this](std::uint64_t piece_bytes) { return deps_.space.bytes_to_come(piece_bytes); }}),
      fetches_(deps.segments, deps.index,
               {[this](core::FetchEnded ended) { fetch_ended(std::move(ended)); },
                [this](const std::string& text) { deps_.event_log.note(text); },
                [this](const PieceRef& piece, CheckpointId checkpoint, bool is_wrong) {
                  deps_.pieces.source_damaged(piece.shard, checkpoint, piece.node, is_wrong);
                },
                [this](const core::StartFetch& fetch) { deps_.trainers.fetch_began(fetch); }}) {
  if (deps.options.storage.empty() && deps.checkpoint_sources.empty()) return;
  storage_.emplace(
      deps.options, deps.checkpoint_sources, deps.index, deps.queue,
      [this](core::Event event) { deps_.events.handle(std::move(event)); },
      [this](const std::string& text) { deps_.event_log.note(text); });
}

// A further source joins this list. GPU replication and repeated updates save the transfer from a peer, so they come
// before that. Parity that a GPU makes saves encoding, so GPU replication comes before coding, too.
void TransferOrders::use(net::Transport& transport) {
  transport_ = std::make_shared<TransportPort>(transport);
  std::vector<std::unique_ptr<ReplicaSource>> sources;
  sources.push_back(std::make_unique<StorageReader>(storage_ ? &*storage_ : nullptr, deps_.queue));
  auto coding = std::make_unique<CodingSource>(
      CodingJob::Dependencies{deps_.peers.own_node(), deps_.index, deps_.digests, deps_.buffers, transport_},
      deps_.queue);
  sources.push_back(std::make_unique<GpuSource>(replications_, deps_.digests, deps_.queue, transport_, *coding));
  sources.push_back(std::move(coding));
  auto peer = std::make_unique<PeerSource>(deps_.digests, deps_.queue, transport_, deps_.index, deps_.arriving);
  if (deps_.options.recomputes()) {
    sources.push_back(std::make_unique<RecomputeSource>(
        RecomputeSource::Dependencies{deps_.digests, deps_.queue, transport_, deps_.index, *peer, recompute_counters_,
                                      [this](const std::string& text) { deps_.event_log.note(text); }}));
  }
  sources.push_back(std::move(peer));
  fetches_.use(std::move(sources));
}

void TransferOrders::close() {
  fetches_.cancel_all();
  if (transport_ != nullptr) transport_->close();
}

void TransferOrders::carry_out(const core::StartFetch& fetch) {
  ++deps_.event_log.counters.fetches;
  // Pieces of an earlier incarnation: a restore waits for them, or they protect the job until this incarnation's first
  // commit.
  const bool urgent = fetch.piece.checkpoint.incarnation() != deps_.core.status().incarnation;
  fetches_.start(fetch, urgent);
}

void TransferOrders::fetch_ended(core::FetchEnded ended) {
  if (ended.result != core::FetchResult::complete) ++deps_.event_log.counters.failed_fetches;
  deps_.trainers.fetch_ended(ended.fetch);
  deps_.events.handle(std::move(ended));
}

void TransferOrders::failed(const core::StartFetch& fetch, const std::string&) { fetches_.give_up(fetch); }

void TransferOrders::failed(const core::ListStorage&, const std::string& why) {
  core::StorageListed nothing;
  nothing.knows_incarnations = false;
  nothing.trouble = why;
  deps_.events.handle(std::move(nothing));
}

void TransferOrders::failed(const core::StartWrite& write, const std::string& why) {
  deps_.events.handle(core::WriteEnded{write.checkpoint, why});
}

void TransferOrders::failed(const core::FinalizeCheckpoint& commit, const std::string& why) {
  deps_.events.handle(core::FinalizeEnded{commit.checkpoint, why});
}

}  // namespace ckpt::agent
