// What agents recorded of their last iterations, put into tracks that can be drawn. Pure functions.
//
// What an agent answered is not trusted: events of unknown kinds are passed over, for agents may be newer, and so are
// malformed ones, which are counted. Times stay as they are, in microseconds on the node's monotonic clock, and all
// nodes of a job are taken to have the same one, as those of one machine do.
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

// In the order in which they are shown.
enum class Lane { iteration, communication, idle, capture, chunk, commit };

struct Mark {
  Extent extent;  // of an instant, both ends are the same
  std::string name;
  nlohmann::json args;    // what else is known of it, an object
  std::uint32_t row = 0;  // those of a track that overlap lie in rows of their own
};

struct Track {
  Lane lane = Lane::iteration;
  std::string name;
  std::vector<Mark> marks;  // by beginning
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
  std::vector<NodeTimeline> nodes;  // those that have something to show
  std::uint32_t iterations = 0;     // whole ones shown, of the job that shows most
  std::size_t malformed = 0;        // events
};

// What the agent of a node answered to {"type": "trace"}, under "trace".
struct Recording {
  std::string job;
  std::string node;
  nlohmann::json trace;
};

// Of each job its last whole iterations, at most so many: those of the rank whose newest mark is newest. All there is
// where no rank has a whole one.
Timeline timeline_of(const std::vector<Recording>& recordings, std::uint32_t iterations);

// The parts of `shown` that nothing of `busy` covers.
std::vector<Extent> gaps(const Extent& shown, std::vector<Extent> busy);

// For chrome://tracing and ui.perfetto.dev: a process per node, a thread per row of a track.
nlohmann::json trace_events(const Timeline& timeline);

}  // namespace ckpt::cli
