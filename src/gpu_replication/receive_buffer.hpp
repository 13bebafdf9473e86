// ReceiveBuffer is the file of the arena in which pieces arrive from other GPUs before the agent takes them. It has a
// place for each member of the rank's replication group. In a group with parity, only the rank's own place is used: the
// parity that its GPU makes arrives there. The agent creates and reads the file; the trainer writes it. The
// page for coordination (replication_page.hpp) is a part of it.
//
// The agent trusts nothing in the file. It copies bytes to a slot, and verifies them there. So it does not matter in
// which order the trainer writes, or when the trainer dies.
//
// The object owns the mapping. Some functions are for the trainer, others for the agent. Any thread may call them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/mapping.hpp"
#include "base/unique_fd.hpp"
#include "core/checkpoint_id.hpp"
#include "gpu_replication/replication_page.hpp"

namespace ckpt::arena {

class ReceiveBuffer {
 public:
  struct Group {
    std::uint64_t incarnation = 0;  // the job's incarnation that the file belongs to
    std::uint32_t member = 0;       // the rank's own number
    std::uint32_t members = 0;
    // Rows of parity. 0: the members' pieces arrive. Otherwise this rank's GPU makes parity from them, and the parity
    // arrives at the rank's own place (parity_place.hpp).
    std::uint32_t rows = 0;
    bool operator==(const Group&) const = default;
  };
  // Agent: creates a file without places, for a new incarnation of the rank. Replaces an earlier file, whose mappings
  // stay valid. Throws Failure.
  static ReceiveBuffer create(const std::string& directory, std::uint32_t rank, const Group& group);
  // Agent: maps the file that an earlier agent left. Trainer: maps the file behind a descriptor that the agent sent.
  // Throws Failure (CKPT_ERR_CORRUPT).
  static ReceiveBuffer attach(const std::string& directory, std::uint32_t rank);
  static ReceiveBuffer attach(UniqueFd fd);
  // Agent: removes the file. Mappings stay valid.
  static void remove(const std::string& directory, std::uint32_t rank);

  // Agent, once: makes a place of capacities_bytes[i] bytes for each member i. Reserves its memory and touches all
  // pages, which takes a while. 0 bytes: nothing arrives from that member. Throws Failure and then leaves no places;
  // CKPT_ERR_NO_SPACE if there is no room.
  void make_places(const std::vector<std::uint64_t>& capacities_bytes);
  // Returns whether the places exist. Maps them when it first finds them. Throws Failure (CKPT_ERR_CORRUPT).
  bool find_places();

  // Returns the size of a file with places of these capacities.
  static std::uint64_t file_bytes(std::span<const std::uint64_t> capacities_bytes);

  int fd() const { return fd_.get(); }
  std::uint64_t size_bytes() const { return std::max(words_.size_bytes(), room_.size_bytes()); }
  const Group& group() const { return group_; }
  std::size_t member() const { return group_.member; }
  std::uint32_t rows() const { return group_.rows; }
  // Whether anything arrives at this place.
  bool is_used(std::size_t place) const { return (group_.rows != 0) == (place == group_.member); }
  std::size_t members() const { return group_.members; }
  // The result is valid while this ReceiveBuffer lives, even if the ReceiveBuffer is moved.
  ReplicationPage page() const;
  // The place of member number `place`; empty until the places exist. Call the functions below only once they exist.
  std::span<std::byte> bytes(std::size_t place) const { return places_[place]; }

  // Trainer: begin() announces which checkpoint arrives at the place from now on. received() says how many of its bytes
  // have arrived.
  void begin(std::size_t place, CheckpointId checkpoint);
  void received(std::size_t place, std::uint64_t size_bytes);

  // Agent: returns how many of the checkpoint's first bytes the trainer says have arrived. Never more than the place
  // holds.
  std::uint64_t received(std::size_t place, CheckpointId checkpoint) const;

 private:
  ReceiveBuffer(UniqueFd fd, Mapping words, const Group& group);
  void map_places(std::span<const std::uint64_t> capacities_bytes);

  UniqueFd fd_;
  Mapping words_, room_;
  // Kept here, because the other side might change it in the file.
  Group group_;
  std::vector<std::span<std::byte>> places_;
};

}  // namespace ckpt::arena
