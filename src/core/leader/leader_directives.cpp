// The leader's directives: what it tells each node, and which pieces the node should fetch from where.
#include <algorithm>
#include <iterator>
#include <set>
#include <utility>

#include "core/leader/leader.hpp"
#include "core/leader/restore_chain.hpp"
#include "core/lists.hpp"

namespace ckpt::core {

namespace {

constexpr std::size_t listed_max = 64;  // of nodes or ranks that are waited for; people need not see all
constexpr std::size_t orders_max = 64;  // for one node at a time; the next ones follow as it reports
constexpr std::size_t calls_max = 64;   // at a time; the next ones are called next time

}  // namespace

void Leader::send_directives(TimeMs now, Effects& effects) {
  fetching_.clear();
  const Directive common = common_directive();
  std::map<NodeId, DirectiveBatch> batches;  // by the relay that hands them out
  for (auto& [node, peer] : view_.peers) {
    if (now - peer.received_at > view_.config.node_timeout_ms) continue;
    Answer& answer = answers_[node];
    Directive directive = directive_for(peer, common, now);
    directive.sequence = answer.last.sequence;  // equal, so that the comparison ignores it
    // Its times change at every look, so they travel only with other news.
    if (health_.says_the_same(answer.last.health)) directive.health = answer.last.health;
    if (suspicions_.current().says_the_same(answer.last.suspicion)) directive.suspicion = answer.last.suspicion;
    if (directive == answer.last && !answer.is_due) continue;
    directive.sequence = ++directive_sequence_;
    directive.health = health_;
    directive.suspicion = suspicions_.current();
    answer.last = directive;
    answer.is_due = false;
    batches[peer.via].items.push_back({node, std::move(directive)});
  }
  for (auto& [via, batch] : batches) send_batch(via, std::move(batch.items), effects);
  call_absent(common, now, effects);
}

// A member that was never heard in this term may be unable to read the store, and still lead by itself or report to a
// former leader. A directive tells it who leads now. The predecessor is told at once: its silence in the store may be
// the store's fault.
void Leader::call_absent(const Directive& common, TimeMs now, Effects& effects) {
  if (const NodeId predecessor = losses_.take_predecessor_to_call(); predecessor != no_node)
    call(predecessor, common, now, effects);
  if (now - std::max(called_at_, *led_since_) < view_.config.node_timeout_ms / 4) return;
  called_at_ = now;
  std::vector<NodeId> absent;
  std::copy_if(view_.missing.begin(), view_.missing.end(), std::back_inserter(absent), [&](NodeId node) {
    const auto peer = view_.peers.find(node);
    return peer == view_.peers.end() || peer->second.report.epoch != view_.epoch;
  });
  std::sort(absent.begin(), absent.end());
  std::rotate(absent.begin(), std::upper_bound(absent.begin(), absent.end(), called_last_), absent.end());
  absent.resize(std::min(absent.size(), calls_max));
  for (const NodeId node : absent) call(called_last_ = node, common, now, effects);
}

void Leader::call(NodeId node, const Directive& common, TimeMs now, Effects& effects) {
  Peer unheard;
  unheard.report.node = node;
  Directive directive = directive_for(unheard, common, now);
  directive.sequence = ++directive_sequence_;
  effects.push_back(Send{node, std::move(directive)});
}

// Answers a node directly if it reported directly.
void Leader::send_batch(NodeId via, std::vector<DirectiveBatch::Item> items, Effects& effects) {
  DirectiveBatch batch;
  std::size_t batch_size = 0;
  for (DirectiveBatch::Item& item : items) {
    if (items.size() == 1 && item.to == via) {
      effects.push_back(Send{via, std::move(item.directive)});
      return;
    }
    batch_size += 1 + item.directive.fetches.size();
    batch.items.push_back(std::move(item));
    if (batch_size < batch_max) continue;
    effects.push_back(Send{via, std::exchange(batch, {})});
    batch_size = 0;
  }
  if (!batch.items.empty()) effects.push_back(Send{via, std::move(batch)});
}

// The part of the directive that is the same for all nodes.
Directive Leader::common_directive() const {
  Directive directive;
  directive.leader = view_.config.node;
  directive.epoch = view_.epoch;
  directive.incarnation = view_.record->incarnation;
  directive.health = health_;
  directive.suspicion = suspicions_.current();
  directive.halt = halts_.current();
  directive.decision = view_.record->decision;
  directive.committed = commits_.committed();
  directive.abandoned = commits_.abandoned();
  directive.resume_at = commits_.resume_at();
  directive.stranded = restore_progress_.stranded();
  directive.alarm = view_.alarm;
  directive.roll_call = decision_.roll_call();
  directive.reading_storage = restore_progress_.is_reading_storage();
  directive.stored = storage_.stored();
  directive.stored_skipped = storage_.skipped();
  directive.storage_trouble = view_.config.storage ? storage_.trouble() : storage_.why_unknown(view_.present);
  if (view_.record->decision.verdict == Verdict::undecided) {
    for (Rank rank = 0; rank < view_.record->world_size && directive.missing_ranks.size() < listed_max; ++rank) {
      const auto bound = view_.bindings.find(rank);
      if (bound == view_.bindings.end() || !bound->second.rank.waiting) directive.missing_ranks.push_back(rank);
    }
    directive.missing_nodes = view_.missing;
    directive.missing_nodes.resize(std::min(view_.missing.size(), listed_max));
  } else {
    directive.copies_now = health_.copies_now;
    directive.parity_now = health_.parity_now;
    directive.replacements = view_.record->replacements;
    directive.replacements.resize(std::min(directive.replacements.size(), listed_max));
  }
  return directive;
}

Directive Leader::directive_for(const Peer& peer, Directive directive, TimeMs now) const {
  const NodeId node = peer.report.node;
  directive.acknowledged_agent = peer.report.agent_id;
  directive.acknowledged_report = peer.report.sequence;
  directive.relay = view_.groups.relay_of(node);
  directive.write = storage_.order_for(node);
  for (const RankReport& rank : peer.report.ranks) {
    const auto bound = view_.bindings.find(rank.rank);
    if (auto refusal = admission_.refusal_of(node, rank)) {
      directive.refused.push_back(std::move(*refusal));
    } else if (bound != view_.bindings.end() && bound->second.rank.instance == rank.instance) {
      directive.admitted.push_back({rank.rank, rank.instance});
      if (const Cut* cut = find_cut(view_.assignment_table.cuts(), rank.main_shard))
        add_once(directive.decision.cuts, *cut);
      if (const Share* share = view_.places.share_of(rank.rank)) {
        directive.admitted.back().share = *share;
        directive.admitted.back().adopts = view_.places.adopted_by(rank.rank);
        directive.admitted.back().takes = view_.places.taken_by(rank.rank);
        directive.admitted.back().is_replicated = view_.places.is_replicated();
      }
      if (const ReplicationGroup* replication = view_.places.replication_of(rank.rank))
        directive.admitted.back().replication = *replication;
    }
  }
  if (view_.record->decision.verdict == Verdict::undecided) return directive;
  for (const auto& [place, role] : view_.places.own_of(node)) {
    if (role.holds) directive.wanted.push_back(place->first);
  }
  if (!takes_orders(peer)) return directive;
  const CheckpointId base = std::max(commits_.committed(), view_.record->decision.checkpoint);
  if (const auto reads = reads_.find(node); reads != reads_.end()) {
    const std::size_t count = std::min(reads->second.size(), orders_max);
    directive.fetches.assign(reads->second.begin(), reads->second.begin() + static_cast<std::ptrdiff_t>(count));
  }
  if (base) add_fetches(node, base, now, directive);
  // Oldest first, so that all nodes have the same checkpoints in their last slots. A leader that has not heard every
  // member knows less of some checkpoints than of others, and might order only the newer one. But a commit that some
  // node knows of is protected at once, even if this leader does not see it whole yet.
  const CheckpointId newest = view_.missing.empty() ? CheckpointId::from_word(UINT64_MAX) : commits_.newest_known();
  for (const auto& [checkpoint, pieces] : view_.inventory) {
    if (checkpoint > newest) break;
    if (checkpoint <= base || checkpoint.incarnation() != view_.record->incarnation ||
        contains(commits_.abandoned(), checkpoint))
      continue;
    add_fetches(node, checkpoint, now, directive);
  }
  return directive;
}

// False before the leader knows its pieces. A node that replaced a member waits for the incarnation in which it gets a
// rank.
bool Leader::takes_orders(const Peer& peer) const {
  return peer.report.epoch == view_.epoch &&
         (view_.assignment_table.is_member(peer.report.node, peer.report.arena_id) ||
          view_.is_replacement(peer.report));
}

// A checkpoint to be restored goes to all nodes that restore from it. A committed one goes to nodes that must hold it
// and have lost it. One on its way to a commit goes to nodes that do not capture it themselves.
bool Leader::should_have(const Role& role, CheckpointId checkpoint) const {
  if (checkpoint == view_.record->decision.checkpoint) return role.holds || role.owns;
  const bool has_it_soon = checkpoint > commits_.committed() && role.captures;
  return role.holds && !has_it_soon;
}

// A shard of the checkpoint to restore stays in the plan when some node has decoded it. Otherwise all others would
// fetch it from there, although they are about to decode it. But if a further shard is lost, that one may be decoded
// from it. While members are missing, nobody knows what is lost for good.
void Leader::reconcile_decoding(TimeMs now) {
  const CheckpointId restored = view_.record->decision.checkpoint;
  decodable_.clear();
  local_decoding_ = {};
  for (const auto& [checkpoint, pieces] : view_.inventory) {
    if (checkpoint < std::max(commits_.committed(), restored)) continue;
    auto& lost = decodable_[checkpoint] = decodable(pieces);
    if (checkpoint != restored) continue;
    const auto was_lost = [&](const auto& entry) { return lost_.contains(entry.first); };
    if (!std::all_of(lost.begin(), lost.end(), was_lost)) lost_.clear();
    if (!lost_.empty()) lost = decodable(pieces, lost_);
    if (lost.empty()) continue;
    if (view_.missing.empty())
      for (const auto& [shard, coded_piece] : lost) lost_.insert(shard);
    local_decoding_ = plan_local_decoding(lost, pieces, view_.places.of(restored),
                                          [&](NodeId node) { return fetches_now(node, now); });
  }
}

void Leader::add_fetches(NodeId node, CheckpointId checkpoint, TimeMs now, Directive& directive) const {
  const auto pieces = view_.inventory.find(checkpoint);
  if (pieces == view_.inventory.end()) return;
  const auto& decoded = decodable_.at(checkpoint);
  const bool restores = checkpoint == view_.record->decision.checkpoint;
  for (const auto& [entry, role] : view_.places.of(node, checkpoint)) {
    if (directive.fetches.size() >= orders_max) return;
    if (!should_have(role, checkpoint)) continue;
    const auto& [shard, place] = *entry;
    const auto holders = pieces->second.find(shard);
    const auto lost = decoded.find(shard);
    if (holders != pieces->second.end() && is_held_by(holders->second, node)) continue;
    if (restores && local_decoding_.decodes(node, shard)) continue;  // see add_local_decoding()
    if (holders != pieces->second.end()) {
      directive.fetches.push_back(restores ? restore_of(node, *entry, holders->second, now)
                                           : fetch_of(node, place, holders->second));
    } else if (place.parity) {
      if (auto made = plan_encoding(*place.parity, checkpoint, world_size_of(pieces->second), pieces->second))
        directive.fetches.push_back({std::move(made->piece), {parity_node}, std::move(made->coding_inputs)});
    } else if (lost != decoded.end() && !(restores && local_decoding_.decoders.contains(shard)) &&
               encoder_of(place, checkpoint, now) == node) {
      directive.fetches.push_back({lost->second.piece, {parity_node}, lost->second.coding_inputs});
    }
  }
  if (restores) add_local_decoding(node, pieces->second, directive);
}

// What the node decodes comes last: it is told that only together with the orders to fetch all inputs, or later. A node
// does not wait for inputs that it is not told to fetch, but reads them from the nodes that have them. All nodes would.
void Leader::add_local_decoding(NodeId node, const Pieces& pieces, Directive& directive) const {
  const CheckpointId restored = view_.record->decision.checkpoint;
  const auto place_of = [&](const std::string& piece) -> const Place& {
    static const Place nowhere;  // of parity: the last incarnation may have had other groups
    const auto found = view_.places.of(restored).find(piece);
    return found == view_.places.of(restored).end() ? nowhere : found->second;
  };
  for (const auto& [parity, readers] : local_decoding_.readers) {
    if (directive.fetches.size() >= orders_max) return;
    if (!std::binary_search(readers.begin(), readers.end(), node)) continue;
    const std::string name(parity);
    const Place& place = place_of(name);
    if (!contains(place.holders, node))  // otherwise it has been told
      directive.fetches.push_back(in_chain(node, name, place, readers, pieces.find(parity)->second));
  }
  for (const auto& [shard, decoders] : local_decoding_.decoders) {
    if (directive.fetches.size() >= orders_max) return;
    if (!std::binary_search(decoders.begin(), decoders.end(), node)) continue;
    const std::string name(shard);
    directive.fetches.push_back(decode_of(node, place_of(name), decodable_.at(restored).at(name), pieces));
  }
}

// The order to decode a lost piece. If that fails, the node fetches the piece from one that has decoded it.
FetchOrder Leader::decode_of(NodeId node, const Place& place, const CodedPiece& lost, const Pieces& pieces) {
  FetchOrder order{lost.piece, {parity_node}, lost.coding_inputs};
  const auto holders = pieces.find(lost.piece.shard);
  if (holders == pieces.end()) return order;
  for (const NodeId source : fetch_of(node, place, holders->second).sources)
    if (order.sources.size() < sources_max) order.sources.push_back(source);
  return order;
}

// The order to fetch a piece of the checkpoint that ranks restore.
FetchOrder Leader::restore_of(NodeId node, const Places::value_type& place, const Holders& holders, TimeMs now) const {
  const auto [fetching, is_new] = fetching_.try_emplace(place.first);
  if (is_new) fetching->second = nodes_fetching(place, holders, now);
  return in_chain(node, place.first, place.second, fetching->second, holders);
}

FetchOrder Leader::in_chain(NodeId node, const std::string& piece, const Place& place,
                            const std::vector<NodeId>& fetching, const Holders& holders) const {
  FetchOrder order = fetch_of(node, place, holders);
  const NodeId from = chain_from_.try_emplace(piece, begin_of_chain(place, holders)).first->second;
  if (auto sources = sources_in_chain(node, from, fetching, holders); !sources.empty()) {
    order.sources = std::move(sources);
    order.chain_from = from;
  }
  return order;
}

bool Leader::fetches_now(NodeId node, TimeMs now) const {
  return view_.is_here(node, now) && takes_orders(view_.peers.at(node));
}

std::vector<NodeId> Leader::nodes_fetching(const Places::value_type& place, const Holders& holders, TimeMs now) const {
  std::set<NodeId> nodes(place.second.owners.begin(), place.second.owners.end());
  nodes.insert(place.second.holders.begin(), place.second.holders.end());
  std::erase_if(nodes, [&](NodeId node) {
    return is_held_by(holders, node) || local_decoding_.decodes(node, place.first) || !fetches_now(node, now);
  });
  return {nodes.begin(), nodes.end()};
}

// A few sources are enough. First those that captured it, then others, starting with the node's neighbour, so that not
// all nodes ask the same ones.
FetchOrder Leader::fetch_of(NodeId node, const Place& place, const Holders& holders) {
  FetchOrder order{*holders.front().piece, {}, {}};
  for (const NodeId preferred : place.capturers) {
    if (order.sources.size() < sources_max && is_held_by(holders, preferred)) order.sources.push_back(preferred);
  }
  const auto next = std::upper_bound(holders.begin(), holders.end(), node,
                                     [](NodeId wanted, const Holder& holder) { return wanted < holder.node; });
  const auto first = static_cast<std::size_t>(next - holders.begin());
  for (std::size_t i = 0; i < holders.size() && order.sources.size() < sources_max; ++i) {
    add_once(order.sources, holders[(first + i) % holders.size()].node);
  }
  return order;
}

// One node decodes a lost piece. The others then fetch it from there.
NodeId Leader::encoder_of(const Place& place, CheckpointId checkpoint, TimeMs now) const {
  for (const auto* nodes : {&place.owners, &place.holders}) {
    for (const NodeId node : *nodes) {
      const auto peer = view_.peers.find(node);
      if (peer != view_.peers.end() && view_.is_present(peer->second, now) &&
          should_have(role_of(node, place), checkpoint))
        return node;
    }
  }
  return no_node;
}

}  // namespace ckpt::core
