// The fetches that this node has under way, from StartFetch to FetchEnded. Belongs to the core thread.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <stop_token>
#include <string>

#include "agent/pieces/core_queue.hpp"
#include "agent/pieces/segments.hpp"
#include "agent/transfers/coding_job.hpp"
#include "agent/transfers/fetch_sink.hpp"
#include "agent/transfers/storage_tier.hpp"
#include "core/events.hpp"
#include "gpu_replication/received_fetch.hpp"
#include "gpu_replication/replication_manager.hpp"
#include "net/transport.hpp"

namespace ckpt::agent {

// Bytes of completed fetches and coding jobs, and of the sources that coding jobs read. Manifests are not counted.
struct TransferCounters {
  std::uint64_t received_bytes = 0;  // over the network from other nodes, without what came from GPU to GPU
  std::uint64_t coded_bytes = 0;     // encoded parity and decoded pieces
};

class Fetches {
 public:
  // Called on the core thread when a fetch has ended. A complete piece is in the index already.
  using OnEnded = std::function<void(const core::StartFetch& fetch, core::FetchEnded ended)>;
  using OnNotice = std::function<void(const std::string& text)>;
  // A source of a coding job arrived damaged. With `is_wrong` it matches its digests but does not fit its group.
  using OnDamaged = std::function<void(const CodingJob::PieceRef& source, CheckpointId checkpoint, bool is_wrong)>;
  struct Callbacks {
    OnEnded ended;
    OnNotice notice;
    OnDamaged damaged;
  };

  // All references outlive this object. `index`, `pool`, `buffers` and `queue` also outlive the transport.
  Fetches(core::NodeId node, Segments& segments, PieceIndex& index, WorkerPool& pool, ChunkBuffers& buffers,
          CoreQueue& queue, ReplicationManager& replication, Callbacks callbacks);

  // `storage`: null if there is none. `urgent`: does not wait for an idle network.
  void start(const core::StartFetch& fetch, bool urgent, net::Transport& transport, StorageTier* storage);
  // Reports that the fetch could not be started, unless it has ended already.
  void give_up(const core::StartFetch& order);
  void cancel(std::uint64_t fetch);
  // To be called when bytes may have arrived from GPU to GPU, or when no more will.
  void look();
  // On return nothing uses the transport any more.
  void close();

  bool writes_into(const SegmentKey& key) const;
  bool writes_into(const core::SlotRef& slot) const;
  const TransferCounters& transfer_counters() const { return transfer_counters_; }

 private:
  struct Fetch {
    core::StartFetch order;
    bool urgent = false;
    std::shared_ptr<FetchSink> sink;          // for a transfer from a peer
    std::shared_ptr<ReceivedFetch> received;  // for a piece that comes from GPU to GPU
    std::shared_ptr<CodingJob> coding_job;    // for encoding or decoding
    // Used once one of several parity pieces is known to be wrong:
    std::optional<core::CodingInputs> coding_inputs_of_all;  // with all of the pieces
    std::vector<CodingJob::PieceRef> suspects;               // to be left out one at a time
    std::optional<CodingJob::PieceRef> suspected;            // the one left out now
    std::size_t left_out = 0;                                // how many of its sources were left out
    std::stop_source stop;                                   // stops a read from storage
    bool writes = false;                                     // it writes to its slot
    bool cancelled = false;
  };

  void transfer(std::uint64_t fetch, net::Transport& transport, StorageTier* storage,
                const std::optional<Failure>& failure);
  void take_received(std::uint64_t fetch, const ReplicationManager::Place& place, net::Transport& transport);
  void start_coding_job(std::uint64_t fetch);
  void combined(std::uint64_t fetch, CodingJob::Outcome outcome);
  static bool suspect_another(Fetch& fetch, const std::vector<CodingJob::PieceRef>& suspects);
  static bool is_convicted(const Fetch& fetch);
  void end(std::uint64_t fetch, core::FetchResult result, std::optional<arena::Manifest> manifest,
           const std::string& trouble = {}, std::uint64_t gpu_received_bytes = 0);

  const core::NodeId node_;
  Segments& segments_;
  PieceIndex& index_;
  WorkerPool& pool_;
  ChunkBuffers& buffers_;
  CoreQueue& queue_;
  ReplicationManager& replication_;
  const Callbacks callbacks_;
  std::map<std::uint64_t, Fetch> fetches_;
  std::shared_ptr<TransportPort> port_;  // made at the first use
  TransferCounters transfer_counters_;
};

}  // namespace ckpt::agent
