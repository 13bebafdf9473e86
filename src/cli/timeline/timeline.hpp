// Timeline turns what agents recorded of the last iterations into tracks that `ckptctl trace` can draw. A track has the
// events of one kind: of one rank, of the node, or of the node and one of its peers. Pure functions.
//
// It trusts nothing that an agent answers. It skips events of unknown kinds, because the agent may be newer than
// ckptctl. It skips and counts malformed events. Times are in microseconds on the node's monotonic clock. Timeline
// assumes that all nodes share one clock, as nodes on one machine do.
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

// The kinds of tracks, in the order in which they are drawn.
enum class Lane { iteration, communication, idle, bubble, copy, capture, chunk, commit };

struct Mark {
  Extent extent;  // for an instant, begin and end are equal
  std::string name;
  nlohmann::json args;    // other details, as a JSON object
  std::uint32_t row = 0;  // marks of one track that overlap have different rows
};

struct Track {
  Lane lane = Lane::iteration;
  std::string name;
  std::vector<Mark> marks;  // sorted by begin_us
  std::uint32_t rows = 1;   // number of rows that the marks need

  bool is_of_instants() const { return lane == Lane::iteration || lane == Lane::commit; }
};

struct NodeTimeline {
  std::string job;
  std::string node;
  Extent shown;  // the time span that is drawn
  std::vector<Track> tracks;
};

struct Timeline {
  std::vector<NodeTimeline> nodes;  // only nodes that have something to show
  std::uint32_t iterations = 0;     // number of complete iterations shown; with several jobs, the largest number
  std::size_t malformed = 0;        // number of malformed events, which were skipped
};

// What one agent recorded: its answer to {"type": "trace"}.
struct Recording {
  std::string job;
  std::string node;
  nlohmann::json trace;
};

// Makes the timelines of all jobs. For each job it shows the last complete iterations, at most `iterations` of them.
// The iterations are those of the rank that ended an iteration last. If no rank has a complete iteration, shows
// everything.
Timeline timeline_of(const std::vector<Recording>& recordings, std::uint32_t iterations);

// Returns the parts of `shown` that nothing in `busy` covers, in order.
std::vector<Extent> gaps(const Extent& shown, std::vector<Extent> busy);

// Returns trace events for chrome://tracing and ui.perfetto.dev. There a node appears as a process, and each row of a
// track as a thread.
nlohmann::json trace_events(const Timeline& timeline);

}  // namespace ckpt::cli
