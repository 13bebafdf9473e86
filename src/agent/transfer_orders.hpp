// TransferOrders carries out the orders of the protocol's core that get pieces for this node or write pieces to
// storage. If an order fails, it tells the core. Only the agent's core thread uses it.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "agent/event_log.hpp"
#include "agent/local_pieces.hpp"
#include "agent/peers.hpp"
#include "agent/pieces/chunk_buffers.hpp"
#include "agent/pieces/segments.hpp"
#include "agent/space_forecast.hpp"
#include "agent/transfers/fetches.hpp"
#include "agent/transfers/peer_source.hpp"
#include "agent/transfers/recompute_source.hpp"
#include "agent/transfers/storage_tier.hpp"
#include "agent/transfers/transport_port.hpp"
#include "core/node.hpp"
#include "gpu_replication/replication_manager.hpp"
#include "options/options.hpp"

namespace ckpt::agent {

class TrainerManager;

class TransferOrders {
 public:
  // What TransferOrders uses. All of it outlives the object.
  struct Dependencies {
    const Options& options;
    const std::vector<persist::CheckpointSourceFactory>& checkpoint_sources;  // see AgentSetup::sources
    const std::string& directory;                                             // of the arena
    Segments& segments;
    PieceIndex& index;
    ArrivingPieces& arriving;
    WorkerPool& digests;
    ChunkBuffers& buffers;
    CoreQueue& queue;
    Peers& peers;
    LocalPieces& pieces;
    const SpaceForecast& space;
    TrainerManager& trainers;
    EventLog& event_log;
    const core::Node& core;
    EventSink& events;
  };
  // Throws Failure (CKPT_ERR_INVALID) for an invalid location of storage.
  explicit TransferOrders(const Dependencies& dependencies);

  // Call this before the first order. `transport` must live until close().
  void use(net::Transport& transport);
  // Cancels all fetches. When it returns, nothing uses the transport any more.
  void close();

  void carry_out(const core::StartFetch& fetch);
  void carry_out(const core::CancelFetch& cancel) { fetches_.cancel(cancel.fetch); }
  void carry_out(const core::NotifyReplicationGroup& notify) { replications_.notify(notify); }
  void carry_out(const core::ListStorage&) { storage_->list(); }
  void carry_out(const core::StartWrite& write) { storage_->write(write); }
  void carry_out(const core::FinalizeCheckpoint& commit) { storage_->commit(commit); }

  // Tell the core that carry_out() threw an exception for this order. `why` is the exception's text.
  void failed(const core::StartFetch& fetch, const std::string& why);
  void failed(const core::ListStorage& list, const std::string& why);
  void failed(const core::StartWrite& write, const std::string& why);
  void failed(const core::FinalizeCheckpoint& commit, const std::string& why);

  ReplicationManager& replications() { return replications_; }
  const ReplicationManager& replications() const { return replications_; }
  const Fetches& fetches() const { return fetches_; }
  const RecomputeCounters& recompute_counters() const { return recompute_counters_; }
  const StorageTier* storage() const { return storage_ ? &*storage_ : nullptr; }  // null if there is none

 private:
  void fetch_ended(core::FetchEnded ended);

  const Dependencies deps_;
  std::shared_ptr<TransportPort> transport_;
  std::optional<StorageTier> storage_;
  ReplicationManager replications_;
  RecomputeCounters recompute_counters_;
  Fetches fetches_;
};

}  // namespace ckpt::agent
