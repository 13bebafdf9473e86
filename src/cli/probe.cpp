#include "cli/probe.hpp"

#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <vector>

#include "base/clock.hpp"
#include "base/unique_fd.hpp"
#include "net/socket_address.hpp"

namespace ckpt::cli {
namespace {

constexpr std::size_t at_once_max = 256;

struct ProbeAttempt {
  std::string address;
  UniqueFd socket;
};

UniqueFd begin_connection(const std::string& text) {
  const auto address = net::parse_socket_address(text);
  if (!address) return {};
  UniqueFd socket(::socket(address->storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!socket || (::connect(socket.get(), address->get(), address->size_bytes) != 0 && errno != EINPROGRESS)) return {};
  return socket;
}

bool is_connected(int socket) {
  int error = 0;
  socklen_t size_bytes = sizeof(error);
  return ::getsockopt(socket, SOL_SOCKET, SO_ERROR, &error, &size_bytes) == 0 && error == 0;
}

void finish(std::vector<ProbeAttempt>& visits, std::int64_t timeout_ms, std::set<std::string>& answered) {
  for (const Deadline deadline = Deadline::in_ms(timeout_ms); !visits.empty();) {
    std::vector<pollfd> waiting;
    for (const ProbeAttempt& visit : visits) waiting.push_back({visit.socket.get(), POLLOUT, 0});
    const int ready = ::poll(waiting.data(), waiting.size(), deadline.remaining_ms());
    if (ready < 0 && errno == EINTR) continue;
    if (ready <= 0) break;
    for (std::size_t i = 0; i < visits.size(); ++i) {
      if (waiting[i].revents == 0) continue;
      if (is_connected(visits[i].socket.get())) answered.insert(visits[i].address);
      visits[i].socket.reset();
    }
    std::erase_if(visits, [](const ProbeAttempt& visit) { return !visit.socket; });
  }
  visits.clear();
}

}  // namespace

std::set<std::string> who_answers(const std::set<std::string>& addresses, std::int64_t timeout_ms) {
  std::set<std::string> answered;
  std::vector<ProbeAttempt> visits;
  for (const std::string& address : addresses) {
    if (UniqueFd socket = begin_connection(address)) visits.push_back({address, std::move(socket)});
    if (visits.size() == at_once_max) finish(visits, timeout_ms, answered);
  }
  finish(visits, timeout_ms, answered);
  return answered;
}

}  // namespace ckpt::cli
