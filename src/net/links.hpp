// Links keeps this node's links to all peers. It makes a link when one is needed, and closes a link that has failed.
//
// There is at most one outgoing link to each peer. It carries this node's requests and the peer's answers. To make it,
// this node dials the peer's listener. The hello on the resulting connection proves that this node is the one that
// dialed. A peer makes a link to this node in the same way: an incoming link, which carries the peer's requests and
// this node's answers.
//
// Not thread-safe: only the transport's thread uses it.
#pragma once

#include <functional>
#include <list>
#include <memory>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "net/link_backend.hpp"
#include "net/listener.hpp"

namespace ckpt::net {

class Links {
 public:
  using OnDown = std::function<void(const std::shared_ptr<Link>&)>;
  // Dials the peer's listener at `address` for a link, and later calls on_dialed() with the result.
  using Dial = std::function<void(const std::shared_ptr<Link>&, const std::string& address)>;

  // `on_down` is called for every link before the link is closed. Operations on the link may still be under way then.
  // `backend`, `options` and `pending_connections` must outlive this object.
  Links(LinkBackend& backend, const TransportOptions& options, PendingConnections& pending_connections, Dial dial,
        OnDown on_down);

  // Sets where a peer is reached: at its listener's `address`, if its arena has the id `instance`. A later call
  // replaces both. If that changes one of them, drops the links that used the old value.
  void set_peer(PeerId peer, std::uint64_t instance, const std::string& address);
  // Returns the outgoing link to `peer`, and makes it if needed. Null if set_peer() was not called for this peer.
  std::shared_ptr<Link> to(PeerId peer);
  void on_dialed(const std::shared_ptr<Link>& link, const Listener::DialResult& result);
  bool has_room() const;
  void joined(const std::shared_ptr<Link>& link) { open_.insert(link); }
  void hello(const std::shared_ptr<Link>& link, const Arrival& arrival);

  // Closes failed links, and forgets closed links whose operations have ended.
  void sweep();
  // Fails links that make no progress. Call it every few milliseconds.
  void tick();

  void retire_all();
  // True if there is no link any more.
  bool idle() const { return visiting_.empty() && open_.empty() && closing_.empty(); }
  void end_operations();

 private:
  struct Peer {
    std::uint64_t instance = 0;
    std::string address;
    std::shared_ptr<Link> outgoing;
  };
  struct Closing {
    std::shared_ptr<Link> link;
    std::int64_t closed_at_ms = 0;
  };
  wire::Hello hello_to(PeerId peer, std::uint64_t instance) const;
  void check_in_time(Link& link) const;
  std::vector<std::shared_ptr<Link>> failed() const;
  std::optional<Session> trusted(const Link& link, const wire::Hello& hello);

  LinkBackend& backend_;
  const TransportOptions& options_;
  const std::uint64_t job_hash_;
  PendingConnections& pending_connections_;
  const Dial visit_;
  const OnDown on_down_;
  std::unordered_map<PeerId, Peer> peers_;
  std::unordered_set<std::shared_ptr<Link>> visiting_;  // outgoing links that are not open yet
  std::unordered_set<std::shared_ptr<Link>> open_;
  std::list<Closing> closing_;
};

}  // namespace ckpt::net
