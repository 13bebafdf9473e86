// Sessions of peers that were let in at the door and have not said hello yet. Each is good for one connection, and not
// for long; the oldest make room.
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

class Guests {
 public:
  void expect(const Session& session) {
    const std::lock_guard lock(mutex_);
    std::erase_if(guests_, [](const Guest& guest) { return guest.until.passed(); });
    if (guests_.size() == guests_max) guests_.pop_front();
    guests_.push_back({session, Deadline::in_ms(stay_ms)});
  }

  // The session that `hello` proves; it is used up.
  std::optional<Session> arrived(const wire::Hello& hello) {
    const std::lock_guard lock(mutex_);
    const auto found = std::find_if(guests_.begin(), guests_.end(),
                                    [&](const Guest& guest) { return guest.session.id == hello.session; });
    if (found == guests_.end() || found->until.passed() || !proves(found->session, Side::asker, hello))
      return std::nullopt;
    const Session session = found->session;
    guests_.erase(found);
    return session;
  }

 private:
  static constexpr std::size_t guests_max = 4096;
  static constexpr std::int64_t stay_ms = 10'000;
  struct Guest {
    Session session;
    Deadline until;
  };
  std::mutex mutex_;
  std::deque<Guest> guests_;
};

}  // namespace ckpt::net
