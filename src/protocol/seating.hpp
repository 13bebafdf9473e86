// Who sits where in a life. A job may have more ranks than one record of the store has room for: seats have records of
// their own, and the life's record names them. That name follows from what they say, so whoever reads them knows
// whether they are the ones that were meant, and nobody ever writes others under it. Pure.
#pragma once

#include <unordered_map>
#include <vector>

#include "protocol/messages.hpp"

namespace ckpt::protocol {

class Seating {
 public:
  Seating() = default;  // of no life
  // `seats` by rank, without gaps.
  Seating(std::uint64_t life, std::vector<Seat> seats);

  const SeatsName& name() const { return name_; }
  const std::vector<Seat>& seats() const { return seats_; }
  const std::vector<Member>& members() const { return members_; }  // nodes, in the order of their lowest ranks
  const std::vector<Cut>& cuts() const { return cuts_; }           // of the restored version, by shard

  // With this arena.
  bool is_member(NodeId node, std::uint64_t arena_id) const;

 private:
  SeatsName name_;
  std::vector<Seat> seats_;
  std::vector<Member> members_;
  std::vector<Cut> cuts_;
  std::unordered_map<NodeId, std::uint64_t> arenas_;  // of the members
};

SeatsName name_of(std::uint64_t life, const std::vector<Seat>& seats);

// How the version has a main shard; null where it is not cut. `cuts` by shard.
const Cut* find_cut(const std::vector<Cut>& cuts, const std::string& main_shard);

// What was read under that name is what was written under it.
bool is_named(const SeatsName& name, const std::vector<Seat>& seats);

}  // namespace ckpt::protocol
