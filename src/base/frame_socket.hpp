// FrameSocket sends and receives JSON frames over a unix socket, between trainer, agent and tools. A frame is its
// length (32 bits, little-endian) and JSON text. File descriptors travel with its first byte (SCM_RIGHTS).
//
// send() and receive() wait with a deadline. try_receive(), queue() and flush() never wait, for poll loops. Nothing
// that arrives is trusted: if a frame is too long, is not JSON or has too many descriptors, the connection ends with a
// Failure (CKPT_ERR_INVALID). Only one thread at a time may use a socket.
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

inline constexpr int request_version = 2;  // of the JSON between trainer and agent; both refuse others
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

  // Connects to the listener at `path`. Throws Failure: CKPT_ERR_NO_AGENT if nobody listens there or the listener runs
  // as another user.
  static FrameSocket connect(const std::string& path);

  int fd() const { return socket_.get(); }
  PeerIdentity peer() const;  // as the kernel recorded it when the connection was made

  // Both throw Failure: CKPT_ERR_NO_AGENT if the other side has closed, CKPT_ERR_TIMEOUT if the deadline passes. After
  // a time-out the connection is unusable.
  void send(const nlohmann::json& body, std::span<const int> fds, Deadline deadline);
  Frame receive(Deadline deadline);

  // Returns the next frame if all of it has arrived. If it returns nothing, check closed(). Throws Failure for a bad
  // frame.
  std::optional<Frame> try_receive();
  // The other side has closed and nothing more will come.
  bool closed() const { return closed_; }

  // Queues a frame and duplicates its descriptors. Returns false if the queue is full. flush() writes what the socket
  // accepts.
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
  std::string incoming_ = std::string(4, '\0');  // the frame that is arriving; grows to its size once that is known
  std::size_t received_ = 0;                     // bytes of that frame received so far
  std::vector<UniqueFd> incoming_fds_;
};

class FrameListener {
 public:
  // Binds `path` (mode 0600) and listens. Removes a socket file that is left there. The caller must hold a lock, so
  // that nobody else serves it.
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
