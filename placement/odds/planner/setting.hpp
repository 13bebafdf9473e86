// The ways to protect a job that a plan compares, as a table, and a setting of one of them. Pure values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "placement/protection.hpp"

namespace ckpt::planner {

// Where the state comes back from after a failure. Later ones are older.
enum class Source : std::uint8_t { replica, memory, storage };
inline constexpr std::size_t source_count = 3;
constexpr std::size_t index(Source source) { return static_cast<std::size_t>(source); }

enum class Capture : std::uint8_t {
  stop_and_write,  // training stands still until the checkpoint is on storage
  overlapped,      // into host memory, while training goes on
  gradients,       // gradients alone; hosts repeat the optimizer's update (REFT's recomputing)
  late,            // after the failure, from replicas that live; else as seldom as `iterations` says
  automatic,       // late where a replica lives, else overlapped
};

enum class Availability : std::uint8_t { option, comparison, later };

struct Scheme {
  std::string name;
  Capture capture = Capture::overlapped;
  placement::Protection protection;
  Availability availability = Availability::option;
  bool every_iteration = false;  // as often as replication allows, instead of the best frequency
  std::string what;
};

// The first ones are preferred where several are equally good: the default, then others. Those that are not there yet
// come last.
std::vector<Scheme> all_schemes();
// Captures overlapped, with this protection, at the best frequency.
Scheme scheme_of(const placement::Protection& protection);

inline constexpr double never_s = std::numeric_limits<double>::infinity();

struct Setting {
  Scheme scheme;
  double iterations = 1;             // between two captures
  double storage_every_s = never_s;  // of training, between two checkpoints on storage
  std::uint32_t own_slots = 2;
};

}  // namespace ckpt::planner
