// The fetches that this node has under way, from StartFetch to FetchEnded. Belongs to the core thread.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <stop_token>
#include <string>

#include "agent/coding_job.hpp"
#include "agent/core_queue.hpp"
#include "agent/fetch_sink.hpp"
#include "agent/received_fetch.hpp"
#include "agent/replication_manager.hpp"
#include "agent/segments.hpp"
#include "agent/storage_tier.hpp"
#include "net/transport.hpp"
#include "protocol/events.hpp"

namespace ckpt::agent {

// Of what was fetched or made to its end, and of what it was made of. Manifests are not counted.
struct TransferCounters {
  std::uint64_t received_bytes = 0;  // from other nodes, but for what arrived
  std::uint64_t coded_bytes = 0;     // by combining: parity, and what was decoded
};

class Fetches {
 public:
  // What follows a fetch's end, on the core thread: the piece, where complete, is in the index already.
  using OnEnded = std::function<void(const protocol::StartFetch& fetch, protocol::FetchEnded ended)>;
  using OnNotice = std::function<void(const std::string& text)>;
  // Of what a piece was to be made of, something came damaged; or it fits its digests and `is_wrong` all the same.
  using OnDamaged = std::function<void(const CodingJob::PieceRef& source, CheckpointId checkpoint, bool is_wrong)>;
  struct Callbacks {
    OnEnded ended;
    OnNotice notice;
    OnDamaged damaged;
  };

  // All references outlive this object; `index`, `pool`, `buffers` and `queue` the transport too.
  Fetches(protocol::NodeId node, Segments& segments, PieceIndex& index, WorkerPool& pool, ChunkBuffers& buffers,
          CoreQueue& queue, ReplicationManager& paths, Callbacks callbacks);

  // `storage`: null where there is none.
  // `urgent`: does not wait for an idle network.
  void start(const protocol::StartFetch& fetch, bool urgent, net::Transport& transport, StorageTier* storage);
  // It could not be started: tells so, unless it has ended already.
  void give_up(const protocol::StartFetch& order);
  void cancel(std::uint64_t fetch);
  // Something may have arrived, or will not any more.
  void look();
  // Nothing uses the transport any more.
  void close();

  bool writes_into(const SegmentKey& key) const;
  bool writes_into(const protocol::SlotRef& slot) const;
  const TransferCounters& transfer_counters() const { return transfer_counters_; }

 private:
  struct Fetch {
    protocol::StartFetch order;
    bool urgent = false;
    std::shared_ptr<FetchSink> sink;          // of a transfer from a peer
    std::shared_ptr<ReceivedFetch> received;  // of what comes from GPU to GPU
    std::shared_ptr<CodingJob> coding_job;    // of what is made out of other pieces
    // Once one of several parity pieces is known to be wrong:
    std::optional<protocol::CodingInputs> coding_inputs_of_all;  // with all of them
    std::vector<CodingJob::PieceRef> suspects;                   // to be done without, each in its turn
    std::optional<CodingJob::PieceRef> suspected;                // that is done without now
    std::size_t left_out = 0;                                    // sources of it
    std::stop_source stop;                                       // of a read from storage
    bool writes = false;                                         // into its slot
    bool cancelled = false;
  };

  void transfer(std::uint64_t fetch, net::Transport& transport, StorageTier* storage,
                const std::optional<Failure>& failure);
  void take_received(std::uint64_t fetch, const ReplicationManager::Place& place, net::Transport& transport);
  void start_coding_job(std::uint64_t fetch);
  void combined(std::uint64_t fetch, CodingJob::Outcome outcome);
  static bool suspect_another(Fetch& fetch, const std::vector<CodingJob::PieceRef>& suspects);
  static bool is_convicted(const Fetch& fetch);
  void end(std::uint64_t fetch, protocol::FetchResult result, std::optional<arena::Manifest> manifest,
           const std::string& trouble = {}, std::uint64_t gpu_received_bytes = 0);

  const protocol::NodeId node_;
  Segments& segments_;
  PieceIndex& index_;
  WorkerPool& pool_;
  ChunkBuffers& buffers_;
  CoreQueue& queue_;
  ReplicationManager& paths_;
  const Callbacks callbacks_;
  std::map<std::uint64_t, Fetch> fetches_;
  std::shared_ptr<TransportPort> port_;  // once there was a use for it
  TransferCounters transfer_counters_;
};

}  // namespace ckpt::agent
