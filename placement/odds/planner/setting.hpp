// A scheme is a way to protect a job: how its state is captured (Capture), and how the checkpoint in memory is
// protected against lost nodes (placement::Protection). A setting is a scheme together with two intervals: from one
// capture to the next, and from one checkpoint on storage to the next. A plan compares all_schemes(), each with its
// best setting. Plain values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "placement/protection.hpp"

namespace ckpt::planner {

// Where the state comes from after a failure: the GPUs of a live replica (another node that holds the same shards),
// checkpoints in memory, or storage. The states of each source are older than those of the source before.
enum class Source : std::uint8_t { replica, memory, storage };
inline constexpr std::size_t source_count = 3;
constexpr std::size_t index(Source source) { return static_cast<std::size_t>(source); }

// How the state is captured.
enum class Capture : std::uint8_t {
  stop_and_write,  // training stands still until the checkpoint is on storage
  overlapped,      // into host memory, while training goes on
  gradients,       // captures gradients alone; hosts repeat the optimizer's update (REFT's recomputing)
  late,            // after a failure, from the GPUs of live replicas; also `overlapped`, at the setting's interval
  automatic,       // `late` if the job has replicas, otherwise `overlapped`
};

enum class Availability : std::uint8_t {
  option,      // the engine's options can set it
  comparison,  // only for comparison: the engine does not do it
  partly,      // the engine does less than the plan assumes
  some_jobs,   // the engine does it for some optimizers, and a plan does not know the optimizer
};

struct Scheme {
  std::string name;
  Capture capture = Capture::overlapped;
  placement::Protection protection;
  Availability availability = Availability::option;
  bool every_iteration = false;  // true: captures as often as replication keeps up; false: at the best frequency
  std::string what;              // a short description, for people
};

// All schemes that plans compare. Of several that are equally good, a plan recommends the first. Schemes that the
// engine does not have, or has only in part, come last.
std::vector<Scheme> all_schemes();
// The scheme with overlapped captures and this protection, at the best frequency.
Scheme scheme_of(const placement::Protection& protection);

inline constexpr double never_s = std::numeric_limits<double>::infinity();

struct Setting {
  Scheme scheme;
  double iterations = 1;             // iterations from one capture to the next
  double storage_every_s = never_s;  // seconds of training from one checkpoint on storage to the next
  std::uint32_t own_slots = 2;       // the option own_slots; 0: the scheme cannot run here, so ignore all other fields
};

}  // namespace ckpt::planner
