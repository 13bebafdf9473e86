// Listener makes the first contact between nodes. It listens on this agent's TCP port, and dials the listeners of other
// agents. Both sides prove that they have the job's token (handshake.hpp). With TCP, the same connection then carries
// the data. With UCX, it ends, and UCX makes its own.
//
// All of this happens on one thread, the listener's, and never blocks. An unauthenticated peer can use up little: one
// entry of a bounded table for at most `timeout_ms`, some hundred bytes, and a limited number of dials per second from
// its address. If the table is full, its oldest entry is dropped.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <thread>

#include "base/unique_fd.hpp"
#include "net/command_queue.hpp"
#include "net/handshake.hpp"
#include "net/pending_connections.hpp"
#include "net/socket_address.hpp"
#include "net/source_limit.hpp"
#include "net/unauthenticated_peers.hpp"

namespace ckpt::net {

struct ListenerOptions {
  SocketAddress listen_on;
  std::int64_t timeout_ms = 3000;   // longest handshake, on both sides
  std::size_t half_open_max = 256;  // connections whose peers have not proven the token yet
  double source_burst = 256;        // dials of one source address that may come at once,
  double source_per_s = 64;         // and per second in the long run
  // Tells the backend that a peer has the job's token, with the address that the peer dialed from. The listener's
  // thread calls it before it tells the peer where to connect for the data. So the backend can let that address in.
  std::function<void(const std::string&)> proven = {};
};

class Listener {
 public:
  // How a dial ended. If there is no session, `end` says why.
  struct DialResult {
    std::optional<Session> session;
    std::string place;  // see Asking::place()
    std::shared_ptr<UniqueFd> connection = std::make_shared<UniqueFd>();
    FetchEnd end = FetchEnd::peer_failed;
    Reach reach = Reach::unreachable;
  };
  using OnDialed = std::function<void(const DialResult&)>;
  using OnMember = std::function<void(UniqueFd)>;

  // A peer that has proven the token learns `place`. The listener enters the peer in `pending_connections`, which must
  // outlive the listener. `member` gets the peer's connection, unless `member` is null. The listener's thread calls
  // `member` and `remark`. Throws Failure (CKPT_ERR_SYSTEM, or CKPT_ERR_INVALID if a token is missing).
  Listener(const Identity& self, const ListenerOptions& options, std::string place,
           PendingConnections& pending_connections, OnMember member, std::function<void(const std::string&)> remark);
  // Ends the dials that are under way, without calling their `done`.
  ~Listener();
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  const std::string& address() const { return address_; }

  // [any thread] Dials the listener at `address`. `done` is called once, on the listener's thread.
  void dial(PeerId peer, std::uint64_t peer_instance, const std::string& address, OnDialed done);

  // [any thread] The peers that the listener rejected because they did not prove the token.
  UnauthenticatedPeers unauthenticated_peers() const { return turned_away_.seen(); }

 private:
  struct Talk;
  struct Dial;

  void run();
  bool wait();
  void accept_all();
  void let_in(UniqueFd visitor, const SocketAddress& from);
  void listen_to_visitors();
  bool begin(Dial& dial);
  void listen_to_hosts();
  void go_on(Dial& dial);
  void complain(const Asking& asking, const std::string& host);
  static Nonce fresh_nonce();

  const Identity self_;
  const ListenerOptions options_;
  const std::string place_;
  PendingConnections& pending_connections_;
  const OnMember member_;
  const std::function<void(const std::string&)> remark_;
  std::string address_;
  UniqueFd listener_;
  CommandQueue commands_;

  // The listener's thread only.
  SourceLimit limit_;
  std::list<Talk> visitors_;  // incoming connections, the oldest first
  std::list<Dial> visits_;
  Clock::time_point accepts_again_at_ = {};
  Clock::time_point complains_again_at_ = {};
  bool stopping_ = false;

  RejectedPeers turned_away_;
  std::thread thread_;
};

}  // namespace ckpt::net
