// plan() cuts a checkpoint into chunks that fit the moments in which the network is idle: GEMINI's Algorithm 2
// (SOSP'23, section 5.3). Pure functions.
//
// The printed algorithm has two errors, which are corrected here:
// - Line 18 subtracts f(remain_size), the time of all that is left, from the span. It should subtract f(size), the time
//   of the chunk just placed. As printed, a span is full after its first chunk.
// - If the rest of a span is shorter than the start-up time, the size becomes 0, nothing changes, and the loop of line
//   8 never ends. Here the next span begins.
//
// Chunks that fit into no span are placed after the last span, and reported as an overrun. The paper has a last span of
// infinite length for them.
#pragma once

#include <cstdint>
#include <vector>

namespace ckpt::schedule {

// How long it takes to send `size` bytes: f(size) = startup_s + size / bytes_per_s.
struct LinkModel {
  double startup_s = 0;
  double bytes_per_s = 0;

  double time_s(std::uint64_t size_bytes) const { return startup_s + static_cast<double>(size_bytes) / bytes_per_s; }
};

struct PlanRequest {
  // C, m, R, p and mu are GEMINI's names.
  std::vector<double> spans_s;                // lengths of an iteration's idle spans, in order
  std::uint64_t checkpoint_bytes = 0;         // C: size of one copy
  std::uint32_t copies = 2;                   // m, the local one included; m - 1 are sent
  std::uint64_t reserved_bytes = 128u << 20;  // R: memory of all sub-buffers
  std::uint32_t buffers = 4;                  // p: number of sub-buffers; no chunk is larger than R / p
  std::uint64_t least_bytes = 1;              // no chunk is smaller, except the last one of a copy
  double usable = 0.9;                        // mu: the share of each span that chunks may fill. The rest is a margin
  LinkModel link;
};

struct PlannedChunk {
  std::uint32_t span = 0;  // number of the span in which it is sent; spans_s.size(): after the last span
  std::uint32_t copy = 0;  // number of the copy, 0 .. m - 2
  std::uint64_t first_byte = 0;
  std::uint64_t size_bytes = 0;
  bool operator==(const PlannedChunk&) const = default;
};

struct Plan {
  std::vector<PlannedChunk> chunks;  // in the order of sending; every byte of every copy is in one chunk
  double sent_s = 0;                 // time of all chunks on the link
  double overrun_s = 0;              // time of the chunks after the last span, by which the iteration is longer
  std::uint32_t every = 1;  // all chunks fit if every n-th iteration has a snapshot: the smallest such n; 0: none
};

// Plans the chunks of one checkpoint. Throws std::invalid_argument, with a sentence that names the value, unless
// 0 < usable < 1, the bandwidth is above 0, start-up time and spans are finite and not negative, there are at least one
// copy and one buffer, and a buffer has room for one byte and for the smallest chunk. O(spans + chunks) if the
// checkpoint fits into the spans, otherwise `every` times as long.
Plan plan(const PlanRequest& request);

}  // namespace ckpt::schedule
