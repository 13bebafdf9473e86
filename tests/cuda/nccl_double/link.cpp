#include "link.hpp"

#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace nccl_double {
namespace {

// Bytes, or 0: not now, or -1: never again.
ssize_t result_of(ssize_t result, bool end_is_zero) {
  if (result > 0 || (result == 0 && !end_is_zero)) return result;
  return result < 0 && (errno == EAGAIN || errno == EINTR) ? 0 : -1;
}
ssize_t try_write(int socket, const std::byte* data, std::size_t size_bytes) {
  return result_of(::send(socket, data, size_bytes, MSG_DONTWAIT | MSG_NOSIGNAL), false);
}
ssize_t try_read(int socket, void* data, std::size_t size_bytes) {
  return result_of(::recv(socket, data, size_bytes, MSG_DONTWAIT), true);
}

}  // namespace

Link::~Link() { ::close(socket_); }

void Link::die() { ::shutdown(socket_, SHUT_RDWR); }

void Link::put(Kind kind, const std::byte* data, std::size_t size_bytes) {
  const Head head{kind, size_bytes};
  const auto* const bytes = reinterpret_cast<const std::byte*>(&head);
  outgoing_.push_back({{bytes, bytes + sizeof(head)}, data, data == nullptr ? 0 : size_bytes});
}

void Link::connect() {
  if (!std::exchange(is_connecting_, true)) put(Kind::connects, nullptr, 0);
}

void Link::receive(std::byte* data, std::size_t size_bytes) {
  receives_.push_back({data, size_bytes});
  put(Kind::receives, nullptr, size_bytes);
}

// Sends what the other side is known to receive.
Link::State Link::answer() {
  while (!sends_.empty() && !awaited_.empty()) {
    const auto [data, size_bytes] = sends_.front();
    if (awaited_.front() != size_bytes) return State::mismatch;
    put(Kind::data, data, size_bytes);
    sends_.pop_front();
    awaited_.pop_front();
  }
  return State::busy;
}

Link::State Link::write() {
  while (!outgoing_.empty()) {
    auto& [head, data, size_bytes] = outgoing_.front();
    const bool in_head = !head.empty();
    const ssize_t done = in_head ? try_write(socket_, head.data(), head.size()) : try_write(socket_, data, size_bytes);
    if (done < 0) return State::broken;
    if (in_head) {
      head.erase(head.begin(), head.begin() + done);
    } else {
      data += done;
      size_bytes -= static_cast<std::size_t>(done);
    }
    if (head.empty() && size_bytes == 0)
      outgoing_.pop_front();
    else if (done == 0)
      break;
  }
  return State::busy;
}

Link::State Link::understand(const Head& head) {
  if (head.kind != Kind::data) head_done_ = 0;
  if (head.kind == Kind::connects) is_awaited_ = true;
  if (head.kind == Kind::receives) awaited_.push_back(head.size_bytes);
  if (head.kind != Kind::data) return State::busy;
  const bool expected = !receives_.empty() && receives_.front().size_bytes == head.size_bytes;
  return expected ? State::busy : State::mismatch;
}

// Reads nothing that nobody waits for but the other side's wishes: its data comes only after ours.
Link::State Link::read() {
  for (;;) {
    ssize_t done = 0;
    if (head_done_ < sizeof(head_)) {
      done = try_read(socket_, reinterpret_cast<std::byte*>(&head_) + head_done_, sizeof(head_) - head_done_);
      if (done <= 0) return done < 0 ? State::broken : State::busy;
      head_done_ += static_cast<std::size_t>(done);
      if (head_done_ < sizeof(head_)) continue;
      if (const State state = understand(head_); state != State::busy) return state;
      if (head_done_ == 0) continue;
    }
    const auto [data, size_bytes] = receives_.front();
    if (data_done_ < size_bytes) {
      done = try_read(socket_, data + data_done_, size_bytes - data_done_);
      if (done <= 0) return done < 0 ? State::broken : State::busy;
      data_done_ += static_cast<std::size_t>(done);
    }
    if (data_done_ < size_bytes) continue;
    receives_.pop_front();
    head_done_ = data_done_ = 0;
  }
}

Link::State Link::progress() {
  for (const auto step : {&Link::read, &Link::answer, &Link::write})
    if (const State state = (this->*step)(); state != State::busy) {
      const bool is_done = sends_.empty() && receives_.empty() && outgoing_.empty();
      return state == State::broken && is_done ? State::done : state;
    }
  return sends_.empty() && receives_.empty() && outgoing_.empty() ? State::done : State::busy;
}

}  // namespace nccl_double
