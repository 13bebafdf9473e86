// plan_recovery() chooses the checkpoint to restore. It takes the newest one for which *every* shard has a source. It
// ignores newer ones of which some shard has none. Pure functions of the nodes' reports.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "core/messages.hpp"
#include "core/pieces.hpp"

namespace ckpt::core {

using Inventory = std::map<CheckpointId, Pieces>;

// An order to fetch names at most this many sources.
inline constexpr std::size_t sources_max = 4;

bool is_held_by(const Holders& holders, NodeId node);

// The world size of the job that captured these pieces of one checkpoint. `pieces` must not be empty.
inline std::uint32_t world_size_of(const Pieces& pieces) { return pieces.begin()->second.front().piece->world_size; }

// All pieces in the reports, by checkpoint. Borrows from the reports, which must be in order of their nodes.
Inventory take_inventory(const std::vector<const Report*>& reports);

// All holders of one piece must agree on its digest and length. Otherwise the data was silently corrupted when it was
// captured. Returns the first holder that differs from holder 0, or null.
const Holder* dissenter(const Holders& holders);
inline bool agree(const Holders& holders) { return dissenter(holders) == nullptr; }

// Two nodes that contradict each other: their bytes of a shard differ, or one has parity of other bytes.
struct Disagreement {
  std::string_view shard;  // borrowed
  NodeId node = 0;
  NodeId other = 0;
};
std::optional<Disagreement> find_disagreement(const Pieces& pieces);
std::optional<Disagreement> find_contradicting_parity(const Pieces& pieces);
// `outsiders` are nodes that took no part in the incarnation. If a piece of an outsider differs from the same piece of
// another node that is no outsider, removes all pieces of that outsider. Returns one such disagreement, or nothing.
std::optional<Disagreement> leave_out_contradicting(Pieces& pieces, const std::set<NodeId>& outsiders);
// Removes the shards that differ between nodes, and parity computed from them. Returns one disagreement.
std::optional<Disagreement> leave_out_disputed(Pieces& pieces);
// Returns a sentence for people: silent data corruption, with the shard and the two nodes that contradict each other.
std::string explain(const Disagreement& disagreement, CheckpointId checkpoint);

struct RecoveryQuestion {
  std::vector<const Report*> reports;    // from the nodes that are present
  std::vector<std::string_view> shards;  // the shards that the new incarnation needs, each once; borrowed
  std::uint32_t world_size = 0;
  std::string_view main_shard;                   // the shard that all ranks have, "" if they have several; borrowed
  std::vector<std::string_view> private_shards;  // by rank; borrowed
  bool members_share = false;                    // all ranks of the last incarnation had `main_shard`
  bool takes_shards = false;                     // all ranks can take over shards
  std::vector<std::string_view> member_shards;   // that the ranks of the last incarnation captured; borrowed
  std::vector<std::string_view> taken_shards;    // that they took over, if they did; borrowed
  std::size_t members_are_as_many = 0;           // so many ranks were in the last incarnation
  std::vector<NodeId> missing;                   // members of the last incarnation that are not present
  std::vector<Member> members;                   // of the last incarnation
  std::uint64_t members_incarnation = 0;         // the last incarnation
  bool members_are_lost = false;                 // the last incarnation's rank assignments are lost
  CheckpointId restored;                         // the checkpoint that it restored
  std::uint32_t restored_ranks = 0;              // with the private shards of this many ranks
  CheckpointId base;                             // newest commit up to `restored`
  std::vector<CheckpointId> whole;               // its checkpoints that are still whole in all places
  CheckpointId first_commit;                     // from the incarnation record
  bool asks_storage = false;                     // there is persistent storage
  std::vector<PieceInfo> stored;                 // pieces on storage
  std::set<CheckpointId> damaged;                // checkpoints on storage that proved damaged when read
  std::vector<std::string> unusable;             // other checkpoints on storage that cannot be used, a sentence each
  std::string storage_trouble;                   // why `stored` may be incomplete, "" if it is complete
};

struct RecoveryAnswer {
  Decision decision;
  CheckpointId base;                 // newest commit up to the checkpoint; kept until the checkpoint has all its copies
  std::uint32_t restored_ranks = 0;  // this many ranks restore a private shard of their own
  // By rank: the shards that it takes over; see RankAssignment. Empty if the ranks restore their own shards.
  std::vector<std::vector<Cut>> takes;
  bool final = false;  // no missing node can change the answer
  std::string alarm;   // why a newer checkpoint was passed over: its ranks captured different bytes; "" if none was
};

// `inventory` has the question's reports and borrows from them.
RecoveryAnswer plan_recovery(const RecoveryQuestion& question, Inventory inventory);
inline RecoveryAnswer plan_recovery(const RecoveryQuestion& question) {
  return plan_recovery(question, take_inventory(question.reports));
}

// Returns a sentence for people: the checkpoint was decided, but the last source of `shards` was lost before every rank
// had them. `missing`: the nodes that do not answer.
std::string explain_stranded(CheckpointId checkpoint, const std::set<std::string>& shards,
                             const std::vector<NodeId>& missing);

}  // namespace ckpt::core
