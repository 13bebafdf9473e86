// run() computes how long it takes to send a checkpoint in the idle spans of one iteration, for given sizes of chunks
// and numbers of buffers. Chunks cross the network into p sub-buffers, and are copied from there to host memory
// (GEMINI, SOSP'23, section 5.2). Compare results to see how much slower one sub-buffer is than several. Pure
// functions.
#pragma once

#include <cstdint>
#include <vector>

#include "schedule/plan.hpp"

namespace ckpt::schedule {

// A time in which the network is idle.
struct Span {
  double start_s = 0;  // since the iteration began
  double length_s = 0;
};

struct PipelineRequest {
  std::vector<Span> idle;             // in order of time; all end within the iteration
  double iteration_s = 0;             // length of the iteration without chunks
  std::vector<std::uint64_t> chunks;  // sizes, in the order in which they are sent
  std::uint32_t buffers = 4;
  LinkModel link;
  double copy_bytes_per_s = 0;  // from a sub-buffer to host memory
};

struct PipelineRun {
  double iteration_s = 0;  // length of the iteration, with the chunks that did not fit into its idle spans
  double network_s = 0;    // how long chunks use the network
  double waited_s = 0;     // how long chunks wait for a sub-buffer while the network is idle
  std::uint32_t late = 0;  // how many chunks are sent after the last span
};

// Computes one iteration. A chunk is sent only if a sub-buffer is free and the chunk will arrive before its span
// ends. So training never finds chunks on the network. Chunks that are left after the last span are sent when the
// iteration ends, and prolong it. Copies to host memory may overlap training. Throws std::invalid_argument if a value
// of the request is out of range. O(spans + chunks).
PipelineRun run(const PipelineRequest& request);

// Returns the sizes of the chunks in which a checkpoint goes to `copies_sent` nodes. Each chunk has `chunk_bytes`
// bytes, except the last one of a copy.
std::vector<std::uint64_t> equal_chunks(std::uint64_t checkpoint_bytes, std::uint32_t copies_sent,
                                        std::uint64_t chunk_bytes);

}  // namespace ckpt::schedule
