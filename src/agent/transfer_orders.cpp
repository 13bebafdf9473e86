#include "agent/transfer_orders.hpp"

#include <utility>

#include "agent/trainers/trainer_manager.hpp"

namespace ckpt::agent {

TransferOrders::TransferOrders(const Dependencies& deps)
    : deps_(deps),
      replications_({deps.directory, deps.segments, deps.queue,
                     [this](core::NodeId to, const core::ReplicationUpdate& update) { deps_.peers.send(to, update); },
                     [this](core::Rank rank) { deps_.trainers.ring(rank); }, [this] { fetches_.look(); },
                     [this](const std::string& text) { deps_.event_log.note(text); },
                     [this](std::uint64_t piece_bytes) { return deps_.space.bytes_to_come(piece_bytes); }}),
      fetches_(deps.peers.own_node(), deps.segments, deps.index, deps.digests, deps.buffers, deps.queue, replications_,
               {[this](const core::StartFetch& fetch, core::FetchEnded ended) { fetch_ended(fetch, std::move(ended)); },
                [this](const std::string& text) { deps_.event_log.note(text); },
                [this](const CodingJob::PieceRef& source, CheckpointId checkpoint, bool is_wrong) {
                  deps_.pieces.source_damaged(source.shard, checkpoint, source.node, is_wrong);
                }}) {
  if (deps.options.storage.empty() && deps.checkpoint_sources.empty()) return;
  storage_.emplace(
      deps.options, deps.checkpoint_sources, deps.index, deps.queue,
      [this](core::Event event) { deps_.events.handle(std::move(event)); },
      [this](const std::string& text) { deps_.event_log.note(text); });
}

void TransferOrders::carry_out(const core::StartFetch& fetch) {
  ++deps_.event_log.counters.fetches;
  // Pieces of an earlier incarnation: a restore waits for them, or they protect the job until this incarnation's first
  // commit.
  const bool urgent = fetch.piece.checkpoint.incarnation() != deps_.core.status().incarnation;
  fetches_.start(fetch, urgent, *transport_, storage_ ? &*storage_ : nullptr);
}

void TransferOrders::fetch_ended(const core::StartFetch& fetch, core::FetchEnded ended) {
  if (ended.result != core::FetchResult::complete) ++deps_.event_log.counters.failed_fetches;
  const bool is_of_a_node = fetch.source != core::storage_node && fetch.source != core::parity_node;
  if (ended.result == core::FetchResult::corrupt && is_of_a_node)
    deps_.pieces.source_damaged(fetch.piece.shard, fetch.piece.checkpoint, fetch.source, false);
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
