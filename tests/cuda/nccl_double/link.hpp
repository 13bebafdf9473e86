// The connection of two ranks in the test double of NCCL: a socket, which ends with either rank's process. A rank sends
// only after the other side has said that it receives. So code that relies on NCCL's internal buffers does not work
// here.
//
// Non-blocking. Used by one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

namespace nccl_double {

class Link {
 public:
  explicit Link(int socket) : socket_(socket) {}
  ~Link();
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  // Says that this rank has a first group with the other, and whether both have said so.
  void connect();
  bool connected() const { return is_connecting_ && is_awaited_; }

  // In this order they are done. The bytes stay until then.
  void send(const std::byte* data, std::size_t size_bytes) { sends_.push_back({data, size_bytes}); }
  void receive(std::byte* data, std::size_t size_bytes);

  enum class State { busy, done, mismatch, broken };
  // Goes on with what is there; `done` once all of both is.
  State progress();
  int socket() const { return socket_; }
  bool wants_to_write() const { return !outgoing_.empty(); }
  // For the other side, this rank is gone.
  void die();

 private:
  enum class Kind : std::uint64_t { receives = 1, data = 2, connects = 3 };
  struct Head {
    Kind kind;
    std::uint64_t size_bytes;
  };
  struct Outgoing {
    std::vector<std::byte> head;
    const std::byte* data;
    std::size_t size_bytes;
  };
  struct Send {
    const std::byte* data;
    std::size_t size_bytes;
  };
  struct Receive {
    std::byte* data;
    std::size_t size_bytes;
  };

  void put(Kind kind, const std::byte* data, std::size_t size_bytes);
  State answer();
  State write();
  State read();
  State understand(const Head& head);

  const int socket_;
  std::deque<Send> sends_;
  std::deque<Receive> receives_;
  std::deque<std::uint64_t> awaited_;  // sizes that the other side receives
  std::deque<Outgoing> outgoing_;
  Head head_{};  // being read
  std::size_t head_done_ = 0, data_done_ = 0;
  bool is_connecting_ = false, is_awaited_ = false;
};

}  // namespace nccl_double
