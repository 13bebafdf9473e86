// Plans in which order the members of a replication group, which are ranks, send their pieces to each other. The plan
// follows from the pieces' lengths alone. So all members make the same plan, and sends and receives match. Pure
// functions.
//
// An exchange goes in steps. In step k, each member sends the k-th chunk of its piece to every other member and
// receives their k-th chunks. All these transfers run at the same time, so no two members wait for each other. A member
// whose piece has ended sends one byte that nobody reads. So a step ends on no member before all members have issued
// it. The chunks are those of GEMINI (SOSP'23, section 5.2), except that every member both sends and receives.
//
// In a group with parity, each member makes its node's parity from what it receives (placement/parity_layout.hpp). The
// steps go through the first row of parity, then through the second one, and so on. In step k of a row, a member sends
// to each other member the k-th chunk of that segment of its piece which the other one's parity is made from. These are
// other segments for each member. If a member's parity needs no segment of this piece, it gets one byte that it does
// not read.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "placement/parity_layout.hpp"

namespace ckpt::schedule {

struct ExchangeRequest {
  std::vector<std::uint64_t> lengths_bytes;   // of each member's piece
  std::uint64_t reserved_bytes = 128u << 20;  // memory of each member, for chunks sent and received (R in GEMINI)
  std::uint32_t buffers = 4;                  // how many steps may be under way (p in GEMINI)
  std::uint64_t grain_bytes = 64u << 10;      // a chunk's size is a multiple of this, except at the end of a piece
  std::uint32_t rows = 0;                     // rows of parity; 0: members send each other their whole pieces
};

// What one step needs of a member's GPU memory.
struct StepMemory {
  std::uint32_t members = 0;
  std::uint32_t rows = 0;  // as in ExchangeRequest

  // How many chunks lie there. A member sends one chunk to all others, or with parity, another chunk to each. It
  // receives a chunk from each other member.
  std::uint32_t places() const { return rows != 0 ? 2 * (members - 1) : members == 1 ? 2 : members; }
  // Of the digests that are made with a chunk of parity.
  std::uint64_t digest_bytes(std::uint64_t chunk_bytes) const {
    return rows == 0 ? 0 : chunk_bytes / placement::parity_unit_bytes * (members - rows + 1) * sizeof(std::uint64_t);
  }
  std::uint64_t size_bytes(std::uint64_t chunk_bytes) const {
    return chunk_bytes * places() + digest_bytes(chunk_bytes);
  }
  // The largest chunk that fits into so much memory: a multiple of `grain_bytes`.
  std::uint64_t chunk_bytes(std::uint64_t share_bytes, std::uint64_t grain_bytes) const {
    return share_bytes / size_bytes(grain_bytes) * grain_bytes;
  }
};

// One chunk that a member sends or receives in a step.
struct ExchangeTransfer {
  bool is_send = false;          // false: it receives the chunk
  std::uint32_t peer = 0;        // number of the other member
  std::uint64_t first_byte = 0;  // in the sender's piece
  std::uint64_t size_bytes = 0;  // of the chunk; 0: the sender's piece or segment has ended
  std::uint32_t place = 0;       // of the step's memory, counted in chunks
  // Bytes that cross the network: one even if the piece has ended.
  std::uint64_t crossing_bytes() const { return std::max<std::uint64_t>(size_bytes, 1); }
  bool operator==(const ExchangeTransfer&) const = default;
};

// The parity that a member makes in a step, from chunks that it has received.
struct EncodingStep {
  std::uint32_t row = 0;
  std::uint64_t first_byte = 0;  // in the member's parity piece
  std::uint64_t size_bytes = 0;  // whole leaves
  struct Source {
    std::uint32_t place = 0;
    std::uint64_t size_bytes = 0;
  };
  std::vector<Source> sources;  // by data column of the stripe
};

class ExchangePlan {
 public:
  // Throws std::invalid_argument if there are no members or no buffers, if `grain_bytes` is 0, or if `reserved_bytes`
  // is less than `buffers` steps with chunks of a grain need. With parity, also for a group that cannot be, and for a
  // grain that is not whole leaves. The exception's text names the wrong value.
  explicit ExchangePlan(const ExchangeRequest& request);

  std::uint32_t members() const { return memory_.members; }
  // Number of steps, equal for all members.
  std::uint64_t steps() const { return steps_; }
  std::uint32_t buffers() const { return buffers_; }
  // The size of all chunks except the last one of a piece or of a segment.
  std::uint64_t chunk_bytes() const { return chunk_bytes_; }
  std::uint32_t places() const { return memory_.places(); }
  // GPU memory for one step: the places, then the digests.
  std::uint64_t step_bytes() const { return memory_.size_bytes(chunk_bytes_); }
  // The size of the longest piece, or with parity, of all that a member sends to each other one.
  std::uint64_t sent_bytes() const { return sent_bytes_; }
  // The transfers of a member in step `number`: a send to and a receive from every other member. A member that is alone
  // sends to itself, which measures how fast the connection is.
  std::vector<ExchangeTransfer> step(std::uint32_t member, std::uint64_t number) const;

  // How the members' parity lies. Null without parity.
  const placement::ParityLayout* parity() const { return layout_ ? &*layout_ : nullptr; }
  // What the member makes in step `number`. Only with parity.
  EncodingStep encoding(std::uint32_t member, std::uint64_t number) const;
  // How many bytes of parity a member has made after the first `steps` steps. Without parity: how many bytes of
  // `sender`'s piece have arrived at each other member.
  std::uint64_t arrived_bytes(std::uint32_t sender, std::uint64_t steps) const;

 private:
  // A step of an exchange with parity.
  struct RowStep {
    std::uint32_t row;
    std::uint64_t first_byte;  // in each segment
  };
  RowStep row_step(std::uint64_t number) const;
  placement::ByteRange chunk(std::uint32_t sender, std::uint32_t receiver, std::uint64_t number) const;

  std::vector<std::uint64_t> lengths_bytes_;
  StepMemory memory_;
  std::uint32_t buffers_;
  std::optional<placement::ParityLayout> layout_;
  std::uint64_t chunk_bytes_ = 0, steps_ = 0, sent_bytes_ = 0;
  std::uint64_t steps_per_row_ = 0;  // with parity
};

}  // namespace ckpt::schedule
