// The fetches that this node has under way, from StartFetch to FetchEnded. Belongs to the core thread.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <stop_token>
#include <string>

#include "agent/core_queue.hpp"
#include "agent/fetch_sink.hpp"
#include "agent/segments.hpp"
#include "agent/storage_tier.hpp"
#include "net/transport.hpp"
#include "protocol/events.hpp"

namespace ckpt::agent {

class Fetches {
 public:
  // What follows a fetch's end, on the core thread: the piece, where complete, is in the index already. `trouble`: of a
  // read from storage that failed.
  using OnEnded =
      std::function<void(const protocol::StartFetch& fetch, protocol::FetchResult result, const std::string& trouble)>;
  using OnNotice = std::function<void(const std::string& text)>;

  // All references outlive this object, and `pool` and `queue` the transport.
  Fetches(Segments& segments, PieceIndex& index, WorkerPool& pool, CoreQueue& queue, OnEnded on_ended,
          OnNotice on_notice);

  // `storage`: null where there is none.
  void start(const protocol::StartFetch& fetch, net::Transport& transport, StorageTier* storage);
  void cancel(std::uint64_t fetch);

  bool writes_into(const SegmentKey& key) const;
  bool writes_into(const protocol::SlotRef& slot) const;

 private:
  struct Fetch {
    protocol::StartFetch order;
    std::shared_ptr<FetchSink> sink;  // of a transfer from a peer
    std::stop_source stop;            // of a read from storage
    bool writes = false;              // into its slot
    bool cancelled = false;
  };

  void transfer(std::uint64_t fetch, net::Transport& transport, StorageTier* storage,
                const std::optional<Failure>& failure);
  void end(std::uint64_t fetch, protocol::FetchResult result, std::optional<arena::Manifest> manifest,
           const std::string& trouble = {});

  Segments& segments_;
  PieceIndex& index_;
  WorkerPool& pool_;
  CoreQueue& queue_;
  const OnEnded on_ended_;
  const OnNotice on_notice_;
  std::map<std::uint64_t, Fetch> fetches_;
};

}  // namespace ckpt::agent
