// NodeArena is the arena of one node, as the node's agent uses it: a directory with segments and with all that the node
// must not forget.
//
// It holds the arena's lock while it lives, so a node has one agent. Any thread may call create_segment(); only one
// thread at a time may call the other functions.
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

// Creates the arena's directory and those above it if they are missing. Throws Failure if one cannot be made or belongs
// to another user.
void make_node_directory(const std::string& path);

struct ArenaSummary;

class NodeArena {
 public:
  // Creates the directory, or attaches to what an earlier agent left in it. Throws Failure: CKPT_ERR_CLAIMED if another
  // agent holds it, CKPT_ERR_INVALID if it belongs to another job or node.
  NodeArena(std::string directory, const std::string& job, const std::string& node);

  const std::string& directory() const { return directory_; }
  std::uint64_t arena_id() const { return state_.arena_id; }
  // Describes damage to what the node must not forget, and how it was repaired. "" if there was none.
  const std::string& damage() const { return damage_; }

  // Records that somebody stopped this agent on purpose, so running trainers do not start another. The next NodeArena
  // here clears it.
  void mark_stopped() const;

  // True if somebody removed the arena's directory or its file `node` while this agent holds it.
  bool is_removed() const;
  // Creates both again, with all that the node remembers. Segments whose names are lost do not get them back. Throws
  // Failure: CKPT_ERR_CLAIMED if another agent was faster.
  void make_again();

  NodeMemory memory() const;
  // Values only ever grow: smaller ones are ignored.
  void remember(const NodeMemory& memory);
  // number() returns the node's number in the job, or nothing before the first remember_place(). token() returns the
  // job's token from the coordination store, or "" if there was none. The arena keeps both even if the store loses
  // them.
  std::optional<std::uint32_t> number() const;
  std::string token() const;
  void remember_place(std::uint32_t number, const std::string& token);

  // Call this at the agent's start. It maps every whole segment in the directory for writing. It removes files that are
  // no whole segment of this format, and adds them to `removed` with the reason.
  std::vector<Segment> attach_segments(std::vector<std::string>& removed);

  // Creates the next segment. See Segment::create().
  Segment create_segment(const SegmentSpec& spec, unsigned threads);
  // Removes the segment's file. The memory is free once everyone has unmapped it.
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

// True if the arena's agent was stopped on purpose and no agent has started since.
bool was_stopped(const std::string& directory);

// Describes an arena to tools. inspect_arena() returns nothing if `directory` has no arena.
struct ArenaSummary {
  std::string job;
  std::string node;
  NodeMemory memory;
  bool in_use = false;  // an agent holds it
};
std::optional<ArenaSummary> inspect_arena(const std::string& directory);

// Locks an arena through its file `node`, as its agent does. Returns false if another process holds the lock. Tools
// that inspect an arena hold it for a moment, so this keeps trying for `wait_limit_ms`.
bool lock_alone(int fd, const std::string& directory, std::int64_t wait_limit_ms);

// True if an agent of any version made this directory, or began to. Tools that remove arenas ask this.
bool is_arena(const std::string& directory);

}  // namespace ckpt::arena
