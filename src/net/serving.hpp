// Serving is the part of the transport that sends pieces to the peers that ask for them. It sends each piece in chunks,
// a few at a time. fetching.hpp is the other side.
//
// Serving serves at most 8 ordinary and 8 urgent requests at once. Further requests wait, and Serving tells the asking
// peers so. If 1024 requests wait, it refuses new ones. The pacer decides when a chunk leaves. A chunk is under way
// until its receiver has acknowledged it. While chunks wait for the pacer, Serving sends the asking peer a sign of life
// now and then. A piece stays pinned until the sends of all its chunks have ended, even if that peer is gone.
//
// Serving also sends pieces that this node still receives: each chunk as soon as all of its bytes are ready. If no more
// bytes will come, it tells the asking peer so. An urgent request for a whole piece that is not here waits up to 1 s
// for the piece to begin to arrive, because the leader tells two nodes at the same time to fetch it, one from the
// other. Serving answers all other requests for missing pieces at once: not there.
//
// Not thread-safe: only the transport's thread uses it.
#pragma once

#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <optional>

#include "net/chunk_pacer.hpp"
#include "net/link.hpp"

namespace ckpt::net {

class Serving {
 public:
  // If `pacer` is null, chunks leave as soon as they can.
  Serving(const TransportOptions& options, Transport::OnServe serve, ChunkPacer* pacer)
      : options_(options), serve_(std::move(serve)), pacer_(pacer) {}

  void requested(const std::shared_ptr<Link>& link, Arrival& arrival);
  void accepted(const std::shared_ptr<Link>& link, const Arrival& arrival);
  void cancelled(const std::shared_ptr<Link>& link, const Arrival& arrival);
  void received(const std::shared_ptr<Link>& link, const Arrival& arrival);
  void has_room(const std::shared_ptr<Link>& link, const Arrival& arrival);
  void link_down(const std::shared_ptr<Link>& link);
  // Starts the requests that wait, and sends the chunks that may be sent now.
  void pump();
  // Returns after how many microseconds to call pump() again because a chunk waits for the pacer alone, or nothing if
  // no chunk does.
  std::optional<std::int64_t> ask_again_us() const;
  // True if a request waits for bytes that this node still receives. Nothing wakes the thread when they are ready.
  bool awaits_bytes() const { return awaits_bytes_; }
  void tick();

 private:
  struct Serve;
  using ServePtr = std::shared_ptr<Serve>;

  ServePtr find(const std::shared_ptr<Link>& link, const Arrival& arrival) const;
  ServePtr take_waiting();
  void enqueue(const std::shared_ptr<Link>& link, const wire::FetchRequest& request, std::span<const std::byte> name);
  void answer(const Serve& serve, wire::Status status);
  bool open(const ServePtr& serve);
  void open_all();
  void follow_arrival(Serve& serve);
  std::size_t allowed_bytes(const Serve& serve);
  void send_chunk(const ServePtr& serve, std::size_t size_bytes);

  const TransportOptions& options_;
  const Transport::OnServe serve_;
  ChunkPacer* const pacer_;
  std::size_t under_way_ = 0;  // chunks of all serves
  bool held_ = false;
  bool awaits_bytes_ = false;
  std::list<ServePtr> active_;
  std::deque<ServePtr> waiting_;
};

}  // namespace ckpt::net
