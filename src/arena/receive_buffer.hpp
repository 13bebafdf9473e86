// Where pieces of other nodes arrive from GPU to GPU before an agent takes them: a file of the arena for each rank,
// with a place for each member of its replication group. The trainer writes it, the agent makes and reads it. Nothing
// here is a checkpoint, nothing is believed: what the agent takes it copies, and verifies where it copied it to. So no
// order of stores and no death of the trainer can do harm. Behind its first page is the replication's page
// (replication_page.hpp).
//
// Owns the mapping. Each side uses its own functions, from any thread.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "arena/replication_page.hpp"
#include "base/mapping.hpp"
#include "base/unique_fd.hpp"
#include "protocol/checkpoint_id.hpp"

namespace ckpt::arena {

class ReceiveBuffer {
 public:
  struct Group {
    std::uint64_t incarnation = 0;  // the incarnation of the job that it is of
    std::uint32_t member = 0;       // the rank's own number
    std::uint32_t members = 0;
    bool operator==(const Group&) const = default;
  };
  // Agent: a fresh file for a new incarnation of the rank, without room for what arrives yet. It replaces an earlier
  // one, whose mappings stay. Throws Failure.
  static ReceiveBuffer create(const std::string& directory, std::uint32_t rank, const Group& group);
  // Agent: the file that an earlier agent left. Trainer: the one behind a descriptor that the agent sent. Throws
  // Failure (CKPT_ERR_CORRUPT).
  static ReceiveBuffer attach(const std::string& directory, std::uint32_t rank);
  static ReceiveBuffer attach(UniqueFd fd);
  // Agent: mappings stay.
  static void remove(const std::string& directory, std::uint32_t rank);

  // Agent, once: room for so many bytes from each member, all pages reserved; 0: nothing comes from that one. Throws
  // Failure, CKPT_ERR_NO_SPACE where there is no room, and leaves none then. Takes as long as touching it all.
  void make_places(const std::vector<std::uint64_t>& capacities_bytes);
  // Whether they are there; the first time they are mapped. Throws Failure (CKPT_ERR_CORRUPT).
  bool find_places();

  // Of a file with such places.
  static std::uint64_t file_bytes(std::span<const std::uint64_t> capacities_bytes);

  int fd() const { return fd_.get(); }
  std::uint64_t size_bytes() const { return std::max(words_.size_bytes(), room_.size_bytes()); }
  const Group& group() const { return group_; }
  std::size_t member() const { return group_.member; }
  std::size_t members() const { return group_.members; }
  // Valid for as long as this Receive buffer lives, moved or not.
  ReplicationPage page() const;
  // Of the member with that number; empty before the places are there. All below is for when they are.
  std::span<std::byte> bytes(std::size_t place) const { return places_[place]; }

  // Trainer: what arrives at the place from now on is of that checkpoint, none of it yet; then how much has.
  void begin(std::size_t place, CheckpointId checkpoint);
  void received(std::size_t place, std::uint64_t size_bytes);

  // Agent: how many of the checkpoint's first bytes are said to have arrived; never more than the place has.
  std::uint64_t received(std::size_t place, CheckpointId checkpoint) const;

 private:
  ReceiveBuffer(UniqueFd fd, Mapping words, const Group& group);
  void map_places(std::span<const std::uint64_t> capacities_bytes);

  UniqueFd fd_;
  Mapping words_, room_;
  // Not read from the file again, where the other side might change them.
  Group group_;
  std::vector<std::span<std::byte>> places_;
};

}  // namespace ckpt::arena
