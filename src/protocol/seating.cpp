#include "protocol/seating.hpp"

#include <algorithm>
#include <map>
#include <string_view>
#include <utility>

#include "protocol/hash.hpp"

namespace ckpt::protocol {

namespace {

std::uint64_t hash_of(std::uint64_t hash, const Seat& seat) {
  for (const std::uint64_t number : {std::uint64_t{seat.rank}, std::uint64_t{seat.node}, seat.arena_id,
                                     std::uint64_t{seat.restored_parts}, std::uint64_t{seat.wants_path}}) {
    hash = protocol::hash_of(hash, number);
  }
  for (const std::string* text : {&seat.domain, &seat.main_shard, &seat.private_shard}) {
    hash = protocol::hash_of(protocol::hash_of(hash, text->size()), *text);
  }
  return hash;
}

}  // namespace

SeatsName name_of(std::uint64_t life, const std::vector<Seat>& seats) {
  std::uint64_t digest = protocol::hash_of(hash_begin, life);
  for (const Seat& seat : seats) digest = hash_of(digest, seat);
  return {life, static_cast<std::uint32_t>(seats.size()), digest};
}

bool is_named(const SeatsName& name, const std::vector<Seat>& seats) {
  for (std::size_t i = 0; i < seats.size(); ++i) {
    if (seats[i].rank != i) return false;
  }
  return name_of(name.life, seats) == name;
}

const Cut* find_cut(const std::vector<Cut>& cuts, const std::string& main_shard) {
  const auto found = std::lower_bound(cuts.begin(), cuts.end(), main_shard,
                                      [](const Cut& cut, const std::string& shard) { return cut.shard < shard; });
  return found != cuts.end() && found->shard == main_shard ? &*found : nullptr;
}

Seating::Seating(std::uint64_t life, std::vector<Seat> seats)
    : name_(name_of(life, seats)), seats_(std::move(seats)), arenas_(seats_.size()) {
  std::map<std::string_view, std::uint32_t> cut;
  for (const Seat& seat : seats_) {
    if (arenas_.emplace(seat.node, seat.arena_id).second) members_.push_back({seat.node, seat.arena_id});
    if (seat.restored_parts > 1) cut[seat.main_shard] = seat.restored_parts;
  }
  for (const auto& [shard, parts] : cut) cuts_.push_back({std::string(shard), parts});
}

bool Seating::is_member(NodeId node, std::uint64_t arena_id) const {
  const auto found = arenas_.find(node);
  return found != arenas_.end() && found->second == arena_id;
}

}  // namespace ckpt::protocol
