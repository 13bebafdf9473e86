// All connections of this node: who is known, who is connected, who has proven to be whom.
//
// Towards each peer there is at most one outgoing link, made when it is first needed and made again after it broke: by
// a dial to the peer's listener, and a hello on the connection that comes of it, which proves that the dial was ours.
// Incoming links are the peers' outgoing ones; they only carry what the peer asks and our answers.
//
// Not thread-safe: everything on the transport's thread.
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
  // Dials the listener of a peer for a link, and calls on_dialed() when that is over.
  using Dial = std::function<void(const std::shared_ptr<Link>&, const std::string& address)>;

  // `on_down` hears of every link before it is closed; operations on it may still be in flight. `backend` and
  // `pending_connections` outlive this.
  Links(LinkBackend& backend, const TransportOptions& options, PendingConnections& pending_connections, Dial dial,
        OnDown on_down);

  void set_peer(PeerId peer, std::uint64_t instance, const std::string& address);
  // The link to ask `peer` things, made if need be; null for an unknown peer.
  std::shared_ptr<Link> to(PeerId peer);
  void on_dialed(const std::shared_ptr<Link>& link, const Listener::DialResult& result);
  bool has_room() const;
  void joined(const std::shared_ptr<Link>& link) { open_.insert(link); }
  void hello(const std::shared_ptr<Link>& link, const Arrival& arrival);

  // Closes what has failed and forgets what is over.
  void sweep();
  // Fails what makes no progress; to be called every few milliseconds.
  void tick();

  void retire_all();
  // Nothing of any link is under way.
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
  std::unordered_set<std::shared_ptr<Link>> visiting_;  // outgoing ones that are not open yet
  std::unordered_set<std::shared_ptr<Link>> open_;
  std::list<Closing> closing_;
};

}  // namespace ckpt::net
