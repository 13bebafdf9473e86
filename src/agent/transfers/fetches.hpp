// Fetches runs the fetches that the protocol's core orders for this node, from StartFetch to FetchEnded. It makes room
// for the piece, and hands the fetch to the first replica source that accepts the order (replica_source.hpp). Only the
// agent's core thread uses it.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "agent/pieces/segments.hpp"
#include "agent/transfers/replica_source.hpp"
#include "core/events.hpp"

namespace ckpt::agent {

// How many bytes this node received and computed. Manifests are not counted.
struct TransferCounters {
  std::uint64_t received_bytes = 0;  // from other nodes, as pieces and as inputs of coding; not those from GPU to GPU
  std::uint64_t coded_bytes = 0;     // of parity encoded here and pieces decoded here
};

class Fetches {
 public:
  // What Fetches calls, on the core thread. `began`: a source writes to the fetch's slot from now on. `ended`: a fetch
  // has ended; if it is complete, the piece is in the index already. `notice`: a sentence for people. `damaged`: see
  // FetchRequest.
  struct Callbacks {
    std::function<void(core::FetchEnded ended)> ended;
    std::function<void(const std::string& text)> notice;
    std::function<void(const PieceRef& piece, CheckpointId checkpoint, bool is_wrong)> damaged;
    std::function<void(const core::StartFetch& fetch)> began;
  };

  // Both references outlive this object.
  Fetches(Segments& segments, PieceIndex& index, Callbacks callbacks);

  // Call this before start(). A fetch is offered to the sources in this order.
  void use(std::vector<std::unique_ptr<ReplicaSource>> sources) { sources_ = std::move(sources); }

  // `urgent`: the fetch does not wait until training leaves the network idle.
  void start(const core::StartFetch& fetch, bool urgent);
  // Ends the fetch as failed, because start() has thrown an exception.
  void give_up(const core::StartFetch& order);
  void cancel(std::uint64_t fetch);
  void cancel_all();
  // Call this when bytes may have arrived from GPU to GPU, or when it is known that no more will.
  void look();

  bool writes_into(const SegmentKey& key) const;
  bool writes_into(const core::SlotRef& slot) const;
  const TransferCounters& transfer_counters() const { return transfer_counters_; }

 private:
  struct Fetch {
    core::StartFetch order;
    bool urgent = false;
    bool cancelled = false;
    bool writes = false;                         // a source writes to its slot
    std::shared_ptr<RunningFetch> running = {};  // null until a source has taken it
  };

  void transfer(std::uint64_t fetch, const std::optional<Failure>& failure);
  FetchRequest request_for(const Fetch& fetch, std::shared_ptr<arena::Segment> segment);
  void end(std::uint64_t fetch, FetchOutcome outcome);

  Segments& segments_;
  PieceIndex& index_;
  const Callbacks callbacks_;
  std::vector<std::unique_ptr<ReplicaSource>> sources_;
  std::map<std::uint64_t, Fetch> fetches_;
  TransferCounters transfer_counters_;
};

}  // namespace ckpt::agent
