#include "gpu_replication/replication_manager.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/parity_pieces.hpp"
#include "gpu_replication/parity_place.hpp"

namespace ckpt::agent {
namespace {

using core::NodeId;
using core::Rank;
using core::ReplicationMember;

// An update from a rank's trainer is repeated every tick for a second, and then every tenth tick. The last update, that
// the replication has ended, is repeated for five seconds.
constexpr std::int64_t tick_ms = 100;
constexpr std::uint32_t ticks_of_news = 10, ticks_between = 10, ticks_of_end = 50;
constexpr std::uint64_t piece_bytes_max = std::uint64_t{1} << 50;

core::ReplicationUpdate replication_update_of(std::uint64_t incarnation, Rank from, Rank to,
                                              const arena::ReplicationState& word) {
  core::ReplicationUpdate update{incarnation,
                                 from,
                                 to,
                                 {},
                                 word.state.chunk_bytes,
                                 word.piece_bytes,
                                 word.state.checkpoint,
                                 word.state.length_bytes,
                                 word.state.promised,
                                 word.state.has_given_up};
  if (word.id) {
    const auto* bytes = reinterpret_cast<const std::uint8_t*>(word.id->data());
    update.id.assign(bytes, bytes + word.id->size());
  }
  return update;
}

arena::ReplicationState word_of(const core::ReplicationUpdate& update) {
  arena::ReplicationState word;
  if (update.id.size() == arena::communicator_id_bytes)
    std::memcpy(word.id.emplace().data(), update.id.data(), update.id.size());
  word.piece_bytes = update.piece_bytes;
  word.state = {update.checkpoint, update.length_bytes, update.chunk_bytes, update.promised, update.has_given_up};
  return word;
}

// The sizes of the places in the receive buffer of a member, for pieces of these lengths.
std::vector<std::uint64_t> capacities_of(const core::ReplicationGroup& group,
                                         std::vector<std::uint64_t> lengths_bytes) {
  if (group.rows == 0) {
    lengths_bytes[group.member] = 0;
    return lengths_bytes;
  }
  std::vector<std::uint64_t> capacities_bytes(lengths_bytes.size());
  capacities_bytes[group.member] = schedule::ParityPlace::largest(lengths_bytes, group.rows).size_bytes();
  return capacities_bytes;
}

// The name of the parity piece that the member's GPU makes.
std::string parity_name_of(const core::ReplicationGroup& group) {
  std::vector<std::string> shards;
  for (const ReplicationMember& member : group.members) shards.push_back(member.shard);
  return core::parity_name(group.rows, shards, group.member);
}

// Returns the newest checkpoint number that is older than this one.
CheckpointId before(CheckpointId checkpoint) { return CheckpointId::from_word(checkpoint.word() - 1); }

}  // namespace

void ReplicationManager::notify(const core::NotifyReplicationGroup& notify) {
  if (replications_.contains(notify.rank)) gone(notify.rank);  // of an earlier incarnation
  Replication& replication = replications_[notify.rank];
  replication.incarnation = notify.incarnation;
  replication.group = notify.replication;
  if (!notify.replication.members.empty()) return open(notify.rank, replication);
  arena::ReceiveBuffer::remove(deps_.directory, notify.rank);
  end(notify.rank, replication, notify.replication.refusal);
}

// After a restart, the agent finds the receive buffer of the same incarnation: the trainer still has it mapped.
void ReplicationManager::open(Rank rank, Replication& replication) {
  const arena::ReceiveBuffer::Group group{replication.incarnation, replication.group.member,
                                          static_cast<std::uint32_t>(replication.group.members.size()),
                                          replication.group.rows};
  replication.words.resize(replication.group.members.size());
  if (replication.group.rows != 0) replication.parity = parity_name_of(replication.group);
  try {
    auto found = arena::ReceiveBuffer::attach(deps_.directory, rank);
    if (found.group() == group) replication.receive_buffer = std::make_shared<arena::ReceiveBuffer>(std::move(found));
  } catch (const Failure&) {
    // There is none, or it is not usable.
  }
  try {
    if (replication.receive_buffer == nullptr)
      replication.receive_buffer =
          std::make_shared<arena::ReceiveBuffer>(arena::ReceiveBuffer::create(deps_.directory, rank, group));
    replication.is_made = replication.receive_buffer->find_places();
    replication.reserved_bytes = replication.receive_buffer->size_bytes();
    deps_.segments.take_besides(replication.reserved_bytes);
  } catch (const Failure& failure) {
    return end(rank, replication, failure.what());
  }
  if (!repeat_at_) repeat_at_ = Deadline::in_ms(tick_ms);
  look(rank);
}

// From now on pieces go from host to host. All members hear of it, because they may be waiting for this one. The
// receive buffer stays mapped, because its trainer may still write to it.
void ReplicationManager::end(Rank rank, Replication& replication, const std::string& why) {
  if (!replication.trouble.empty()) return;
  replication.trouble = why;
  replication.ticks = 0;
  if (!repeat_at_) repeat_at_ = Deadline::in_ms(tick_ms);
  notify_members(rank, replication);
  notify_trainer(rank, replication);
  deps_.notice("pieces of rank " + std::to_string(rank) +
               " go from host to host in this incarnation, not from GPU to GPU: " + why);
  deps_.look();
}

void ReplicationManager::refuse(Rank rank, const std::string& why) {
  if (const auto found = replications_.find(rank); found != replications_.end()) end(rank, found->second, why);
}

void ReplicationManager::gone(Rank rank) {
  const auto found = replications_.find(rank);
  if (found != replications_.end()) {
    Replication& replication = found->second;
    if (replication.receive_buffer != nullptr) {
      // Otherwise the others would only notice at the deadline of a step.
      arena::ReplicationState last = replication.words[replication.group.member].value_or(arena::ReplicationState());
      last.state.has_given_up = true;
      replication.words[replication.group.member] = last;
      notify_members(rank, replication);
      deps_.segments.give_back_besides(replication.reserved_bytes);
    }
    replications_.erase(found);
    deps_.look();
  }
  arena::ReceiveBuffer::remove(deps_.directory, rank);
}

// The trainer's state. Once the replication has ended, the state says so, whatever the trainer wrote.
std::optional<arena::ReplicationState> ReplicationManager::own_word(const Replication& replication) {
  if (replication.group.members.empty()) return std::nullopt;
  auto own = replication.words[replication.group.member];
  if (replication.trouble.empty()) return own;
  if (!own) own.emplace();
  own->state.has_given_up = true;
  return own;
}

void ReplicationManager::notify_members(Rank rank, const Replication& replication) const {
  const auto own = own_word(replication);
  if (!own) return;
  for (const ReplicationMember& member : replication.group.members) {
    if (member.rank != rank)
      deps_.send(member.node, replication_update_of(replication.incarnation, rank, member.rank, *own));
  }
}

// The trainer sees the same as if another member had given up.
void ReplicationManager::notify_trainer(Rank rank, const Replication& replication) const {
  if (replication.receive_buffer == nullptr) return;
  const std::size_t another = replication.group.member == 0 ? 1 : 0;
  arena::ReplicationState last = replication.words[another].value_or(arena::ReplicationState());
  last.state.has_given_up = true;
  replication.receive_buffer->page().put_state(another, last);
  deps_.ring(rank);
}

void ReplicationManager::look(Rank rank) {
  const auto found = replications_.find(rank);
  if (found == replications_.end() || found->second.receive_buffer == nullptr) return;
  Replication& replication = found->second;
  const arena::ReplicationPage page = replication.receive_buffer->page();
  if (const auto word = page.own_state(); word && word != replication.words[replication.group.member]) {
    replication.words[replication.group.member] = word;
    replication.ticks = 0;
    notify_members(rank, replication);
    if (word->state.has_given_up)
      end(rank, replication, page.failure().value_or("its trainer has given up GPU replication"));
    make_places(rank, replication);
  }
  if (const auto failure = page.failure()) end(rank, replication, *failure);
  deps_.look();
}

// Accepts only updates of this incarnation, from the node of the named rank.
void ReplicationManager::received(NodeId from, const core::ReplicationUpdate& update) {
  const auto found = replications_.find(update.to);
  if (found == replications_.end()) return;
  Replication& replication = found->second;
  const auto& members = replication.group.members;
  const auto member = std::find_if(members.begin(), members.end(), [&](const ReplicationMember& each) {
    return each.rank == update.from && each.node == from && each.rank != update.to;
  });
  if (member == members.end() || update.incarnation != replication.incarnation) return;
  if (!replication.trouble.empty()) {
    // The sender may have missed the end, and be waiting.
    if (!update.has_given_up)
      deps_.send(from, replication_update_of(replication.incarnation, update.to, update.from, *own_word(replication)));
    return;
  }
  const auto number = static_cast<std::size_t>(member - members.begin());
  arena::ReplicationState word = word_of(update);
  auto& known = replication.words[number];
  // Updates come in any order, so a newer state stays.
  if (known) {
    if (known->state.has_given_up) return;
    if (!word.id) word.id = known->id;
    if (word.piece_bytes == 0) word.piece_bytes = known->piece_bytes;
    if (!word.state.has_given_up && std::pair(word.state.checkpoint, word.state.promised) <
                                        std::pair(known->state.checkpoint, known->state.promised))
      word.state = known->state;
  }
  if (known == word) return;
  known = word;
  replication.receive_buffer->page().put_state(number, word);
  deps_.ring(update.to);
  if (word.state.has_given_up)
    end(update.to, replication, "rank " + std::to_string(update.from) + " has given up GPU replication");
  make_places(update.to, replication);
}

// Makes the places once all members have said how large their pieces are. Touching that memory may take long.
void ReplicationManager::make_places(Rank rank, Replication& replication) {
  if (replication.is_made || replication.is_being_made || !replication.trouble.empty()) return;
  std::vector<std::uint64_t> lengths_bytes;
  for (const auto& word : replication.words) {
    if (!word || word->piece_bytes == 0) return;
    lengths_bytes.push_back(std::min(word->piece_bytes, piece_bytes_max));
  }
  const auto capacities_bytes = capacities_of(replication.group, lengths_bytes);
  const std::uint64_t wanted_bytes =
      arena::ReceiveBuffer::file_bytes(capacities_bytes) - replication.receive_buffer->size_bytes();
  try {
    // Slots come first. Snapshots need them; pieces can also go from host to host.
    const std::uint64_t own_bytes = std::min(replication.words[replication.group.member]->piece_bytes, piece_bytes_max);
    deps_.segments.check_space(wanted_bytes + deps_.bytes_to_come(own_bytes));
  } catch (const Failure& failure) {
    return end(rank, replication, failure.what());
  }
  replication.is_being_made = true;
  replication.reserved_bytes += wanted_bytes;
  deps_.segments.take_besides(wanted_bytes);
  maker_.submit([this, rank, incarnation = replication.incarnation, receive_buffer = replication.receive_buffer,
                 capacities_bytes] {
    std::optional<Failure> failure;
    try {
      receive_buffer->make_places(capacities_bytes);
    } catch (const Failure& refused) {
      failure = refused;
    } catch (const std::exception& error) {
      failure = Failure(CKPT_ERR_SYSTEM, std::string("cannot make a rank's receive buffer: ") + error.what());
    }
    deps_.queue.post([this, rank, incarnation, failure] { made(rank, incarnation, failure); });
  });
}

void ReplicationManager::made(Rank rank, std::uint64_t incarnation, std::optional<Failure> failure) {
  const auto found = replications_.find(rank);
  if (found == replications_.end() || found->second.incarnation != incarnation) return;
  Replication& replication = found->second;
  replication.is_being_made = false;
  replication.is_made = !failure;
  if (!failure) return deps_.ring(rank);
  const std::uint64_t kept_bytes = replication.receive_buffer->size_bytes();
  deps_.segments.give_back_besides(replication.reserved_bytes - kept_bytes);
  replication.reserved_bytes = kept_bytes;
  end(rank, replication, failure->what());
}

std::optional<ReplicationManager::MemberRef> ReplicationManager::find(const std::string& shard, NodeId source) {
  for (auto& [rank, replication] : replications_) {
    if (replication.receive_buffer == nullptr) continue;
    if (replication.group.rows != 0) {
      if (source == core::parity_node && replication.parity == shard)
        return MemberRef{rank, &replication, replication.group.member};
      continue;
    }
    for (std::size_t member = 0; member < replication.group.members.size(); ++member) {
      const ReplicationMember& each = replication.group.members[member];
      if (each.shard == shard && each.node == source && each.rank != rank) return MemberRef{rank, &replication, member};
    }
  }
  return std::nullopt;
}

std::uint64_t ReplicationManager::bytes_in_place(const core::PieceInfo& piece) {
  if (!piece.is_parity()) return piece.length_bytes;
  const auto columns = static_cast<std::uint32_t>(piece.parity_manifest.sources.size()) - piece.parity_manifest.rows;
  return schedule::ParityPlace(piece.length_bytes, columns).size_bytes();
}

// Nothing arrives before the trainer has begun its first checkpoint.
bool ReplicationManager::is_live(const Replication& replication) {
  if (!replication.is_made || !replication.trouble.empty()) return false;
  const auto& own = replication.words[replication.group.member];
  return own && own->state.checkpoint != 0;
}

std::optional<ReplicationManager::Place> ReplicationManager::place_of(const core::PieceInfo& piece, NodeId source) {
  const auto found = find(piece.shard, source);
  if (!found) return std::nullopt;
  const Replication& replication = *found->replication;
  if (!is_live(replication) || piece.checkpoint.incarnation() != replication.incarnation) return std::nullopt;
  if (replication.receive_buffer->page().taken(found->member) >= piece.checkpoint)
    return std::nullopt;  // may be overwritten
  if (replication.receive_buffer->bytes(found->member).size() < bytes_in_place(piece)) return std::nullopt;
  return Place{found->rank, found->member, replication.receive_buffer};
}

std::optional<ReplicationManager::Place> ReplicationManager::place_to_wait_for(const core::PieceInfo& piece,
                                                                               NodeId source) {
  const auto found = find(piece.shard, source);
  if (!found || !found->replication->backoff[found->member].waits()) return std::nullopt;
  return place_of(piece, source);
}

void ReplicationManager::fetching(const core::PieceInfo& piece, NodeId source) {
  const auto found = find(piece.shard, source);
  if (!found) return;
  auto& fetching = found->replication->fetching;
  if (!fetching.contains(found->member))
    take(found->rank, *found->replication, found->member, before(piece.checkpoint));
  fetching[found->member] = std::max(fetching[found->member], piece.checkpoint);
}

void ReplicationManager::brought(const core::PieceInfo& piece, NodeId source,
                                 std::optional<std::uint64_t> gpu_received_bytes) {
  const auto found = find(piece.shard, source);
  if (!found) return;
  Replication& replication = *found->replication;
  replication.gpu_received_bytes += gpu_received_bytes.value_or(0);
  ReceiveBackoff& backoff = replication.backoff[found->member];
  if (gpu_received_bytes)
    backoff.waited(*gpu_received_bytes >= piece.length_bytes / 2);
  else
    backoff.fetched_at_once();
}

void ReplicationManager::fetched(const core::PieceInfo& piece, NodeId source) {
  const auto found = find(piece.shard, source);
  if (!found) return;
  Replication& replication = *found->replication;
  if (replication.fetching[found->member] <= piece.checkpoint) replication.fetching.erase(found->member);
  take(found->rank, replication, found->member, piece.checkpoint);
}

void ReplicationManager::committed(CheckpointId checkpoint) {
  for (auto& [rank, replication] : replications_) {
    if (replication.receive_buffer == nullptr || checkpoint.incarnation() != replication.incarnation) continue;
    for (std::size_t member = 0; member < replication.group.members.size(); ++member) {
      if (!replication.fetching.contains(member)) take(rank, replication, member, checkpoint);
    }
  }
}

void ReplicationManager::take(Rank rank, Replication& replication, std::size_t member, CheckpointId checkpoint) {
  if (checkpoint.incarnation() != replication.incarnation ||
      checkpoint <= replication.receive_buffer->page().taken(member))
    return;
  replication.receive_buffer->page().taken(member, checkpoint);
  deps_.ring(rank);
}

void ReplicationManager::tick() {
  if (!repeat_at_ || !repeat_at_->passed()) return;
  repeat_at_.reset();
  for (auto& [rank, replication] : replications_) {
    look(rank);
    const bool has_ended = !replication.trouble.empty();
    if (has_ended && replication.ticks >= ticks_of_end) continue;
    repeat_at_ = Deadline::in_ms(tick_ms);
    ++replication.ticks;
    if (has_ended || replication.ticks <= ticks_of_news || replication.ticks % ticks_between == 0)
      notify_members(rank, replication);
  }
}

std::optional<int> ReplicationManager::receive_buffer_fd(Rank rank) const {
  const auto found = replications_.find(rank);
  if (found == replications_.end() || found->second.receive_buffer == nullptr || !found->second.trouble.empty())
    return std::nullopt;
  return found->second.receive_buffer->fd();
}

ReplicationManager::Status ReplicationManager::status(Rank rank) const {
  const auto found = replications_.find(rank);
  if (found == replications_.end()) return {};
  const Replication& replication = found->second;
  return {replication.trouble.empty(), is_live(replication), replication.gpu_received_bytes, replication.trouble};
}

}  // namespace ckpt::agent
