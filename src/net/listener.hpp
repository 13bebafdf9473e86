// Listener makes the first contact between nodes. It listens on this agent's TCP port, and dials the listeners of other
// agents. Both sides prove that they have the job's token (handshake.hpp). With TCP, the same connection then carries
// the data. With UCX, this connection ends, and UCX makes another one.
//
// All of this happens on one thread, the listener's, and never blocks. An unauthenticated peer can use only little: one
// entry of a bounded table for at most `timeout_ms`, some hundred bytes, and a limited number of connections per second
// from its address. If the table is full, the listener drops the oldest entry.
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
  std::int64_t timeout_ms = 3000;   // longest handshake, for incoming connections and for dials
  std::size_t half_open_max = 256;  // most incoming connections whose peers have not proven the token yet
  double source_burst = 256;        // most connections that one source address may make at once
  double source_per_s = 64;         // most connections per second of one source address, in the long run
  // The listener's thread calls this with a peer's address when the peer has proven the job's token. Only afterwards it
  // tells the peer the place to connect to. So the backend can let this address in first.
  std::function<void(const std::string&)> proven = {};
};

class Listener {
 public:
  // How a dial ended.
  struct DialResult {
    std::optional<Session> session;                                       // nothing: the dial failed
    std::string place;                                                    // see Asking::place()
    std::shared_ptr<UniqueFd> connection = std::make_shared<UniqueFd>();  // set if there is a session
    FetchEnd end = FetchEnd::peer_failed;                                 // why there is no session
    Reach reach = Reach::unreachable;                                     // what the dial found at the address
  };
  using OnDialed = std::function<void(const DialResult&)>;
  using OnMember = std::function<void(UniqueFd)>;

  // The listener tells `place` to a peer that has proven the token, and adds the peer to `pending_connections`, which
  // must outlive the listener. It passes the peer's connection to `member`, or closes the connection if `member` is
  // null. It passes sentences for people to `remark`, which may be null. The listener's thread calls both functions.
  // Throws Failure: CKPT_ERR_INVALID if the token is empty, CKPT_ERR_SYSTEM if it cannot listen.
  Listener(const Identity& self, const ListenerOptions& options, std::string place,
           PendingConnections& pending_connections, OnMember member, std::function<void(const std::string&)> remark);
  // Ends the dials under way without calling their `done`, and joins the thread.
  ~Listener();
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  // The address at which the listener listens: "192.0.2.7:40123".
  const std::string& address() const { return address_; }

  // [any thread] Dials the listener at `address`. The listener's thread calls `done` once, unless this Listener is
  // destroyed before that.
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
