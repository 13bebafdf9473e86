// TcpLink is a link to a peer over a TCP connection of our own. In each direction, frames follow each other:
//
//    head 16 bytes   kind, size of the header, whether the payload is in place, size of the payload
//    header          as in wire.hpp, after the session's seal
//    payload         its bytes; or, if it is in place, 8 bytes: its address in the sender's memory
//
// A large payload goes from the socket straight into the receiver's memory. A payload that nobody takes is skipped.
//
// With transport "shm", two nodes on one machine read chunks from each other's memory. First each node tells the other
// where a few bytes are in its memory, and what they are (kind_beacon). A node that can read these bytes says so
// (kind_readable). From then on, the sender sends it the address of a chunk instead of the bytes: the payload is in
// place. The receiver reads the chunk from the sender's memory, and says when it has done so (kind_released).
//
// Not thread-safe: only the transport's thread uses it.
#pragma once

#include <deque>

#include "net/link.hpp"
#include "net/tcp_backend.hpp"

namespace ckpt::net {

class TcpLink final : public Link {
 public:
  TcpLink(TcpBackend& streams, bool outgoing);
  ~TcpLink() override;

  bool open(const std::string& place, UniqueFd connection) override;
  bool idle() const override { return frames_.empty() && lent_.empty() && !receiving_; }
  void end_operations() override {}  // nothing to do: all ended when the link was closed

  // Reads and handles what has arrived, up to a limit, so that other links get their turn.
  void read_some();
  // Sends as much of the queued frames as the connection takes now.
  void write_some();

 private:
  struct Head {
    std::uint16_t kind = 0;
    std::uint16_t header_bytes = 0;
    std::uint32_t in_place = 0;
    std::uint64_t payload_bytes = 0;
  };
  static_assert(sizeof(Head) == 16);
  struct Beacon {
    std::uint64_t pid = 0;
    std::uint64_t address = 0;
    std::array<std::byte, 16> bytes = {};  // the bytes at this address
  };
  static constexpr std::uint16_t kind_beacon = 0x100;
  static constexpr std::uint16_t kind_readable = 0x101;
  static constexpr std::uint16_t kind_released = 0x102;

  struct Operation {
    std::shared_ptr<const void> keep;
    Done done;
  };
  struct Frame {
    std::array<std::byte, sizeof(Head) + sizeof(Header::bytes) + sizeof(std::uint64_t)> begin = {};
    std::size_t begin_bytes = 0;
    std::span<const std::byte> payload;
    Operation operation;

    void append(std::span<const std::byte> bytes);
    std::size_t size_bytes() const { return begin_bytes + payload.size(); }
  };

  bool is_open() const override { return static_cast<bool>(connection_); }
  void transmit(wire::Kind kind, const Header& header, std::span<const std::byte> payload,
                std::shared_ptr<const void> keep, Done done) override;
  void receive_rest(Arrival& arrival, std::span<std::byte> memory, Done done) override;
  void shut() override;

  void enqueue(std::uint16_t kind, std::span<const std::byte> header, std::span<const std::byte> payload,
               Operation operation);
  void sent(std::size_t bytes);
  std::size_t fill();
  void parse();
  bool take_payload();
  bool take_frame();
  void deliver(const Head& head, std::span<const std::byte> header, Arrival& arrival);
  void own_frame(const Head& head, std::span<const std::byte> header);
  void show_memory();
  static void finish(Operation& operation, bool ok);

  TcpBackend& streams_;
  UniqueFd connection_;

  // Sending.
  std::deque<Frame> frames_;
  std::size_t sent_bytes_ = 0;  // how much of the first frame is sent
  bool writing_ = false;
  bool waits_for_room_ = false;
  bool is_readable_ = false;    // the peer can read this process's memory
  std::deque<Operation> lent_;  // sends whose payload the peer reads in place, in order
  std::array<std::byte, 16> shown_ = {};

  // Receiving.
  std::vector<std::byte> buffer_;         // has arrived bytes that are not handled yet, from begin_ to end_
  std::size_t begin_ = 0, end_ = 0;       // positions in buffer_
  std::uint64_t payload_left_bytes_ = 0;  // bytes of the present payload that have not arrived
  bool receiving_ = false;                // these bytes go to target_; otherwise they are skipped
  std::byte* target_ = nullptr;
  Done received_;
  std::uint64_t peer_pid_ = 0;  // process id of the peer, if this process can read its memory; otherwise 0
};

}  // namespace ckpt::net
