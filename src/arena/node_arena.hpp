// A node's arena: the directory with everything that this node remembers. Opened by its one agent.
//
// Holds the lock for as long as it lives. One thread at a time, except create_segment(), which any thread may call.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "arena/arena_format.hpp"
#include "arena/control.hpp"
#include "arena/segment.hpp"
#include "base/mapping.hpp"
#include "base/unique_fd.hpp"

namespace ckpt::arena {

// What a node must not forget when its agent restarts.
struct NodeMemory {
  CheckpointId highest_commit;
  CheckpointId newest_seen;
  std::uint64_t highest_epoch = 0;
  CheckpointId newest_damaged;
};

// The arena's directory and those above it, where they are not there yet. Throws Failure for one that cannot be made or
// belongs to another user.
void make_node_directory(const std::string& path);

struct ArenaSummary;

class NodeArena {
 public:
  // Makes the directory, or re-attaches to what an earlier agent left in it. Throws Failure: CKPT_ERR_CLAIMED when
  // another agent holds it, CKPT_ERR_INVALID when it belongs to another job or node.
  NodeArena(std::string directory, const std::string& job, const std::string& node);

  const std::string& directory() const { return directory_; }
  std::uint64_t arena_id() const { return state_.arena_id; }
  // What was found damaged of what the node must not forget, and what was made of it; "" where nothing was.
  const std::string& damage() const { return damage_; }

  // The agent was told to end: trainers that run start no other by themselves. Ends with the next NodeArena here.
  void mark_stopped() const;

  // Somebody has removed the arena's directory, or its first file, while this agent holds it.
  bool is_removed() const;
  // Makes both again, with all that the node remembers; segments that have lost their names do not get them back.
  // Throws Failure: CKPT_ERR_CLAIMED where another agent has been faster.
  void make_again();

  NodeMemory memory() const;
  // Words only ever grow.
  void remember(const NodeMemory& memory);
  // Its number among the job's nodes, and the token that the coordination store had, "" if none. Where the store
  // forgets them, this node does not.
  std::optional<std::uint32_t> number() const;
  std::string token() const;
  void remember_place(std::uint32_t number, const std::string& token);

  // Agent start: every whole segment in the directory, mapped for writing. Files that are none (cut off while they were
  // made, of another format) are removed, and named in `removed` with the reason.
  std::vector<Segment> attach_segments(std::vector<std::string>& removed);

  // Makes the next segment. See Segment::create().
  Segment create_segment(const SegmentSpec& spec, unsigned threads);
  // Removes its file; the memory is free once everyone has unmapped it.
  static void remove_segment(Segment segment);

 private:
  std::string head_path() const { return directory_ + "/node"; }
  NodeHeader* header() const { return reinterpret_cast<NodeHeader*>(mapping_.data()); }

  struct NodeState {
    std::uint64_t arena_id = 0, number = 0;
    NodeMemory memory;
    std::array<std::uint64_t, 4> token{};
  };
  friend std::optional<ArenaSummary> inspect_arena(const std::string& directory);
  static std::array<std::uint64_t, node_words_checked> words_of(const NodeState& state);
  static std::optional<NodeState> read(const NodeHeader& header, const NodeWords& copy);
  void initialize(const std::string& job, const std::string& node);
  void recall();
  void store();

  std::string directory_;
  NodeState state_;  // as in both copies
  std::string damage_;
  UniqueFd lock_;
  Mapping mapping_;
  std::atomic<std::uint64_t> next_segment_{0};
};

// Whether the arena's agent was told to end and none has been started since.
bool was_stopped(const std::string& directory);

// An arena seen from outside, for tools; nothing when there is none at `directory`.
struct ArenaSummary {
  std::string job;
  std::string node;
  NodeMemory memory;
  bool in_use = false;  // an agent holds it
};
std::optional<ArenaSummary> inspect_arena(const std::string& directory);

// Locks an arena through its file `node`, as its agent does. False where another process has locked it. Those that
// inspect an arena share the lock for an instant, so it is tried for some time.
bool lock_alone(int fd, const std::string& directory, std::int64_t wait_limit_ms);

// Whether an agent of any version made it, or began to: for tools that remove.
bool is_arena(const std::string& directory);

// Bytes that new segments in `directory` may take: what the file system, the machine and the memory control groups
// have left, whichever is least.
std::uint64_t space_left_bytes(const std::string& directory);

}  // namespace ckpt::arena
