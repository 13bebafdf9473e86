// Receives a fetched piece into a slot of this node. It seals the slot only if every leaf matches its digest.
//
// The transport's thread calls begin(), received() and ended(). The digest threads verify each leaf as soon as all of
// its bytes are there. `done` runs exactly once, on one of these threads, when neither transfer nor verification
// touches the slot any more.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "agent/pieces/worker_pool.hpp"
#include "arena/segment.hpp"
#include "core/events.hpp"
#include "net/transport.hpp"

namespace ckpt::agent {

class FetchSink : public net::Sink, public std::enable_shared_from_this<FetchSink> {
 public:
  // If `result` is complete, the piece is sealed in the slot with this manifest.
  using Done = std::function<void(core::FetchResult result, std::optional<arena::Manifest> manifest)>;

  // `expected`: the piece that must arrive. `pool` outlives the sink.
  FetchSink(std::shared_ptr<arena::Segment> segment, std::uint8_t slot, core::PieceInfo expected, WorkerPool& pool,
            Done done);

  // [any thread] The slot stays unsealed, whatever else arrives.
  void cancel();

  std::optional<std::span<std::byte>> begin(std::span<const std::byte> manifest, std::size_t data_bytes) override;
  void received(std::size_t offset_bytes, std::size_t size_bytes) override;
  void ended(net::FetchEnd end) override;
  std::size_t backlog() const override;
  bool wanted() const override;

 private:
  bool accept(std::span<const std::byte> manifest, std::size_t data_bytes);
  void submit(std::size_t first_leaf, std::size_t last_leaf);
  void verify(std::size_t first_leaf, std::size_t last_leaf);
  void finish_if_over();

  const std::shared_ptr<arena::Segment> segment_;
  arena::WritableSlot slot_;
  const core::PieceInfo expected_;
  WorkerPool& pool_;
  const Done done_;
  arena::Manifest manifest_;               // written in begin(), constant afterwards
  std::vector<std::uint32_t> leaf_bytes_;  // received so far, by leaf; transport's thread only
  std::size_t whole_leaves_ = 0;           // transport's thread only

  mutable std::mutex mutex_;
  std::size_t verifying_ = 0;
  std::optional<net::FetchEnd> end_;
  bool corrupt_ = false;
  bool cancelled_ = false;
  bool over_ = false;
};

}  // namespace ckpt::agent
