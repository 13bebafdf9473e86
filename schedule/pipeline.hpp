// How a plan runs: chunks cross the network into p sub-buffers, and are copied on to host memory from there (GEMINI,
// SOSP'23, section 5.2). A model of one iteration in virtual time, for choosing sizes and for seeing what one buffer
// instead of several costs. Pure.
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
  std::vector<Window> idle;  // of the network, in order, within the iteration
  double iteration_s = 0;
  std::vector<std::uint64_t> chunks;  // sizes, in the order in which they are sent
  std::uint32_t buffers = 4;
  LinkModel link;
  double copy_bytes_per_s = 0;  // from a sub-buffer to host memory
};

struct PipelineRun {
  double iteration_s = 0;  // prolonged by what did not fit
  double network_s = 0;    // spent on chunks
  double waited_s = 0;     // within idle time: for a sub-buffer
  std::uint32_t late = 0;  // chunks sent after the last window
};

// A chunk is sent only when a sub-buffer is free and it will be through before its window ends: training finds the
// network as it would without. What is left after the last window goes at the iteration's end and prolongs it. The copy
// to host may go on beside training. Throws std::invalid_argument as plan() does. O(windows + chunks).
PipelineRun run(const PipelineRequest& request);

// A whole checkpoint in chunks of R / p.
std::vector<std::uint64_t> equal_chunks(std::uint64_t checkpoint_bytes, std::uint32_t copies_sent,
                                        std::uint64_t chunk_bytes);

}  // namespace ckpt::schedule
