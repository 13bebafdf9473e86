#include "net/port_guard.hpp"

#include <arpa/inet.h>
#include <dirent.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "base/error.hpp"

namespace ckpt::net {
namespace {

constexpr std::size_t hosts_max = 256;
constexpr std::uint32_t network_header = static_cast<std::uint32_t>(SKF_NET_OFF);

struct CloseDirectory {
  void operator()(DIR* directory) const { ::closedir(directory); }
};

bool listens_at(int fd, const SocketAddress& address) {
  SocketAddress own;
  own.size_bytes = sizeof own.storage;
  int listens = 0;
  socklen_t size = sizeof listens;
  return ::getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) == 0 && listens == 1 &&
         ::getsockname(fd, reinterpret_cast<sockaddr*>(&own.storage), &own.size_bytes) == 0 &&
         (own.storage.ss_family == AF_INET || own.storage.ss_family == AF_INET6) && to_text(own) == to_text(address);
}

// Finds the socket and returns a duplicate of its descriptor, because UCX may close its own.
UniqueFd listener_at(const SocketAddress& address) {
  const std::unique_ptr<DIR, CloseDirectory> directory(::opendir("/proc/self/fd"));
  if (directory == nullptr) throw_errno(CKPT_ERR_SYSTEM, "cannot list the agent's descriptors in /proc/self/fd");
  while (const dirent* const entry = ::readdir(directory.get())) {
    const std::string_view name = entry->d_name;
    int fd = -1;
    if (std::from_chars(name.data(), name.data() + name.size(), fd).ec != std::errc()) continue;
    if (listens_at(fd, address)) return UniqueFd(::fcntl(fd, F_DUPFD_CLOEXEC, 0));
  }
  return {};
}

std::vector<std::uint32_t> words_of(const SocketAddress& host) {
  std::vector<std::uint32_t> words(host.storage.ss_family == AF_INET ? 1 : 4);
  if (words.size() == 1)
    words[0] = reinterpret_cast<const sockaddr_in&>(host.storage).sin_addr.s_addr;
  else
    std::memcpy(words.data(), &reinterpret_cast<const sockaddr_in6&>(host.storage).sin6_addr, 16);
  for (std::uint32_t& word : words) word = ntohl(word);
  return words;
}

bool is_same(const SocketAddress& a, const SocketAddress& b) { return words_of(a) == words_of(b); }

// A socket filter that compares a packet's source address with each host in turn.
std::vector<sock_filter> filter_of(const std::deque<SocketAddress>& hosts) {
  std::vector<sock_filter> code;
  for (const SocketAddress& host : hosts) {
    const auto words = words_of(host);
    const std::uint32_t source = network_header + (words.size() == 1 ? 12 : 8);
    for (std::size_t i = 0; i < words.size(); ++i) {
      const auto to_next_host = static_cast<std::uint8_t>(2 * (words.size() - 1 - i) + 1);
      code.push_back(BPF_STMT(BPF_LD | BPF_W | BPF_ABS, source + 4 * static_cast<std::uint32_t>(i)));
      code.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, words[i], 0, to_next_host));
    }
    code.push_back(BPF_STMT(BPF_RET | BPF_K, UINT32_MAX));
  }
  code.push_back(BPF_STMT(BPF_RET | BPF_K, 0));
  return code;
}

void hang_up_on_all(const UniqueFd& listener) {
  if ((::fcntl(listener.get(), F_GETFL) & O_NONBLOCK) == 0) return;  // then UCX waits in accept() and takes them
  while (UniqueFd(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC))) {
  }
}

}  // namespace

PortGuard::PortGuard(const SocketAddress& address)
    : family_(address.storage.ss_family), listener_(listener_at(address)) {
  if (!listener_) return;
  if (apply())
    hang_up_on_all(listener_);
  else
    listener_.reset();
}

void PortGuard::admit(const SocketAddress& host) {
  const std::lock_guard lock(mutex_);
  if (!listener_ || host.storage.ss_family != family_) return;
  std::erase_if(hosts_, [&](const SocketAddress& known) { return is_same(known, host); });
  if (hosts_.size() == hosts_max) hosts_.pop_front();
  hosts_.push_back(host);
  // If the kernel has no room for a filter of this size (net.core.optmem_max), drop the hosts admitted first.
  while (!apply() && hosts_.size() > 1) hosts_.pop_front();
}

bool PortGuard::apply() {
  auto code = filter_of(hosts_);
  const sock_fprog program{static_cast<unsigned short>(code.size()), code.data()};
  return ::setsockopt(listener_.get(), SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program) == 0;
}

}  // namespace ckpt::net
