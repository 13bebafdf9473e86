// Plans in which order the members of a replication group, which are ranks, send their pieces to each other. The plan
// follows from the pieces' lengths alone. So all members make the same plan, and sends and receives match. Pure
// functions.
//
// An exchange goes in steps. In step k, each member sends the k-th chunk of its piece to every other member and
// receives their k-th chunks. All these transfers run at the same time, so no two members wait for each other. A member
// whose piece has ended sends one byte without meaning. So a step ends on no member before all members have issued it.
// The chunks are those of GEMINI (SOSP'23, section 5.2), except that every member both sends and receives.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace ckpt::schedule {

struct ExchangeRequest {
  std::vector<std::uint64_t> lengths_bytes;   // of each member's piece
  std::uint64_t reserved_bytes = 128u << 20;  // memory of each member, for chunks sent and received (R in GEMINI)
  std::uint32_t buffers = 4;                  // how many steps may be under way (p in GEMINI)
  std::uint64_t grain_bytes = 64u << 10;      // a chunk's size is a multiple of this, except at the end of a piece
};

// One chunk that a member sends or receives in a step.
struct ExchangeTransfer {
  bool is_send = false;          // false: it receives the chunk
  std::uint32_t peer = 0;        // number of the other member
  std::uint64_t first_byte = 0;  // in the sender's piece
  std::uint64_t size_bytes = 0;  // of the chunk; 0: the sender's piece has ended
  // Bytes that cross the network: one even if the piece has ended.
  std::uint64_t crossing_bytes() const { return std::max<std::uint64_t>(size_bytes, 1); }
  bool operator==(const ExchangeTransfer&) const = default;
};

class ExchangePlan {
 public:
  // Throws std::invalid_argument if there are no members or no buffers, if `grain_bytes` is 0, or if `reserved_bytes`
  // is less than `buffers` * places() * `grain_bytes`. The exception's text names the wrong value.
  explicit ExchangePlan(const ExchangeRequest& request);

  std::uint32_t members() const { return static_cast<std::uint32_t>(lengths_bytes_.size()); }
  // Number of steps, equal for all members.
  std::uint64_t steps() const { return steps_; }
  std::uint32_t buffers() const { return buffers_; }
  // The size of all chunks except the last one of a piece.
  std::uint64_t chunk_bytes() const { return chunk_bytes_; }
  // How many chunks of one step lie in a member's GPU memory: its own, and those that it receives.
  std::uint32_t places() const { return members() == 1 ? 2 : members(); }
  // The transfers of a member in step `number`: a send to and a receive from every other member. A member that is alone
  // sends to itself, which measures how fast the connection is.
  std::vector<ExchangeTransfer> step(std::uint32_t member, std::uint64_t number) const;

 private:
  ExchangeTransfer transfer(bool is_send, std::uint32_t peer, std::uint32_t sender, std::uint64_t number) const;

  std::vector<std::uint64_t> lengths_bytes_;
  std::uint32_t buffers_;
  std::uint64_t chunk_bytes_ = 0, steps_ = 0;
};

}  // namespace ckpt::schedule
