// Timeline turns what agents recorded of the last iterations into tracks that `ckptctl trace` can draw. Pure functions.
//
// It trusts nothing that an agent answers. It skips events of unknown kinds, because an agent may be newer. It skips
// and counts malformed events. Times are in microseconds on the node's monotonic clock. Timeline assumes that all nodes
// share one clock, as nodes on one machine do.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace ckpt::cli {

struct Extent {
  std::int64_t begin_us = 0;
  std::int64_t end_us = 0;
  bool operator==(const Extent&) const = default;
};

// The tracks, in the order in which they are drawn.
enum class Lane { iteration, communication, idle, capture, chunk, commit };

struct Mark {
  Extent extent;  // both ends are the same for an instant
  std::string name;
  nlohmann::json args;    // other details, an object
  std::uint32_t row = 0;  // marks of a track that overlap are in different rows
};

struct Track {
  Lane lane = Lane::iteration;
  std::string name;
  std::vector<Mark> marks;  // sorted by beginning
  std::uint32_t rows = 1;

  bool is_of_instants() const { return lane == Lane::iteration || lane == Lane::commit; }
};

struct NodeTimeline {
  std::string job;
  std::string node;
  Extent shown;
  std::vector<Track> tracks;
};

struct Timeline {
  std::vector<NodeTimeline> nodes;  // nodes that have something to show
  std::uint32_t iterations = 0;     // complete iterations shown, of the job that shows most
  std::size_t malformed = 0;        // events
};

// What one agent recorded: its answer to {"type": "trace"}.
struct Recording {
  std::string job;
  std::string node;
  nlohmann::json trace;
};

// Shows the last complete iterations of each job, at most `iterations`: those of the rank whose newest mark is newest.
// Shows everything if no rank has a complete one.
Timeline timeline_of(const std::vector<Recording>& recordings, std::uint32_t iterations);

// The parts of `shown` that nothing in `busy` covers.
std::vector<Extent> gaps(const Extent& shown, std::vector<Extent> busy);

// Trace events for chrome://tracing and ui.perfetto.dev: one process per node, one thread per row of a track.
nlohmann::json trace_events(const Timeline& timeline);

}  // namespace ckpt::cli
