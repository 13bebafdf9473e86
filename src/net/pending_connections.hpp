// PendingConnections holds the sessions of peers that have proven the token to the listener and have not said hello
// yet. Each session is valid for one connection, and for at most 10 s. If there are 4096, a new one takes the place of
// the oldest.
//
// Thread-safe.
#pragma once

#include <algorithm>
#include <deque>
#include <mutex>
#include <optional>

#include "base/clock.hpp"
#include "net/session.hpp"

namespace ckpt::net {

class PendingConnections {
 public:
  // Adds the session of a peer whose hello should come next.
  void expect(const Session& session) {
    const std::lock_guard lock(mutex_);
    std::erase_if(pending_connections_,
                  [](const PendingConnection& pending_connection) { return pending_connection.until.passed(); });
    if (pending_connections_.size() == pending_connections_max) pending_connections_.pop_front();
    pending_connections_.push_back({session, Deadline::in_ms(stay_ms)});
  }

  // Removes and returns the session that `hello` proves. Returns nothing if there is no such session.
  std::optional<Session> arrived(const wire::Hello& hello) {
    const std::lock_guard lock(mutex_);
    const auto found = std::find_if(
        pending_connections_.begin(), pending_connections_.end(),
        [&](const PendingConnection& pending_connection) { return pending_connection.session.id == hello.session; });
    if (found == pending_connections_.end() || found->until.passed() || !proves(found->session, Side::asker, hello))
      return std::nullopt;
    const Session session = found->session;
    pending_connections_.erase(found);
    return session;
  }

 private:
  static constexpr std::size_t pending_connections_max = 4096;
  static constexpr std::int64_t stay_ms = 10'000;
  struct PendingConnection {
    Session session;
    Deadline until;
  };
  std::mutex mutex_;
  std::deque<PendingConnection> pending_connections_;
};

}  // namespace ckpt::net
