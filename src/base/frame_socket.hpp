// FrameSocket sends and receives JSON frames over a unix socket, between trainer, agent and tools. A frame on the
// socket is the length of a JSON text (32 bits, little-endian) and then the text. The frame's file descriptors travel
// with its first byte (SCM_RIGHTS).
//
// send() and receive() wait, each until a deadline. try_receive(), queue() and flush() never wait; poll loops use them.
// Nothing that arrives is trusted. If a frame is too long, is not a JSON object or has too many descriptors, receiving
// throws Failure (CKPT_ERR_INVALID), and the caller must close the socket. Only one thread at a time may use a socket.
#pragma once

#include <sys/stat.h>
#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/clock.hpp"
#include "base/unique_fd.hpp"

namespace ckpt {

// The version of the requests between trainer and agent. Each side refuses any other version.
inline constexpr int request_version = 3;
inline constexpr std::size_t frame_bytes_max = 16u << 20;
inline constexpr std::size_t frame_fds_max = 250;  // the kernel allows 253
inline constexpr std::size_t frames_queued_max = 64;

struct Frame {
  nlohmann::json body;  // an object
  std::vector<UniqueFd> fds;
};

struct PeerIdentity {
  pid_t pid;
  uid_t uid;
};

class FrameSocket {
 public:
  explicit FrameSocket(UniqueFd socket);

  // Connects to the listener at `path`. Throws Failure: CKPT_ERR_NO_AGENT if nobody listens there or the listener runs
  // as another user.
  static FrameSocket connect(const std::string& path);

  int fd() const { return socket_.get(); }
  // The process at the other end, as the kernel recorded it when the connection was made.
  PeerIdentity peer() const;

  // send() and receive() pass one frame. Both throw Failure: CKPT_ERR_NO_AGENT if the other side has closed the
  // connection, CKPT_ERR_TIMEOUT if the deadline passes. After a time-out the connection is unusable.
  void send(const nlohmann::json& body, std::span<const int> fds, Deadline deadline);
  Frame receive(Deadline deadline);

  // Returns the next frame if all of it has arrived. If it returns nothing, check closed(). Throws Failure for an
  // invalid frame.
  std::optional<Frame> try_receive();
  // True once the other side has closed the connection and no further frame will come.
  bool closed() const { return closed_; }

  // Queues a frame, which flush() sends. Duplicates the descriptors `fds`, so the caller may close them. Returns false
  // if the queue is full.
  bool queue(const nlohmann::json& body, std::span<const int> fds);
  // Writes as much of the queue as the socket accepts now.
  void flush();
  bool wants_write() const { return !outgoing_.empty(); }

 private:
  struct Outgoing {
    std::string bytes;
    std::vector<UniqueFd> fds;
    std::size_t written = 0;
  };
  ssize_t write_some(Outgoing& frame);
  bool read_some();
  void wait(short events, Deadline deadline, const char* what) const;

  UniqueFd socket_;
  bool closed_ = false;
  std::deque<Outgoing> outgoing_;
  std::string incoming_ = std::string(4, '\0');  // the arriving frame; at first only its length
  std::size_t received_ = 0;                     // bytes of that frame received so far
  std::vector<UniqueFd> incoming_fds_;
};

// FrameListener is a unix socket that accepts connections of this user's processes.
class FrameListener {
 public:
  // Binds `path` (mode 0600) and listens. First removes a file at `path`, which may be the socket of another process.
  // So the caller must hold a lock that keeps other processes from listening there.
  explicit FrameListener(std::string path);
  ~FrameListener();  // removes the socket's file, unless another listener has replaced it
  FrameListener(const FrameListener&) = delete;
  FrameListener& operator=(const FrameListener&) = delete;

  int fd() const { return socket_.get(); }
  // Returns a connection from a process of this user, or nothing if none waits. Closes connections of other users
  // without an answer.
  std::optional<FrameSocket> accept();

 private:
  std::string path_;
  UniqueFd socket_;
  struct stat made_ {};  // identifies the socket's file
};

}  // namespace ckpt
