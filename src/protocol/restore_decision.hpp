// Which checkpoint to restore: the newest for which *every* shard has a source, never a maximum over nodes. Pure
// functions of what the nodes report.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "protocol/messages.hpp"
#include "protocol/pieces.hpp"

namespace ckpt::protocol {

using Inventory = std::map<CheckpointId, Pieces>;

// So many of them are told to whoever needs the piece: the others are not worth the words.
inline constexpr std::size_t sources_max = 4;

bool is_held_by(const Holders& holders, NodeId node);

// Borrows from the reports, which are in the order of their nodes.
Inventory take_inventory(const std::vector<const Report*>& reports);

// All holders of one piece must agree on its digest and length; a disagreement is silent corruption at the capture.
// The first that does not agree with the first of all, null where there is none.
const Holder* dissenter(const Holders& holders);
inline bool agree(const Holders& holders) { return dissenter(holders) == nullptr; }

// Two nodes of which one has other bytes of a captured shard than the other, or parity that was made of others.
struct Disagreement {
  std::string_view shard;  // borrowed
  NodeId node = 0;
  NodeId other = 0;
};
std::optional<Disagreement> find_disagreement(const Pieces& pieces);
std::optional<Disagreement> find_contradicting_parity(const Pieces& pieces);
// Leaves out the nodes among `outsiders` that contradict any other node, with all that they have of the checkpoint;
// tells one contradiction.
std::optional<Disagreement> leave_out_contradicting(Pieces& pieces, const std::set<NodeId>& outsiders);
// Leaves out the shards of which nodes have different bytes, and parity that was made of them; tells one of them.
std::optional<Disagreement> leave_out_disputed(Pieces& pieces);
// For people.
std::string explain(const Disagreement& disagreement, CheckpointId checkpoint);

struct RecoveryQuestion {
  std::vector<const Report*> reports;    // of the nodes that are present
  std::vector<std::string_view> shards;  // that the new incarnation needs, each once; borrowed
  std::uint32_t world_size = 0;
  std::vector<NodeId> missing;            // members of the last incarnation that are not present
  std::vector<Member> members;            // of the last incarnation
  std::uint64_t members_incarnation = 0;  // the last incarnation
  bool members_are_lost = false;          // there was one, and nobody knows who took part in it
  CheckpointId restored;                  // what it went on from
  CheckpointId base;                      // newest commit that it went on from
  std::vector<CheckpointId> whole;        // of the last incarnation: in all their places
  CheckpointId first_commit;              // known from the store
  bool asks_storage = false;              // there is persistent storage
  std::vector<PieceInfo> stored;          // on it
  std::set<CheckpointId> damaged;         // checkpoints there that proved so when they were read
  std::vector<std::string> unusable;      // further ones that cannot be used, a sentence each
  std::string storage_trouble;            // why there may be more than that, "" where that is all
};

struct RecoveryAnswer {
  Decision decision;
  CheckpointId base;   // newest commit that is not newer than the checkpoint: kept until that has all its copies
  bool final = false;  // what missing nodes might hold cannot change it
  std::string alarm;   // why something newer was passed over: its ranks captured different bytes; "" if none
};

// `inventory`: of the question's reports, and borrowed from them.
RecoveryAnswer plan_recovery(const RecoveryQuestion& question, Inventory inventory);
inline RecoveryAnswer plan_recovery(const RecoveryQuestion& question) {
  return plan_recovery(question, take_inventory(question.reports));
}

// For people: the checkpoint was decided, but the last source of some shards is gone before every rank had them.
std::string explain_stranded(CheckpointId checkpoint, const std::set<std::string>& shards,
                             const std::vector<NodeId>& missing);

}  // namespace ckpt::protocol
