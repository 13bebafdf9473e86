// Frames over a unix stream socket: u32 little-endian length, then JSON text; file descriptors travel with the frame's
// first byte (SCM_RIGHTS). Used between trainer, agent and tools.
//
// Both ends are non-blocking inside. send() and receive() wait with a deadline; try_receive(), queue() and flush() are
// for poll loops. Whatever arrives is untrusted: too long, not JSON or too many descriptors ends the connection with a
// Failure (CKPT_ERR_INVALID). One thread at a time.
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

inline constexpr int request_version = 2;  // of the JSON between trainer and agent: each refuses another version
inline constexpr std::size_t frame_bytes_max = 16u << 20;
inline constexpr std::size_t frame_fds_max = 16;
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

  // Connects to the listener at `path`. Throws Failure: CKPT_ERR_NO_AGENT when nobody listens there or the listener
  // runs as another user.
  static FrameSocket connect(const std::string& path);

  int fd() const { return socket_.get(); }
  PeerIdentity peer() const;  // as the kernel saw it when the connection was made

  // Throw Failure: CKPT_ERR_NO_AGENT when the other side has closed, CKPT_ERR_TIMEOUT when the deadline passes, after
  // which the connection is of no more use.
  void send(const nlohmann::json& body, std::span<const int> fds, Deadline deadline);
  Frame receive(Deadline deadline);

  // The next frame if all of it has arrived, else nothing; then look at closed(). Throws Failure for a bad frame.
  std::optional<Frame> try_receive();
  // The other side has closed and nothing more will come.
  bool closed() const { return closed_; }

  // Queues a frame, duplicating the descriptors; flush() writes what the socket takes. False when the queue is full.
  bool queue(const nlohmann::json& body, std::span<const int> fds);
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
  std::string incoming_ = std::string(4, '\0');  // the frame that is arriving, as large as known so far
  std::size_t received_ = 0;                     // bytes of it that are there
  std::vector<UniqueFd> incoming_fds_;
};

class FrameListener {
 public:
  // Binds `path` (mode 0600) and listens. A socket file left there is removed: the caller makes sure, by a lock, that
  // nobody else serves it.
  explicit FrameListener(std::string path);
  ~FrameListener();  // removes the socket's file, unless it is another's by now
  FrameListener(const FrameListener&) = delete;
  FrameListener& operator=(const FrameListener&) = delete;

  int fd() const { return socket_.get(); }
  // A connection from a process of this user, or nothing when none waits (others are closed unanswered).
  std::optional<FrameSocket> accept();

 private:
  std::string path_;
  UniqueFd socket_;
  struct stat made_ {};  // the socket's file
};

}  // namespace ckpt
