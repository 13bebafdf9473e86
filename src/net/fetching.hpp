// Fetching is the part of the transport that fetches pieces from peers. It sends the request, receives the manifest,
// and then receives the chunks straight into the memory that the sink names. serving.hpp is the other side.
//
// A fetch goes through these states:
//    asked --answer--> (manifest received) --begin, accept--> receiving --last chunk--> over
// Fetching acknowledges each chunk, so the sender knows which chunks are still under way. The acknowledgement also says
// whether the sink has room for more.
//
// A fetch may fail in any state: time-out, refusal, broken link. Fetching then accepts no new chunk, tells the sender,
// and waits until the receives under way have ended. A single receive cannot be cancelled. If the receives do not end
// within 250 ms, Fetching fails the link, which ends all of them.
//
// Not thread-safe: only the transport's thread uses it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "net/link.hpp"

namespace ckpt::net {

class Fetching {
 public:
  explicit Fetching(const TransportOptions& options) : options_(options) {}

  // Fetches `part` of `piece` over `link` into `sink`. If `link` is null, the peer is unknown, and the fetch ends at
  // once.
  void start(const std::shared_ptr<Link>& link, const PieceName& piece, const FetchPart& part,
             std::shared_ptr<Sink> sink, std::int64_t timeout_ms);
  void answered(const std::shared_ptr<Link>& link, Arrival& arrival);
  void chunk_arrived(const std::shared_ptr<Link>& link, Arrival& arrival);
  void link_down(const std::shared_ptr<Link>& link);
  // If a sink that had no room has room again, tells its source to go on sending.
  void pump();
  // True if a source has stopped sending and waits until it is told that there is room.
  bool owes() const { return owing_ != 0; }
  void tick();
  bool idle() const { return fetches_.empty(); }

 private:
  enum class State { asked, reading_manifest, receiving, ending };
  struct Fetch;
  using FetchPtr = std::shared_ptr<Fetch>;

  FetchPtr find(const std::shared_ptr<Link>& link, std::uint64_t request) const;
  void begin(const FetchPtr& fetch, std::span<const std::byte> manifest);
  void postpone(const FetchPtr& fetch);
  std::int64_t wait_limit_ms(const Fetch& fetch) const;
  void acknowledge(const FetchPtr& fetch, std::size_t offset);
  void receive_finished(const FetchPtr& fetch, std::size_t offset, std::size_t size, bool ok);
  void end(const FetchPtr& fetch, FetchEnd how);
  void over_if_drained(const FetchPtr& fetch);

  const TransportOptions& options_;
  std::uint64_t last_request_ = 0;
  std::unordered_map<std::uint64_t, FetchPtr> fetches_;
  std::size_t owing_ = 0;  // number of fetches whose source waits until there is room
};

}  // namespace ckpt::net
