// plan() cuts a checkpoint into chunks that fit the moments in which the network is idle: GEMINI's Algorithm 2
// (SOSP'23, section 5.3). Pure functions.
//
// The printed algorithm has two slips:
// - Line 18 takes f(remain_size), the time of all that is left, off the span. It should take f(size), the time of the
//   chunk just placed. As printed, a span is full after its first chunk.
// - If the rest of a span is shorter than the start-up time, the size becomes 0, nothing changes, and the loop of line
//   8 never ends. Here such a span is over.
//
// As in the paper, chunks that fit nowhere are placed after the last span. Here they are reported as an overrun. The
// paper has a span of infinite length for them.
#pragma once

#include <cstdint>
#include <vector>

namespace ckpt::schedule {

// How long it takes to send s bytes: f(s) = startup_s + s / bytes_per_s.
struct LinkModel {
  double startup_s = 0;
  double bytes_per_s = 0;

  double time_s(std::uint64_t size_bytes) const { return startup_s + static_cast<double>(size_bytes) / bytes_per_s; }
};

struct PlanRequest {
  std::vector<double> spans_s;                // idle spans, in the order of the iteration
  std::uint64_t checkpoint_bytes = 0;         // C
  std::uint32_t copies = 2;                   // m, the local one included: m - 1 are sent
  std::uint64_t reserved_bytes = 128u << 20;  // R
  std::uint32_t buffers = 4;                  // p: no chunk is larger than R / p
  std::uint64_t least_bytes = 1;              // no chunk is smaller, except the last one of a copy
  double usable = 0.9;                        // mu: the share of each span that is used, because spans vary
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
  std::vector<PlannedChunk> chunks;  // in the order of sending: every byte of every copy once
  double sent_s = 0;                 // time of all chunks on the link
  double overrun_s = 0;              // the part of it after the last span, by which an iteration is prolonged
  std::uint32_t every = 1;           // snapshots so many iterations apart would prolong none; 0: no such number
};

// Throws std::invalid_argument with one sentence that names the value, unless 0 < usable < 1, bandwidth is positive,
// start-up time and spans are finite and not negative, copies are at least 1, there are buffers, and each has at least
// one byte and room for the least chunk. O(spans + chunks), and `every` times that if it does not fit.
Plan plan(const PlanRequest& request);

}  // namespace ckpt::schedule
