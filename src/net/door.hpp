// Where nodes meet first: a TCP listener of ours, and our own visits to the listeners of others. Both sides prove that
// they have the job's token (handshake.hpp). The connection of a visitor that has done so carries frames from then on,
// or ends where UCX carries them.
//
// One thread, the door's, does all of it without blocking. Whatever a stranger does, it takes of the door: one entry of
// a table whose oldest one makes room, for at most `timeout_ms`, some hundred bytes, and no more turns than its source
// address may have in a second.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <thread>

#include "base/unique_fd.hpp"
#include "net/command_queue.hpp"
#include "net/guests.hpp"
#include "net/handshake.hpp"
#include "net/socket_address.hpp"
#include "net/source_limit.hpp"
#include "net/strangers.hpp"

namespace ckpt::net {

struct DoorOptions {
  SocketAddress listen_on;
  std::int64_t timeout_ms = 3000;   // of a handshake, on both sides
  std::size_t half_open_max = 256;  // visitors that have not proven themselves yet
  double source_burst = 256;        // visits of one source address that may come at once,
  double source_per_s = 64;         // and in the long run
  // Hears where a visitor comes from that has proven itself, before that is told where to go on. On the door's thread.
  std::function<void(const std::string&)> proven = {};
};

class Door {
 public:
  // How a visit ended. Without a session `end` says why.
  struct Visited {
    std::optional<Session> session;
    std::string place;  // see Asking::place()
    std::shared_ptr<UniqueFd> connection = std::make_shared<UniqueFd>();
    FetchEnd end = FetchEnd::peer_failed;
    Reach reach = Reach::unreachable;
  };
  using OnVisited = std::function<void(const Visited&)>;
  using OnMember = std::function<void(UniqueFd)>;

  // Who is let in is told `place` and found among `guests`, which outlive the door. `member`, unless it is null, gets
  // the connection. `member` and `remark` are called on the door's thread. Throws Failure (CKPT_ERR_SYSTEM, or
  // CKPT_ERR_INVALID where a token is lacking).
  Door(const Member& self, const DoorOptions& options, std::string place, Guests& guests, OnMember member,
       std::function<void(const std::string&)> remark);
  // Visits under way end without a call.
  ~Door();
  Door(const Door&) = delete;
  Door& operator=(const Door&) = delete;

  // Where it listens.
  const std::string& address() const { return address_; }

  // [any thread] Visits the door at `address`. `done` is called once, on the door's thread.
  void visit(NodeId peer, std::uint64_t peer_instance, const std::string& address, OnVisited done);

  // [any thread] Who was turned away.
  Strangers strangers() const { return turned_away_.seen(); }

 private:
  struct Talk;
  struct Visit;

  void run();
  bool wait();
  void accept_all();
  void let_in(UniqueFd visitor, const SocketAddress& from);
  void listen_to_visitors();
  bool begin(Visit& visit);
  void listen_to_hosts();
  void go_on(Visit& visit);
  void complain(const Asking& asking, const std::string& host);
  static Nonce fresh_nonce();

  const Member self_;
  const DoorOptions options_;
  const std::string place_;
  Guests& guests_;
  const OnMember member_;
  const std::function<void(const std::string&)> remark_;
  std::string address_;
  UniqueFd listener_;
  CommandQueue commands_;

  // The door's thread only.
  SourceLimit limit_;
  std::list<Talk> visitors_;  // the oldest first
  std::list<Visit> visits_;
  Clock::time_point accepts_again_at_ = {};
  Clock::time_point complains_again_at_ = {};
  bool stopping_ = false;

  TurnedAway turned_away_;
  std::thread thread_;
};

}  // namespace ckpt::net
