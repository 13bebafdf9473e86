#include "net/tcp_backend.hpp"

#include <sys/epoll.h>

#include <array>

#include "base/error.hpp"
#include "net/tcp_link.hpp"

namespace ckpt::net {

TcpBackend::TcpBackend(const TransportOptions& options, BackendEvents& events)
    : options_(options), events_(events), poll_(::epoll_create1(EPOLL_CLOEXEC)) {
  if (!poll_) throw_errno(CKPT_ERR_SYSTEM, "cannot create an epoll descriptor");
}

const std::string& TcpBackend::here() {
  static const std::string place = "stream";
  return place;
}

std::shared_ptr<Link> TcpBackend::outgoing() { return std::make_shared<TcpLink>(*this, true); }

void TcpBackend::take_in(UniqueFd connection) {
  if (!events_.has_room()) return;
  const auto link = std::make_shared<TcpLink>(*this, false);
  if (link->open(here(), std::move(connection))) events_.joined(link);
}

bool TcpBackend::watch(int connection, TcpLink& link, bool for_room, bool anew) {
  epoll_event event = {};
  event.events = EPOLLIN | (for_room ? EPOLLOUT : 0u);
  event.data.ptr = &link;
  return ::epoll_ctl(poll_.get(), anew ? EPOLL_CTL_ADD : EPOLL_CTL_MOD, connection, &event) == 0;
}

// Closing the connection does not end the watch while a child process that is just being started has it, too.
void TcpBackend::forget(int connection) { ::epoll_ctl(poll_.get(), EPOLL_CTL_DEL, connection, nullptr); }

// The pointers in the events are valid: no link is destroyed in here, because its owner closes failed links later, and
// a closed connection is not watched any more.
unsigned TcpBackend::progress() {
  std::array<epoll_event, 64> events;
  const int count = ::epoll_wait(poll_.get(), events.data(), static_cast<int>(events.size()), 0);
  for (int i = 0; i < count; ++i) {
    const auto& event = events[static_cast<std::size_t>(i)];
    const auto link = std::static_pointer_cast<TcpLink>(static_cast<TcpLink*>(event.data.ptr)->shared_from_this());
    if ((event.events & EPOLLOUT) != 0) link->write_some();
    if ((event.events & ~static_cast<unsigned>(EPOLLOUT)) != 0) link->read_some();
  }
  return count < 0 ? 0u : static_cast<unsigned>(count);
}

}  // namespace ckpt::net
