#include "core/leader/restore_decision.hpp"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "core/leader/rank_assignments.hpp"
#include "core/parity_pieces.hpp"

namespace ckpt::core {

namespace {

std::string describe(CheckpointId checkpoint) {
  return "iteration " + std::to_string(checkpoint.iteration()) + " of incarnation " +
         std::to_string(checkpoint.incarnation());
}

std::string describe_source(NodeId node) {
  if (node == storage_node) return "storage";
  return node == parity_node ? "what was decoded from parity" : "node " + std::to_string(node);
}

template <class List>
std::string join(const List& items, std::size_t limit = 8) {
  std::string text;
  std::size_t count = 0;
  for (const auto& item : items) {
    if (count == limit) return text + ", and " + std::to_string(items.size() - limit) + " more";
    if (count++ > 0) text += ", ";
    if constexpr (std::is_convertible_v<decltype(item), std::string>)
      text += item;
    else
      text += std::to_string(item);
  }
  return text;
}

bool usable(const Pieces& pieces, std::string_view part, std::uint32_t world_size) {
  const auto it = pieces.find(part);
  return it != pieces.end() && agree(it->second) && it->second.front().piece->world_size == world_size;
}

// In how many parts any pieces of each cut shard exist.
using Cuts = std::map<std::string, std::set<std::uint32_t>, std::less<>>;
Cuts cuts_in(const Pieces& pieces) {
  Cuts cuts;
  for (const auto& [name, holders] : pieces) {
    if (!may_be_part(name)) continue;
    const ShardPart part = parse_part(name);
    if (part.of > 1) cuts[part.shard].insert(part.of);
  }
  return cuts;
}

// In how many parts the shard is available; 0: it is not.
std::uint32_t usable_cut(const Pieces& pieces, const Cuts& cuts, std::string_view shard, std::uint32_t world_size) {
  if (usable(pieces, shard, world_size)) return 1;
  const auto found = cuts.find(shard);
  if (found == cuts.end()) return 0;
  for (const std::uint32_t of : found->second) {
    const auto parts = parts_of(found->first, of);
    if (std::all_of(parts.begin(), parts.end(), [&](const auto& part) { return usable(pieces, part, world_size); })) {
      return of;
    }
  }
  return 0;
}

// What the incarnation needs of one checkpoint.
struct Needs {
  std::uint32_t world_size = 0;  // of the job that captured it
  std::uint32_t ranks = 0;       // so many ranks restore a private shard of their own
  std::vector<std::string_view> shards;
  bool is_replicated = true;   // or captured by as many ranks as there are now
  bool is_taken_over = false;  // the ranks share out all shards of the checkpoint

  bool can_restore() const { return is_replicated || is_taken_over; }
};

// Whether the last incarnation proves that the checkpoint has one main shard: all its ranks shared this shard, and
// either captured the checkpoint or restored it as it was. Ranks that took over the shards of others prove nothing
// about them: a single rank always "shares" its main shard.
bool members_prove_sharing(CheckpointId checkpoint, const RecoveryQuestion& question) {
  if (!question.members_share) return false;
  if (checkpoint.incarnation() == question.members_incarnation) return true;
  if (!question.taken_shards.empty()) return false;
  return !question.takes_shards || checkpoint == question.restored;
}

// Whether nothing but one main shard, and private shards, was ever captured for the checkpoint. What is seen of it does
// not tell by itself: all nodes that had another main shard may be gone.
bool is_replicated(const Pieces& pieces, CheckpointId checkpoint, const RecoveryQuestion& question) {
  const auto is_part_of_it = [&](std::string_view name) {
    return name.empty() || name.ends_with(private_suffix) || parse_part(name).shard == question.main_shard;
  };
  bool is_proven = members_prove_sharing(checkpoint, question);
  for (const auto& [name, holders] : pieces) {
    for (const Holder& holder : holders) {
      const auto& made_of = holder.piece->parity_manifest.sources;
      if (!std::all_of(made_of.begin(), made_of.end(), [&](const auto& each) { return is_part_of_it(each.shard); }))
        return false;
      if (holder.node == storage_node) is_proven = true;  // which names all shards
    }
    if (name.starts_with(parity_prefix)) continue;
    if (!is_part_of_it(name)) return false;
    if (parse_part(name).of == world_size_of(pieces)) is_proven = true;  // a part per rank that names the shard
  }
  return is_proven && !question.main_shard.empty();
}

// Every shard of the checkpoint, private shards in the order of their ranks. Empty if the checkpoint may have had more
// shards than are known: the pieces that nodes report do not tell which other shards there were.
std::vector<std::string_view> all_shards_of(const Pieces& pieces, CheckpointId checkpoint,
                                            const RecoveryQuestion& question) {
  const bool is_of_members = checkpoint.incarnation() == question.members_incarnation;
  const bool is_restored = checkpoint == question.restored;
  std::set<std::string_view> shards;
  if (!is_of_members && is_restored && !question.taken_shards.empty()) {
    shards.insert(question.taken_shards.begin(), question.taken_shards.end());
  } else if (is_of_members || (is_restored && question.members_are_as_many == world_size_of(pieces))) {
    shards.insert(question.member_shards.begin(), question.member_shards.end());
  } else if (std::any_of(pieces.begin(), pieces.end(),
                         [](const auto& entry) { return entry.second.back().node == storage_node; })) {
    for (const auto& [name, holders] : pieces) {
      if (!name.starts_with(parity_prefix)) shards.insert(name.substr(0, parse_part(name).shard.size()));
    }
  }
  const auto is_private = [](std::string_view shard) { return shard.ends_with(private_suffix); };
  const auto privates = std::count_if(shards.begin(), shards.end(), is_private);
  if (static_cast<std::uint32_t>(privates) != world_size_of(pieces)) return {};
  std::vector<std::string_view> ordered(shards.begin(), shards.end());
  std::stable_sort(ordered.begin(), ordered.end(), [](auto a, auto b) { return a.size() < b.size(); });
  return ordered;
}

// How many shards, private and main ones, one of `ranks` ranks takes over from `earlier` ones, at most.
std::size_t most_taken(std::uint32_t earlier, std::uint32_t ranks) {
  return 2 * ((std::size_t{earlier} + ranks - 1) / ranks);
}

// All shards of the checkpoint, if the ranks can share them out.
std::optional<std::vector<std::string_view>> shards_to_take(const Pieces& pieces, CheckpointId checkpoint,
                                                            const RecoveryQuestion& question) {
  if (!question.takes_shards) return std::nullopt;
  auto shards = all_shards_of(pieces, checkpoint, question);
  if (shards.empty() || most_taken(world_size_of(pieces), question.world_size) > taken_shards_max) return std::nullopt;
  return shards;
}

// As many ranks split their state otherwise if they need a shard that the checkpoint never had. Without a list of its
// shards, the shard counts as lost.
void take_over_other_split(Needs& needs, const Pieces& pieces, CheckpointId checkpoint,
                           const RecoveryQuestion& question) {
  auto shards = shards_to_take(pieces, checkpoint, question);
  if (!shards) return;
  const std::unordered_set<std::string_view> there(shards->begin(), shards->end());
  needs.is_taken_over = std::any_of(needs.shards.begin(), needs.shards.end(),
                                    [&](std::string_view needed) { return !there.contains(needed); });
  if (needs.is_taken_over) needs.shards = std::move(*shards);
}

// Another number of ranks restores the one main shard, and the private shards of ranks that there were. An incarnation
// with fewer ranks may have gone on from the checkpoint: then the private shards of the others are void.
Needs needs_of(const Pieces& pieces, CheckpointId checkpoint, const RecoveryQuestion& question) {
  Needs needs{world_size_of(pieces), 0, question.shards};
  needs.ranks = needs.world_size;
  if (checkpoint == question.restored && question.restored_ranks != 0)
    needs.ranks = std::min(needs.ranks, question.restored_ranks);
  if (needs.ranks == question.world_size && needs.world_size == question.world_size) {
    take_over_other_split(needs, pieces, checkpoint, question);
    return needs;
  }
  needs.is_replicated = is_replicated(pieces, checkpoint, question);
  if (!needs.is_replicated) {
    if (needs.ranks != needs.world_size) return needs;  // void shards have parts of tensors
    auto shards = shards_to_take(pieces, checkpoint, question);
    needs.is_taken_over = shards.has_value();
    if (shards) needs.shards = std::move(*shards);
    return needs;
  }
  needs.ranks = std::min(needs.ranks, question.world_size);
  needs.shards.assign(question.private_shards.begin(), question.private_shards.begin() + needs.ranks);
  needs.shards.push_back(question.main_shard);
  return needs;
}

std::set<std::string> unusable(const Inventory& inventory, CheckpointId checkpoint, const RecoveryQuestion& question) {
  const auto pieces = inventory.find(checkpoint);
  if (pieces == inventory.end()) return {question.shards.begin(), question.shards.end()};
  const Cuts cuts = cuts_in(pieces->second);
  const Needs needs = needs_of(pieces->second, checkpoint, question);
  std::set<std::string> shards;
  for (const auto& shard : needs.shards) {
    if (!needs.can_restore() || usable_cut(pieces->second, cuts, shard, needs.world_size) == 0) shards.emplace(shard);
  }
  return shards;
}

// By shard.
std::vector<Cut> cuts_of(const Pieces& pieces, const Needs& needs) {
  const Cuts there = cuts_in(pieces);
  std::vector<Cut> cuts;
  for (const std::string_view shard : needs.shards) {
    if (!there.contains(shard)) continue;
    const std::uint32_t of = usable_cut(pieces, there, shard, needs.world_size);
    if (of > 1) cuts.push_back({std::string(shard), of});
  }
  std::sort(cuts.begin(), cuts.end(), [](const Cut& a, const Cut& b) { return a.shard < b.shard; });
  return cuts;
}

// Rank r takes over the private shards of ranks r, r + n, r + 2n ... of the earlier ones, if there are n ranks now, and
// main shards likewise. Ranks for which no private shard is left take rank 0's.
std::vector<std::vector<Cut>> shared_out(const Needs& needs, const std::vector<Cut>& cuts,
                                         const RecoveryQuestion& question) {
  std::vector<std::vector<Cut>> takes(question.world_size);
  std::vector<std::string_view> main, private_;
  for (const std::string_view shard : needs.shards)
    (shard.ends_with(private_suffix) ? private_ : main).push_back(shard);
  for (std::size_t i = 0; i < std::max(takes.size(), private_.size()); ++i)
    takes[i % takes.size()].push_back({std::string(private_[i < private_.size() ? i : 0]), 1});
  for (std::size_t i = 0; i < main.size(); ++i) {
    const Cut* cut = find_cut(cuts, std::string(main[i]));
    takes[i % takes.size()].push_back({std::string(main[i]), cut == nullptr ? 1 : cut->of});
  }
  return takes;
}

// `alarm`: see RecoveryAnswer.
CheckpointId newest_solvable(const Inventory& inventory, const RecoveryQuestion& question, std::string& alarm) {
  for (auto it = inventory.rbegin(); it != inventory.rend(); ++it) {
    const auto& [checkpoint, pieces] = *it;
    auto disagreement = find_disagreement(pieces);
    if (!disagreement) disagreement = find_contradicting_parity(pieces);
    if (disagreement && alarm.empty()) alarm = explain(*disagreement, checkpoint);
    if (!disagreement && unusable(inventory, checkpoint, question).empty()) return checkpoint;
  }
  return {};
}

// Whether the job went on without the commit. The last incarnation voided what older incarnations committed beyond the
// checkpoint that it restored, so nobody kept its copies since. If the job continues from the last incarnation, or from
// the checkpoint that it restored, commits of incarnations before that one are void, too.
bool is_void(CheckpointId commit, CheckpointId limit, const RecoveryQuestion& question) {
  const bool goes_on = limit.incarnation() == question.members_incarnation || limit == question.restored;
  if (goes_on) return commit.incarnation() < limit.incarnation();
  return commit.incarnation() < question.members_incarnation && commit > question.restored;
}

// Returns the newest checkpoint up to `limit` that is known as committed and is not void. It need not be complete here:
// a node that does not answer may have the rest. A complete checkpoint may be a commit that only a dead leader knew of.
// The limit itself must first get its copies again.
CheckpointId newest_commit_until(CheckpointId limit, const RecoveryQuestion& question) {
  CheckpointId newest = question.base <= limit ? question.base : CheckpointId();
  const auto consider = [&](CheckpointId commit) {
    if (commit <= limit && !is_void(commit, limit, question)) newest = std::max(newest, commit);
  };
  for (const CheckpointId whole : question.whole)
    if (whole < limit) newest = std::max(newest, whole);
  consider(question.first_commit);
  for (const PieceInfo& piece : question.stored) consider(piece.checkpoint);
  for (const Report* report : question.reports) consider(report->highest_commit);
  return newest;
}

// The world size of the newest checkpoint that only as many ranks as captured it can restore, or 0. Skips
// checkpoints that the last incarnation discarded, because it restored an older one.
std::uint32_t foreign_world_size(const Inventory& inventory, const RecoveryQuestion& question) {
  for (auto it = inventory.rbegin(); it != inventory.rend(); ++it) {
    if (it->first > question.restored && it->first.incarnation() < question.members_incarnation) continue;
    const Needs needs = needs_of(it->second, it->first, question);
    if (!needs.can_restore()) return needs.world_size;
  }
  return 0;
}

std::string mismatch_text(std::uint32_t stored, std::uint32_t world_size) {
  return "the stored checkpoints are of a job of " + std::to_string(stored) + " ranks, and this job has " +
         std::to_string(world_size) +
         ". Another number of ranks can restore a checkpoint only if all ranks share one main shard, or if all ranks "
         "use a Checkpointer. The nodes that answer, or storage, must also show which shards the checkpoint has. "
         "Start " +
         std::to_string(stored) +
         " ranks. Otherwise load a checkpoint from storage with ckptengine.dcp.Reader, or remove these checkpoints "
         "('ckptctl gc', and 'ckptctl rm' on storage)";
}

// The members of the last incarnation that still have the memory they had then.
std::vector<const Report*> witnesses(const RecoveryQuestion& question) {
  std::unordered_map<NodeId, std::uint64_t> arenas(question.members.size());
  for (const Member& member : question.members) arenas[member.node] = member.arena_id;
  std::vector<const Report*> found;
  for (const Report* report : question.reports) {
    const auto member = arenas.find(report->node);
    if (member != arenas.end() && member->second == report->arena_id) found.push_back(report);
  }
  return found;
}

// True if the node has a shard at `checkpoint` and not newer. A newer commit of the last incarnation would have left
// the newer one there. But damage may have taken it. And a part that several ranks capture is committed without a rank
// that died: so a part proves nothing if anything else on the node is newer.
bool holds_nothing_newer(const Report& report, CheckpointId checkpoint) {
  if (report.newest_damaged > checkpoint) return false;
  const auto& pieces = report.pieces;
  const auto any_newer = [&](const auto& counts) {
    return std::any_of(pieces.begin(), pieces.end(),
                       [&](const PieceInfo& other) { return other.checkpoint > checkpoint && counts(other); });
  };
  return std::any_of(pieces.begin(), pieces.end(), [&](const PieceInfo& piece) {
    const bool is_part = parse_part(piece.shard).of > 1;
    return piece.checkpoint == checkpoint &&
           !any_newer([&](const PieceInfo& other) { return is_part || other.shard == piece.shard; });
  });
}

// Whether the witnesses prove that the last incarnation committed nothing newer.
bool excludes_newer(const std::vector<const Report*>& witnesses, CheckpointId chosen, CheckpointId newest_seen,
                    std::uint64_t last_incarnation) {
  if (witnesses.empty()) return false;
  if (chosen >= newest_seen) return true;  // otherwise somebody would have seen it
  return chosen.incarnation() == last_incarnation &&
         std::any_of(witnesses.begin(), witnesses.end(),
                     [&](const Report* witness) { return holds_nothing_newer(*witness, chosen); });
}

// No record says who took part in the last incarnation, but some node has had its pieces. Then any node may have them.
bool are_members_forgotten(const RecoveryQuestion& question) {
  return question.members.empty() && std::any_of(question.reports.begin(), question.reports.end(),
                                                 [](const Report* report) { return bool(report->newest_seen); });
}

std::string missing_text(const std::vector<NodeId>& missing) {
  if (missing.empty()) return "";
  return "; no answer comes from the nodes with these numbers: " + join(missing) +
         " (ckptctl status --json has their names)";
}

std::string lacking_text(const RecoveryQuestion& question, const std::set<std::string>& shards) {
  const std::string who =
      question.asks_storage ? "neither a node that answers nor storage has" : "no node that answers has";
  const bool has_parity = std::any_of(question.reports.begin(), question.reports.end(), [](const Report* report) {
    return std::any_of(report->pieces.begin(), report->pieces.end(),
                       [](const auto& piece) { return piece.is_parity(); });
  });
  const std::string parity = has_parity ? ", and they cannot be decoded from the parity that is left" : "";
  const std::string steps = question.unusable.empty() ? "" : "; not usable on storage: " + join(question.unusable, 3);
  return who + " its shards " + join(shards) + parity + steps + missing_text(question.missing);
}

// Why the checkpoint, which was committed, cannot be restored.
std::string loss_text(const Inventory& inventory, CheckpointId checkpoint, const RecoveryQuestion& question) {
  const auto pieces = inventory.find(checkpoint);
  if (pieces == inventory.end() || needs_of(pieces->second, checkpoint, question).can_restore())
    return lacking_text(question, unusable(inventory, checkpoint, question));
  return "it is of a job of " + std::to_string(world_size_of(pieces->second)) +
         " ranks, and not all of them are known to share one main shard";
}

std::string give_up_text(const RecoveryQuestion& question) {
  return question.asks_storage ? "'ckptctl gc', and 'ckptctl rm' on storage" : "'ckptctl gc'";
}

// The last incarnation went on from it. The nodes that knew whether it was committed may be gone.
bool is_in_doubt(CheckpointId restored, CheckpointId chosen, CheckpointId base) {
  return restored > std::max(chosen, base);
}

std::string cannot_tell_text(const RecoveryQuestion& question, CheckpointId chosen) {
  if (is_in_doubt(question.restored, chosen, question.base))
    return "the last incarnation went on from " + describe(question.restored) +
           ", which is lost now and may have been committed";
  const auto& trouble = question.storage_trouble;
  return trouble.empty() ? "some nodes of the last incarnation are gone, and only they may have known of it"
                         : "storage does not list all that it has (" + trouble + ")";
}

// What a node knows about the bytes of a captured shard: it has the shard, or parity of it.
struct Claim {
  std::string_view shard;  // borrowed
  NodeId node = 0;
  std::uint64_t root_digest = 0;
};
template <class Notify>
void each_claim(const Pieces& pieces, Notify notify) {
  for (const auto& [name, holders] : pieces) {
    for (const auto& [node, piece] : holders) {
      if (!piece->is_parity()) notify(Claim{name, node, piece->root_digest});
      for (const ParitySource& made_of : piece->parity_manifest.sources)
        if (!made_of.shard.empty()) notify(Claim{made_of.shard, node, made_of.root_digest});
    }
  }
}

template <class IsKept>
Pieces pieces_of(const Pieces& all, IsKept is_kept) {
  Pieces kept;
  for (const auto& [shard, holders] : all) {
    for (const Holder& holder : holders)
      if (is_kept(shard, holder)) kept[shard].push_back(holder);
  }
  return kept;
}

// A piece that can be decoded counts as present.
void add_decodable(Inventory& inventory, std::vector<std::map<std::string, CodedPiece>>& owned) {
  owned.reserve(inventory.size());  // borrowed from
  for (auto& [checkpoint, pieces] : inventory) {
    owned.push_back(decodable(pieces));
    for (const auto& [shard, coded_piece] : owned.back()) pieces[shard].push_back({parity_node, &coded_piece.piece});
  }
}

}  // namespace

Inventory take_inventory(const std::vector<const Report*>& reports) {
  Inventory inventory;
  for (const Report* report : reports) {
    for (const PieceInfo& piece : report->pieces) {
      const auto [pieces, is_new] = inventory.try_emplace(piece.checkpoint);
      if (is_new) pieces->second.reserve(2 * reports.size());
      pieces->second[piece.shard].push_back({report->node, &piece});
    }
  }
  return inventory;
}

bool is_held_by(const Holders& holders, NodeId node) {
  const auto found = std::lower_bound(holders.begin(), holders.end(), node,
                                      [](const Holder& holder, NodeId wanted) { return holder.node < wanted; });
  return found != holders.end() && found->node == node;
}

const Holder* dissenter(const Holders& holders) {
  const PieceInfo& first = *holders.front().piece;
  const Holder* found = std::find_if_not(holders.begin() + 1, holders.end(), [&](const Holder& holder) {
    const PieceInfo& other = *holder.piece;
    return other.root_digest == first.root_digest && other.length_bytes == first.length_bytes &&
           other.layout_bytes == first.layout_bytes && other.world_size == first.world_size &&
           other.parity_manifest == first.parity_manifest;
  });
  return found == holders.end() ? nullptr : found;
}

std::optional<Disagreement> find_disagreement(const Pieces& pieces) {
  for (const auto& [shard, holders] : pieces) {
    if (holders.front().piece->is_parity()) continue;
    if (const Holder* odd = dissenter(holders)) return Disagreement{shard, odd->node, holders.front().node};
  }
  return std::nullopt;
}

// Parity tells what was captured if all nodes that had the shard are gone.
std::optional<Disagreement> find_contradicting_parity(const Pieces& pieces) {
  for (const auto& [name, holders] : pieces) {
    for (const Holder& holder : holders) {
      for (const ParitySource& made_of : holder.piece->parity_manifest.sources) {
        const auto shard = pieces.find(made_of.shard);
        if (shard == pieces.end() || shard->second.front().piece->root_digest == made_of.root_digest) continue;
        return Disagreement{shard->first, holder.node, shard->second.front().node};
      }
    }
  }
  return std::nullopt;
}

std::optional<Disagreement> leave_out_contradicting(Pieces& pieces, const std::set<NodeId>& outsiders) {
  std::unordered_map<std::string_view, Claim> believed;
  each_claim(pieces, [&](const Claim& claim) {
    if (!outsiders.contains(claim.node)) believed.try_emplace(claim.shard, claim);
  });
  std::set<NodeId> left_out;
  std::optional<Disagreement> first;
  each_claim(pieces, [&](const Claim& claim) {
    const auto other = believed.find(claim.shard);
    if (other == believed.end() || other->second.root_digest == claim.root_digest) return;
    if (outsiders.contains(claim.node)) left_out.insert(claim.node);
    if (!first) first = Disagreement{claim.shard, claim.node, other->second.node};
  });
  if (left_out.empty()) return std::nullopt;
  pieces = pieces_of(pieces, [&](std::string_view, const Holder& holder) { return !left_out.contains(holder.node); });
  return first;
}

std::optional<Disagreement> leave_out_disputed(Pieces& pieces) {
  const auto first = find_disagreement(pieces);
  if (!first) return std::nullopt;
  const auto is_disputed = [&](std::string_view shard) {
    const auto holders = pieces.find(shard);
    return holders != pieces.end() && !agree(holders->second);
  };
  pieces = pieces_of(pieces, [&](std::string_view shard, const Holder& holder) {
    const auto& made_of = holder.piece->parity_manifest.sources;
    if (!holder.piece->is_parity()) return !is_disputed(shard);
    return std::none_of(made_of.begin(), made_of.end(), [&](const auto& each) { return is_disputed(each.shard); });
  });
  return first;
}

std::string explain(const Disagreement& disagreement, CheckpointId checkpoint) {
  const auto& [shard, node, other] = disagreement;
  return "silent data corruption: shard " + std::string(shard) + " of iteration " +
         std::to_string(checkpoint.iteration()) + " differs between its ranks; " + describe_source(node) +
         " does not match " + describe_source(other);
}

std::string explain_stranded(CheckpointId checkpoint, const std::set<std::string>& shards,
                             const std::vector<NodeId>& missing) {
  return describe(checkpoint) + " was to be restored, but no node that answers still has its shards " + join(shards) +
         missing_text(missing) + "; start the job again to restore what is left";
}

RecoveryAnswer plan_recovery(const RecoveryQuestion& question, Inventory inventory) {
  std::vector<std::map<std::string, CodedPiece>> decoded;  // borrowed by the inventory
  add_decodable(inventory, decoded);
  CheckpointId newest_commit = std::max(question.first_commit, question.base);
  CheckpointId newest_seen;
  for (const PieceInfo& piece : question.stored) {
    newest_commit = std::max(newest_commit, piece.checkpoint);
    if (!question.damaged.contains(piece.checkpoint))
      inventory[piece.checkpoint][piece.shard].push_back({storage_node, &piece});
  }
  for (const Report* report : question.reports) {
    newest_commit = std::max(newest_commit, report->highest_commit);
    newest_seen = std::max(newest_seen, report->newest_seen);
  }

  RecoveryAnswer answer;
  Decision& decision = answer.decision;
  const CheckpointId chosen = newest_solvable(inventory, question, answer.alarm);
  if (chosen) {
    decision.verdict = Verdict::restore;
    decision.checkpoint = chosen;
    decision.behind = chosen < newest_commit;
    answer.base = newest_commit_until(chosen, question);
    const Needs needs = needs_of(inventory.at(chosen), chosen, question);
    decision.cuts = cuts_of(inventory.at(chosen), needs);
    answer.restored_ranks = needs.ranks;
    if (needs.is_taken_over) answer.takes = shared_out(needs, decision.cuts, question);
    if (decision.behind) {
      decision.text = describe(newest_commit) + " was committed but is lost (" +
                      loss_text(inventory, newest_commit, question) + ")";
    }
  } else if (const std::uint32_t stored = foreign_world_size(inventory, question); stored != 0) {
    decision.verdict = Verdict::mismatch;
    decision.text = mismatch_text(stored, question.world_size);
  } else if (newest_commit) {
    decision.verdict = Verdict::lost;
    decision.text = "beyond tolerance: " + describe(newest_commit) + " was committed, but " +
                    loss_text(inventory, newest_commit, question) +
                    ". More is missing than copies and parity cover. Bring back nodes that had these shards and "
                    "restart the job, or give up this state with " +
                    give_up_text(question);
  } else if (!question.unusable.empty()) {
    decision.verdict = Verdict::lost;
    decision.text = "no node that answers has a checkpoint, and no checkpoint on storage can be used (" +
                    join(question.unusable, 3) + missing_text(question.missing) +
                    "); repair one of these checkpoints and restart the job, or give them up with " +
                    give_up_text(question);
  } else {
    decision.verdict = Verdict::fresh;
  }

  const bool nothing_lost = decision.verdict == Verdict::fresh || (chosen && !decision.behind);
  const bool all_here = question.missing.empty() && !question.members_are_lost && !are_members_forgotten(question);
  const auto testifying = witnesses(question);
  const bool in_doubt = is_in_doubt(question.restored, chosen, question.base);
  const bool nothing_newer =
      nothing_lost && !in_doubt && excludes_newer(testifying, chosen, newest_seen, question.members_incarnation);
  answer.final = nothing_newer || (all_here && nothing_lost);
  // The job's records are gone.
  const bool none_is_known = (chosen && question.members.empty()) || question.members_are_lost;
  decision.status_unknown =
      !nothing_newer && (in_doubt || testifying.size() < question.members.size() || none_is_known);
  if (decision.status_unknown && decision.text.empty()) {
    decision.text =
        "a newer commit may exist, because " + cannot_tell_text(question, chosen) + missing_text(question.missing);
  }
  return answer;
}

}  // namespace ckpt::core
