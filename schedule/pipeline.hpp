// Computes how long it would take to send a checkpoint by a plan (plan.hpp), which says when each chunk leaves. So one
// can choose the sizes of chunks and buffers. Chunks cross the network into p sub-buffers, and are copied from there to
// host memory (GEMINI, SOSP'23, section 5.2). The result also shows how much slower one buffer is than several. Pure
// functions.
#pragma once

#include <cstdint>
#include <vector>

#include "schedule/plan.hpp"

namespace ckpt::schedule {

struct Window {
  double start_s = 0;
  double length_s = 0;
};

struct PipelineRequest {
  std::vector<Window> idle;  // when the network is idle, in order, within the iteration
  double iteration_s = 0;
  std::vector<std::uint64_t> chunks;  // sizes, in the order in which they are sent
  std::uint32_t buffers = 4;
  LinkModel link;
  double copy_bytes_per_s = 0;  // from a sub-buffer to host memory
};

struct PipelineRun {
  double iteration_s = 0;  // with the chunks that did not fit
  double network_s = 0;    // time spent on chunks
  double waited_s = 0;     // idle time spent waiting for a sub-buffer
  std::uint32_t late = 0;  // chunks sent after the last window
};

// Runs one iteration. A chunk is sent only when a sub-buffer is free and it will be through before its window ends, so
// training finds the network as it would without chunks. What is left after the last window goes at the iteration's end
// and prolongs it. The copy to host may overlap training. Throws std::invalid_argument as plan() does. O(windows +
// chunks).
PipelineRun run(const PipelineRequest& request);

// A whole checkpoint, cut into chunks of R / p.
std::vector<std::uint64_t> equal_chunks(std::uint64_t checkpoint_bytes, std::uint32_t copies_sent,
                                        std::uint64_t chunk_bytes);

}  // namespace ckpt::schedule
