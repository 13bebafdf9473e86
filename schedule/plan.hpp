// Cutting a checkpoint into chunks that fit the moments in which the network is idle: GEMINI's Algorithm 2 (SOSP'23,
// section 5.3). Pure.
//
// As printed the algorithm has two slips. Line 18 takes f(remain_size), the time of all that is left, off the span
// where f(size), that of the chunk just placed, is meant: a span would be taken for full after its first chunk. And
// where what is left of a span is too short to hold even the start-up time, the size becomes 0, nothing changes any
// more, and the loop of line 8 never ends; here such a span is simply over. What fits nowhere is placed after the last
// span, as in the paper, but as an overrun that is told and not as a span of infinite length.
#pragma once

#include <cstdint>
#include <vector>

namespace ckpt::schedule {

// f(s) = startup_s + s / bytes_per_s: how long it takes to send s bytes.
struct LinkModel {
  double startup_s = 0;
  double bytes_per_s = 0;

  double time_s(std::uint64_t size_bytes) const { return startup_s + static_cast<double>(size_bytes) / bytes_per_s; }
};

struct PlanRequest {
  std::vector<double> spans_s;                // idle, in the order in which an iteration has them
  std::uint64_t checkpoint_bytes = 0;         // C
  std::uint32_t copies = 2;                   // m, the local one included: m - 1 are sent
  std::uint64_t reserved_bytes = 128u << 20;  // R
  std::uint32_t buffers = 4;                  // p: no chunk is larger than R / p
  std::uint64_t least_bytes = 1;              // no chunk is smaller, but for the last one of a copy
  double usable = 0.9;                        // mu: of each span, for spans vary between iterations
  LinkModel link;
};

struct PlannedChunk {
  std::uint32_t span = 0;  // spans_s.size(): after the last one
  std::uint32_t copy = 0;  // 0 .. m - 2
  std::uint64_t first_byte = 0;
  std::uint64_t size_bytes = 0;
  bool operator==(const PlannedChunk&) const = default;
};

struct Plan {
  std::vector<PlannedChunk> chunks;  // in the order in which they are sent: every byte of every copy once
  double sent_s = 0;                 // all of them, on the link
  double overrun_s = 0;              // of these, after the last span: by so much an iteration is prolonged
  std::uint32_t every = 1;  // iterations from one snapshot to the next that would prolong none; 0: no such number
};

// Throws std::invalid_argument, in one sentence that names the value, unless 0 < usable < 1, bandwidth is positive, the
// start-up time and all spans are finite and not negative, there are buffers and each has at least one byte and room
// for the least chunk, and copies are at least 1. O(spans + chunks), and where it does not fit `every` times that.
Plan plan(const PlanRequest& request);

}  // namespace ckpt::schedule
