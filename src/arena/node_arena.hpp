// NodeArena is the arena of one node, as the node's agent uses it. It is a directory with the segments and the file
// `node`, which holds what the node must not forget.
//
// A NodeArena holds the arena's lock while it exists, so that a node has only one agent. Any thread may call
// create_segment(); only one thread at a time may call the other functions.
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

// What a node must not forget when its agent restarts. NodeWords explains the values.
struct NodeMemory {
  CheckpointId highest_commit;
  CheckpointId newest_seen;
  std::uint64_t highest_epoch = 0;
  CheckpointId newest_damaged;
};

// Creates the directory of the arena, and the directories above it, if they are missing. Throws Failure if one cannot
// be made or belongs to another user.
void make_node_directory(const std::string& path);

struct ArenaSummary;

class NodeArena {
 public:
  // Creates the arena in `directory`, or attaches to the arena that an earlier agent left there. Throws Failure:
  // CKPT_ERR_CLAIMED if another agent holds its lock, CKPT_ERR_INVALID if it belongs to another job or node.
  NodeArena(std::string directory, const std::string& job, const std::string& node);

  const std::string& directory() const { return directory_; }
  std::uint64_t arena_id() const { return state_.arena_id; }
  // A sentence about damage to what the node must not forget, and how it was repaired; "" if there was none.
  const std::string& damage() const { return damage_; }

  // Records that somebody stopped this agent on purpose, so that running trainers do not start another one. The next
  // NodeArena in this directory clears the record.
  void mark_stopped() const;

  // True if somebody removed the arena's directory or its file `node` while this agent holds it.
  bool is_removed() const;
  // Creates the directory and the file `node` again, with all that the node remembers. Segment files that were removed
  // stay removed. Throws Failure: CKPT_ERR_CLAIMED if another agent has made the arena again already.
  void make_again();

  NodeMemory memory() const;
  // Stores each value that is larger than the present one, and ignores the others.
  void remember(const NodeMemory& memory);
  // number() is the node's number in the job, or nothing before the first remember_place(). token() is the job's token
  // that the coordination store had, or "" if it had none. The arena keeps both, so that the node can use them again if
  // the store loses them.
  std::optional<std::uint32_t> number() const;
  std::string token() const;
  void remember_place(std::uint32_t number, const std::string& token);

  // Maps every valid segment in the directory for writing, and returns them. Removes segment files that are not valid,
  // and adds a sentence for each to `removed`. Call this when the agent starts.
  std::vector<Segment> attach_segments(std::vector<std::string>& removed);

  // Creates a segment under the next free number. See Segment::create().
  Segment create_segment(const SegmentSpec& spec, unsigned threads);
  // Removes the segment's file. Its memory is free once the trainer and the agent have unmapped it.
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
  NodeState state_;  // the same as in both copies of the file
  std::string damage_;
  UniqueFd lock_;
  Mapping mapping_;
  std::atomic<std::uint64_t> next_segment_{0};
};

// True if the arena's agent was stopped on purpose and no agent has started since.
bool was_stopped(const std::string& directory);

// Describes an arena to tools. inspect_arena() returns nothing if `directory` has no arena.
struct ArenaSummary {
  std::string job;
  std::string node;
  NodeMemory memory;
  bool in_use = false;  // an agent holds the arena's lock
};
std::optional<ArenaSummary> inspect_arena(const std::string& directory);

// Locks an arena as its agent does; `fd` is open on the arena's file `node`. Keeps trying for `wait_limit_ms`, because
// tools that inspect an arena hold the lock for a moment. Returns false if another process still holds the lock then.
bool lock_alone(int fd, const std::string& directory, std::int64_t wait_limit_ms);

// True if an agent of any version made an arena in this directory, or began to. For tools that remove arenas.
bool is_arena(const std::string& directory);

}  // namespace ckpt::arena
