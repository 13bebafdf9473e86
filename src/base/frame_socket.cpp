#include "base/frame_socket.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "base/error.hpp"
#include "base/same_file.hpp"

namespace ckpt {
namespace {

UniqueFd new_socket() {
  UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket) throw_errno(CKPT_ERR_SYSTEM, "cannot open a unix socket");
  return socket;
}

// The address of the socket at `path`. A unix socket's address holds only 107 characters. Naming the opened directory
// instead (/proc/self/fd/N) leaves room for paths of any length.
struct Address {
  UniqueFd directory;
  sockaddr_un name{};

  explicit Address(const std::string& path) {
    const auto slash = path.rfind('/');
    const std::string parent = slash == std::string::npos ? "." : path.substr(0, slash + 1);
    directory.reset(::open(parent.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
    if (!directory) return;
    const std::string through = "/proc/self/fd/" + std::to_string(directory.get()) + "/" + path.substr(slash + 1);
    name.sun_family = AF_UNIX;
    if (through.size() >= sizeof(name.sun_path))
      throw Failure(CKPT_ERR_INVALID, "the file name of the socket " + path + " is too long; use a shorter one");
    std::memcpy(name.sun_path, through.c_str(), through.size() + 1);
  }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&name); }
};

std::string encode(const nlohmann::json& body) {
  const std::string text = body.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  if (text.size() > frame_bytes_max)
    throw Failure(CKPT_ERR_INVALID,
                  "a message between this process and the agent would have " + std::to_string(text.size()) +
                      " bytes, and the limit is 16 MiB: this is a bug in ckptengine; report it with the agent's log");
  std::string bytes(4, '\0');
  for (int i = 0; i < 4; ++i) bytes[i] = static_cast<char>(text.size() >> (8 * i));
  return bytes + text;
}

std::size_t body_bytes(const std::string& frame) {
  std::size_t bytes = 0;
  for (int i = 0; i < 4; ++i) bytes |= static_cast<std::size_t>(static_cast<unsigned char>(frame[i])) << (8 * i);
  return bytes;
}

void take_fds(msghdr& message, std::vector<UniqueFd>& fds) {
  for (cmsghdr* control = CMSG_FIRSTHDR(&message); control != nullptr; control = CMSG_NXTHDR(&message, control)) {
    if (control->cmsg_level != SOL_SOCKET || control->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (control->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(control) + i * sizeof(int), sizeof(int));
      fds.emplace_back(fd);
    }
  }
}

bool would_block() { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR; }

}  // namespace

FrameSocket::FrameSocket(UniqueFd socket) : socket_(std::move(socket)) {
  const int flags = ::fcntl(socket_.get(), F_GETFL);
  ::fcntl(socket_.get(), F_SETFL, flags | O_NONBLOCK);
}

FrameSocket FrameSocket::connect(const std::string& path) {
  UniqueFd socket = new_socket();
  const Address address(path);
  // errno EAGAIN means that the listener's queue is full: a listener exists, but does not accept connections now.
  if (!address.directory || ::connect(socket.get(), address.get(), sizeof(address.name)) != 0)
    throw_errno(CKPT_ERR_NO_AGENT, "no agent answers at " + path);
  FrameSocket connected(std::move(socket));
  if (connected.peer().uid != ::geteuid())
    throw Failure(CKPT_ERR_NO_AGENT, "the agent at " + path + " runs as another user (uid " +
                                         std::to_string(connected.peer().uid) +
                                         "); set the option arena_dir to a directory that belongs to this user");
  return connected;
}

PeerIdentity FrameSocket::peer() const {
  ucred credentials{};
  socklen_t size = sizeof(credentials);
  if (::getsockopt(socket_.get(), SOL_SOCKET, SO_PEERCRED, &credentials, &size) != 0)
    throw_errno(CKPT_ERR_SYSTEM, "cannot find out which process is at the other end of a socket");
  return {credentials.pid, credentials.uid};
}

void FrameSocket::wait(short events, Deadline deadline, const char* what) const {
  pollfd entry{socket_.get(), events, 0};
  const int ready = ::poll(&entry, 1, deadline.remaining_ms());
  if (ready > 0 || (ready < 0 && errno == EINTR)) return;
  if (ready < 0) throw_errno(CKPT_ERR_SYSTEM, "cannot wait for a socket");
  throw Failure(CKPT_ERR_TIMEOUT, what);
}

// Returns how many bytes sendmsg() accepted; -1 if the socket is full.
ssize_t FrameSocket::write_some(Outgoing& frame) {
  iovec part{frame.bytes.data() + frame.written, frame.bytes.size() - frame.written};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  alignas(cmsghdr) std::array<char, CMSG_SPACE(frame_fds_max * sizeof(int))> control{};
  if (frame.written == 0 && !frame.fds.empty()) {
    message.msg_control = control.data();
    message.msg_controllen = CMSG_SPACE(frame.fds.size() * sizeof(int));
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(frame.fds.size() * sizeof(int));
    for (std::size_t i = 0; i < frame.fds.size(); ++i) {
      const int fd = frame.fds[i].get();
      std::memcpy(CMSG_DATA(header) + i * sizeof(int), &fd, sizeof(int));
    }
  }
  const ssize_t written = ::sendmsg(socket_.get(), &message, MSG_NOSIGNAL);
  if (written >= 0) {
    frame.written += static_cast<std::size_t>(written);
    return written;
  }
  if (would_block()) return -1;
  closed_ = true;
  throw_errno(CKPT_ERR_NO_AGENT, "the process at the other end of the socket has ended or has closed the connection");
}

bool FrameSocket::queue(const nlohmann::json& body, std::span<const int> fds) {
  if (outgoing_.size() >= frames_queued_max) return false;
  if (fds.size() > frame_fds_max)
    throw Failure(CKPT_ERR_INTERNAL, "a message would carry " + std::to_string(fds.size()) +
                                         " file descriptors, and the limit is " + std::to_string(frame_fds_max) +
                                         ": this is a bug in ckptengine; report it with the agent's log");
  Outgoing frame;
  frame.bytes = encode(body);
  for (const int fd : fds) {
    frame.fds.emplace_back(::fcntl(fd, F_DUPFD_CLOEXEC, 0));
    if (!frame.fds.back()) throw_errno(CKPT_ERR_SYSTEM, "cannot duplicate a descriptor to send");
  }
  outgoing_.push_back(std::move(frame));
  return true;
}

void FrameSocket::flush() {
  while (!outgoing_.empty()) {
    Outgoing& frame = outgoing_.front();
    if (write_some(frame) < 0) return;
    if (frame.written == frame.bytes.size()) outgoing_.pop_front();
  }
}

void FrameSocket::send(const nlohmann::json& body, std::span<const int> fds, Deadline deadline) {
  if (!queue(body, fds))
    throw Failure(CKPT_ERR_INTERNAL,
                  "64 messages wait already, which is the limit: the process at the other end of the socket does not "
                  "read them; see whether it is stopped");
  for (flush(); wants_write(); flush())
    wait(POLLOUT, deadline, "the process at the other end of the socket did not read in time");
}

// Reads at most to the end of the current frame. So descriptors that arrive belong to this frame. Returns false if
// nothing came.
bool FrameSocket::read_some() {
  iovec part{incoming_.data() + received_, incoming_.size() - received_};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(frame_fds_max * sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  const ssize_t got = ::recvmsg(socket_.get(), &message, MSG_CMSG_CLOEXEC);
  if (got > 0) {
    received_ += static_cast<std::size_t>(got);
    take_fds(message, incoming_fds_);
    if ((message.msg_flags & MSG_CTRUNC) != 0 || incoming_fds_.size() > frame_fds_max)
      throw Failure(CKPT_ERR_INVALID, "a message came with more file descriptors than the limit of " +
                                          std::to_string(frame_fds_max) +
                                          "; run ckptd, libckptengine and ckptctl of one version");
    return true;
  }
  if (got == 0 || !would_block()) closed_ = true;
  return false;
}

std::optional<Frame> FrameSocket::try_receive() {
  while (received_ < incoming_.size()) {
    if (closed_ || !read_some()) return std::nullopt;
    if (received_ != 4) continue;
    const std::size_t bytes = body_bytes(incoming_);
    if (bytes < 2 || bytes > frame_bytes_max)
      throw Failure(CKPT_ERR_INVALID,
                    "a message came with the length " + std::to_string(bytes) +
                        ", but must have from 2 bytes to 16 MiB; run ckptd, libckptengine and ckptctl of one version");
    incoming_.resize(4 + bytes);
  }
  Frame frame;
  frame.body = nlohmann::json::parse(incoming_.begin() + 4, incoming_.end(), nullptr, false);
  frame.fds = std::exchange(incoming_fds_, {});
  incoming_.resize(4);
  received_ = 0;
  if (!frame.body.is_object())
    throw Failure(CKPT_ERR_INVALID,
                  "a message came that is not a JSON object; run ckptd, libckptengine and ckptctl of one version");
  return frame;
}

Frame FrameSocket::receive(Deadline deadline) {
  while (true) {
    if (auto frame = try_receive()) return std::move(*frame);
    if (closed_)
      throw Failure(CKPT_ERR_NO_AGENT,
                    "the process at the other end of the socket has ended or has closed the connection");
    wait(POLLIN, deadline, "the process at the other end of the socket did not answer in time");
  }
}

FrameListener::FrameListener(std::string path) : path_(std::move(path)), socket_(new_socket()) {
  ::unlink(path_.c_str());
  const Address address(path_);
  // Sets the mode before listen(), because nobody can connect until listen().
  if (!address.directory || ::bind(socket_.get(), address.get(), sizeof(address.name)) != 0 ||
      ::chmod(path_.c_str(), 0600) != 0 || ::lstat(path_.c_str(), &made_) != 0 ||
      ::listen(socket_.get(), SOMAXCONN) != 0)
    throw_errno(CKPT_ERR_SYSTEM, "cannot listen at " + path_);
}

FrameListener::~FrameListener() {
  struct stat now {};
  if (::lstat(path_.c_str(), &now) == 0 && is_same_file(now, made_)) ::unlink(path_.c_str());
}

std::optional<FrameSocket> FrameListener::accept() {
  while (true) {
    UniqueFd connection(::accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!connection) {
      if (errno == ECONNABORTED || errno == EINTR) continue;
      return std::nullopt;
    }
    FrameSocket socket(std::move(connection));
    if (socket.peer().uid == ::geteuid()) return socket;
  }
}

}  // namespace ckpt
