// The giving side of fetches: pieces that peers asked for, sent in chunks, a few at a time.
//
// At most serves_max requests are served at once; further ones wait (the asker is told) up to a limit, then are
// refused. A piece stays pinned until UCX has handed back every chunk of it, also when the asker cancelled or vanished.
//
// Not thread-safe: everything on the transport's thread.
#pragma once

#include <cstdint>
#include <deque>
#include <list>
#include <memory>

#include "net/link.hpp"

namespace ckpt::net {

class Serving {
 public:
  Serving(const TransportOptions& options, Transport::OnServe serve) : options_(options), serve_(std::move(serve)) {}

  void requested(const std::shared_ptr<Link>& link, Arrival& arrival);
  void accepted(const std::shared_ptr<Link>& link, const Arrival& arrival);
  void cancelled(const std::shared_ptr<Link>& link, const Arrival& arrival);
  void link_down(const std::shared_ptr<Link>& link);
  // Starts what waits and sends what may be sent.
  void pump();
  void tick();

 private:
  struct Serve;
  using ServePtr = std::shared_ptr<Serve>;

  ServePtr find(const std::shared_ptr<Link>& link, const Arrival& arrival) const;
  void enqueue(const std::shared_ptr<Link>& link, const wire::FetchRequest& request, std::span<const std::byte> name);
  void answer(const Serve& serve, wire::Status status);
  void open(const ServePtr& serve);
  void send_chunk(const ServePtr& serve);

  const TransportOptions& options_;
  const Transport::OnServe serve_;
  std::list<ServePtr> active_;
  std::deque<ServePtr> waiting_;
};

}  // namespace ckpt::net
