#include "net/tcp_link.hpp"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cassert>
#include <cerrno>
#include <cstring>
#include <utility>

namespace ckpt::net {
namespace {

constexpr std::size_t buffer_bytes = 64u << 10;
constexpr std::size_t small_bytes = 16u << 10;         // a payload up to this size is delivered from the buffer
constexpr std::size_t read_bytes_max = 4u << 20;       // most bytes to read before other links get their turn
constexpr std::size_t frames_max = 65536;              // most frames that may wait to be sent
constexpr std::uint64_t payload_bytes_max = 1u << 30;  // larger than anything that is ever sent
constexpr int frames_at_once = 16;

void set(const UniqueFd& connection, int level, int option, int value) {
  ::setsockopt(connection.get(), level, option, &value, sizeof value);
}

// Makes the kernel end the connection if the peer's machine does not answer any more. While data is being sent, that
// takes `timeout_ms`.
void watch_over(const UniqueFd& connection, std::int64_t timeout_ms) {
  set(connection, IPPROTO_TCP, TCP_NODELAY, 1);
  set(connection, IPPROTO_TCP, TCP_USER_TIMEOUT, static_cast<int>(timeout_ms));
  set(connection, SOL_SOCKET, SO_KEEPALIVE, 1);
  set(connection, IPPROTO_TCP, TCP_KEEPIDLE, 1);
  set(connection, IPPROTO_TCP, TCP_KEEPINTVL, 1);
  set(connection, IPPROTO_TCP, TCP_KEEPCNT, 3);
}

// Copies memory of another process into `into`. Returns false if not all of it can be read.
bool read_memory(std::uint64_t pid, std::uint64_t address, std::span<std::byte> into) {
  for (std::size_t got_bytes = 0; got_bytes < into.size();) {
    const iovec local{into.data() + got_bytes, into.size() - got_bytes};
    const iovec remote{reinterpret_cast<void*>(address + got_bytes), local.iov_len};
    const ssize_t got = ::process_vm_readv(static_cast<pid_t>(pid), &local, 1, &remote, 1, 0);
    if (got <= 0) return false;
    got_bytes += static_cast<std::size_t>(got);
  }
  return true;
}

}  // namespace

TcpLink::TcpLink(TcpBackend& streams, bool outgoing) : Link(outgoing, streams.failures_), streams_(streams) {}

TcpLink::~TcpLink() { assert(!connection_ && idle()); }

bool TcpLink::open(const std::string& place, UniqueFd connection) {
  if (place != TcpBackend::here() || !connection) return false;
  if (!streams_.watch(connection.get(), *this, false, true)) return false;
  connection_ = std::move(connection);
  buffer_.resize(buffer_bytes);
  watch_over(connection_, streams_.options_.progress_timeout_ms);
  if (streams_.options_.transports == "shm") show_memory();
  return true;
}

void TcpLink::show_memory() {
  if (::getrandom(shown_.data(), shown_.size(), 0) != static_cast<ssize_t>(shown_.size())) return;
  const Beacon beacon{static_cast<std::uint64_t>(::getpid()), reinterpret_cast<std::uint64_t>(shown_.data()), shown_};
  enqueue(kind_beacon, wire::bytes_of(beacon), {}, {});
}

void TcpLink::finish(Operation& operation, bool ok) {
  const auto done = std::exchange(operation.done, nullptr);
  operation.keep.reset();
  if (done) done(ok);
}

void TcpLink::Frame::append(std::span<const std::byte> bytes) {
  if (!bytes.empty()) std::memcpy(begin.data() + begin_bytes, bytes.data(), bytes.size());
  begin_bytes += bytes.size();
}

void TcpLink::transmit(wire::Kind kind, const Header& header, std::span<const std::byte> payload,
                       std::shared_ptr<const void> keep, Done done) {
  enqueue(kind, header.span(), payload, {std::move(keep), std::move(done)});
}

void TcpLink::enqueue(std::uint16_t kind, std::span<const std::byte> header, std::span<const std::byte> payload,
                      Operation operation) {
  if (idle()) note_progress();
  if (frames_.size() >= frames_max) {
    fail(FetchEnd::timed_out);
    return finish(operation, false);
  }
  const bool in_place = is_readable_ && kind == wire::kind_chunk;
  const Head head{kind, static_cast<std::uint16_t>(header.size()), in_place, payload.size()};
  Frame& frame = frames_.emplace_back();
  frame.append(wire::bytes_of(head));
  frame.append(header);
  if (in_place) {
    frame.append(wire::bytes_of(reinterpret_cast<std::uint64_t>(payload.data())));
    lent_.push_back(std::move(operation));
  } else {
    frame.payload = payload;
    frame.operation = std::move(operation);
  }
  if (!waits_for_room_) write_some();
}

void TcpLink::write_some() {
  if (std::exchange(writing_, true)) return;  // called from a callback below; the loop sends the new frames, too
  while (!frames_.empty() && !failed()) {
    std::array<iovec, 2 * frames_at_once> parts;
    std::size_t count = 0, skip_bytes = sent_bytes_;
    const auto add = [&](std::span<const std::byte> bytes) {
      const std::size_t skipped = std::min(skip_bytes, bytes.size());
      skip_bytes -= skipped;
      if (bytes.size() == skipped) return;
      parts[count++] = {const_cast<std::byte*>(bytes.data() + skipped), bytes.size() - skipped};
    };
    for (std::size_t i = 0; i < std::min<std::size_t>(frames_.size(), frames_at_once); ++i) {
      add(std::span(frames_[i].begin).first(frames_[i].begin_bytes));
      add(frames_[i].payload);
    }
    msghdr message = {};
    message.msg_iov = parts.data();
    message.msg_iovlen = count;
    const ssize_t size = ::sendmsg(connection_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (size < 0 && errno == EINTR) continue;
    if (size < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) break;
    if (size < 0) {
      fail(FetchEnd::peer_failed);
      break;
    }
    sent(static_cast<std::size_t>(size));
  }
  writing_ = false;
  const bool wants_room = !frames_.empty() && !failed();
  if (wants_room == waits_for_room_) return;
  waits_for_room_ = wants_room;
  if (!streams_.watch(connection_.get(), *this, wants_room, false)) fail(FetchEnd::peer_failed);
}

void TcpLink::sent(std::size_t bytes) {
  note_progress();
  sent_bytes_ += bytes;
  while (!frames_.empty() && sent_bytes_ >= frames_.front().size_bytes()) {
    sent_bytes_ -= frames_.front().size_bytes();
    Operation operation = std::move(frames_.front().operation);
    frames_.pop_front();
    finish(operation, true);
  }
}

void TcpLink::read_some() {
  for (std::size_t read_bytes = 0; read_bytes < read_bytes_max && !failed();) {
    const std::size_t got_bytes = fill();
    if (got_bytes == 0) return;
    read_bytes += got_bytes;
    parse();
  }
}

// Reads what the connection has: first the rest of a payload to its target, and what follows it into the buffer.
// Returns the number of bytes read; 0 if there were none or the link has failed.
std::size_t TcpLink::fill() {
  if (begin_ > 0) {
    std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
    end_ -= std::exchange(begin_, 0);
  }
  const std::size_t direct_bytes = receiving_ ? payload_left_bytes_ : 0;
  iovec parts[] = {{target_, direct_bytes}, {buffer_.data() + end_, buffer_.size() - end_}};
  msghdr message = {};
  message.msg_iov = parts;
  message.msg_iovlen = 2;
  ssize_t got = -1;
  do {
    got = ::recvmsg(connection_.get(), &message, MSG_DONTWAIT);
  } while (got < 0 && errno == EINTR);
  if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return 0;
  if (got <= 0) {
    fail(FetchEnd::peer_failed);
    return 0;
  }
  note_progress();
  const auto got_bytes = static_cast<std::size_t>(got);
  const std::size_t at_target = std::min(got_bytes, direct_bytes);
  target_ += at_target;
  payload_left_bytes_ -= at_target;
  end_ += got_bytes - at_target;
  return got_bytes;
}

void TcpLink::parse() {
  while (!failed() && take_payload() && take_frame()) {
  }
}

// Takes bytes of the present payload from the buffer. Returns true if no payload is incomplete any more.
bool TcpLink::take_payload() {
  const std::size_t here = std::min<std::uint64_t>(payload_left_bytes_, end_ - begin_);
  if (here > 0 && receiving_) {
    std::memcpy(target_, buffer_.data() + begin_, here);
    target_ += here;
  }
  begin_ += here;
  payload_left_bytes_ -= here;
  if (payload_left_bytes_ > 0) return false;
  if (!std::exchange(receiving_, false)) return true;
  std::exchange(received_, nullptr)(true);
  return true;
}

// Takes and delivers the next frame in the buffer. Returns false if there is none that is complete.
bool TcpLink::take_frame() {
  const auto rest = std::span(buffer_).subspan(begin_, end_ - begin_);
  if (rest.size() < sizeof(Head)) return false;
  const Head head = *wire::decode<Head>(rest.first(sizeof(Head)));
  if (head.header_bytes > sizeof(Header::bytes) || head.payload_bytes > payload_bytes_max || head.in_place > 1) {
    fail(FetchEnd::peer_failed);
    return false;
  }
  const bool is_whole = head.in_place == 0 && head.payload_bytes <= small_bytes;
  const std::size_t tail_bytes = head.in_place != 0 ? sizeof(std::uint64_t) : is_whole ? head.payload_bytes : 0;
  const std::size_t size_bytes = sizeof(Head) + head.header_bytes + tail_bytes;
  if (rest.size() < size_bytes) return false;
  begin_ += size_bytes;
  const auto header = rest.subspan(sizeof(Head), head.header_bytes);
  Arrival arrival;
  arrival.payload = rest.data() + sizeof(Head) + head.header_bytes;
  arrival.payload_bytes = head.payload_bytes;
  arrival.to_receive = !is_whole;
  if (head.in_place == 0 && !is_whole) payload_left_bytes_ = head.payload_bytes;
  deliver(head, header, arrival);
  return true;
}

void TcpLink::deliver(const Head& head, std::span<const std::byte> header, Arrival& arrival) {
  if (head.kind == kind_beacon || head.kind == kind_readable || head.kind == kind_released)
    return own_frame(head, header);
  arrival.header = header;
  if (head.kind >= wire::kind_hello && head.kind < wire::kind_end)
    streams_.events_.arrived(static_cast<wire::Kind>(head.kind), shared_from_this(), arrival);
  if (head.in_place != 0 && !failed()) enqueue(kind_released, {}, {}, {});
}

// Handles a frame by which two nodes arrange to read chunks in place.
void TcpLink::own_frame(const Head& head, std::span<const std::byte> header) {
  if (head.kind == kind_readable) {
    is_readable_ = true;
  } else if (head.kind == kind_released) {
    if (lent_.empty()) return fail(FetchEnd::peer_failed);
    Operation operation = std::move(lent_.front());
    lent_.pop_front();
    finish(operation, true);
  } else if (const auto beacon = wire::decode<Beacon>(header);
             beacon && streams_.options_.transports == "shm" && peer_pid_ == 0) {
    std::array<std::byte, 16> seen = {};
    if (!read_memory(beacon->pid, beacon->address, seen) || seen != beacon->bytes) return;  // e.g. on another machine
    peer_pid_ = beacon->pid;
    enqueue(kind_readable, {}, {}, {});
  }
}

void TcpLink::receive_rest(Arrival& arrival, std::span<std::byte> memory, Done done) {
  if (payload_left_bytes_ > 0) {
    receiving_ = true;
    target_ = memory.data();
    received_ = std::move(done);
    return;
  }
  std::uint64_t address = 0;
  std::memcpy(&address, arrival.payload, sizeof address);
  const bool ok = peer_pid_ != 0 && read_memory(peer_pid_, address, memory);
  if (ok) {
    note_progress();
  } else {
    fail(FetchEnd::peer_failed);
  }
  done(ok);
}

void TcpLink::shut() {
  if (connection_) streams_.forget(connection_.get());
  connection_.reset();
  payload_left_bytes_ = 0;
  if (std::exchange(receiving_, false)) std::exchange(received_, nullptr)(false);
  for (Frame& frame : std::exchange(frames_, {})) finish(frame.operation, false);
  for (Operation& operation : std::exchange(lent_, {})) finish(operation, false);
}

}  // namespace ckpt::net
