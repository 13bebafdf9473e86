// What a node fetches as its leader orders, how it answers restore(), and what it writes to storage.
#include <algorithm>
#include <set>
#include <utility>

#include "core/lists.hpp"
#include "core/worker/worker.hpp"

namespace ckpt::core {

namespace {

Tier tier_from(NodeId source) {
  if (source == storage_node) return Tier::persistent;
  return source == parity_node ? Tier::decoded : Tier::peer;
}

FetchTrouble trouble_of(FetchResult result) {
  switch (result) {
    case FetchResult::no_space:
      return FetchTrouble::no_space;
    case FetchResult::corrupt:
      return FetchTrouble::corrupt;
    case FetchResult::complete:
    case FetchResult::failed:
      break;
  }
  return FetchTrouble::failed;
}

}  // namespace

// ---- Fetches ----

// Oldest first, and no newer piece of a shard takes the slot that an older one waits for. If two nodes held different
// checkpoints in their last slots, neither checkpoint would ever have all its copies.
void Worker::reconcile_fetches(TimeMs now, Effects& effects) {
  if (!knows_what_is_here()) return;
  std::set<std::string> waiting;
  for (const FetchOrder* order : orders_in_turn()) {
    const auto& [shard, checkpoint] = std::tie(order->piece.shard, order->piece.checkpoint);
    if (!keeps(checkpoint) || slots_.find_whole(shard, checkpoint) != nullptr || slots_.is_filling(shard, checkpoint))
      continue;
    if (waiting.contains(shard) || awaits_inputs(*order, now) || !start_fetch(*order, now, effects))
      waiting.insert(shard);
  }
}

// The inputs of coding come before what is computed from them.
std::vector<const FetchOrder*> Worker::orders_in_turn() const {
  std::vector<const FetchOrder*> orders;
  for (const FetchOrder& order : directive_.fetches) orders.push_back(&order);
  std::stable_sort(orders.begin(), orders.end(), [](const FetchOrder* left, const FetchOrder* right) {
    return std::pair(left->piece.checkpoint, left->coding_inputs.has_value()) <
           std::pair(right->piece.checkpoint, right->coding_inputs.has_value());
  });
  return orders;
}

// An input of coding that is on its way here is read here once it has come, so that it does not cross the network
// twice. Coding does not wait for an input of which a fetch has failed.
bool Worker::awaits_inputs(const FetchOrder& order, TimeMs now) const {
  if (!order.coding_inputs || pick_source(order, now) != parity_node) return false;
  const auto& inputs = order.coding_inputs->sources;
  return std::any_of(inputs.begin(), inputs.end(), [&](const auto& input) {
    return slots_.is_filling(input.shard, order.piece.checkpoint) && !has_failed(input.shard, order.piece.checkpoint);
  });
}

bool Worker::has_failed(const std::string& shard, CheckpointId checkpoint) const {
  const auto first = failures_.lower_bound({shard, checkpoint, NodeId{0}});
  return first != failures_.end() && std::get<0>(first->first) == shard && std::get<1>(first->first) == checkpoint;
}

// A slot that damage has freed, before or after this agent started, is kept for the piece that was in it. A leader that
// has not heard of the damage may order something newer. If the node obeyed, the older checkpoint would find no slot
// here, the newer one none elsewhere, and neither would ever be complete.
bool Worker::knows_what_is_here() const {
  return directive_.acknowledged_agent == agent_id_ && directive_.acknowledged_report >= orders_from_;
}

// Returns false if it has to wait: for a source after a failure, or for a slot. The order stands.
bool Worker::start_fetch(const FetchOrder& order, TimeMs now, Effects& effects) {
  const auto source = pick_source(order, now);
  if (!source) return false;
  const auto slot = destination(order.piece.shard);
  if (!slot) {
    make_room(order.piece.shard, effects);
    return false;
  }
  slots_.fill(*slot, order.piece);
  const std::uint64_t id = next_fetch_++;
  fetches_[id] = {order.piece, *source, *slot};
  const bool is_made = *source == parity_node && order.coding_inputs;
  effects.push_back(
      StartFetch{id, order.piece, *source, *slot, is_made ? *order.coding_inputs : CodingInputs{}, order.chain_from});
  return true;
}

// While storage is read, a piece is dropped only to make room for one that is read. The newest piece goes first,
// because only an older checkpoint can still be chosen instead.
void Worker::make_room(const std::string& shard, Effects& effects) {
  const Trainer* owner = home_of(shard);
  const Rank rank = owner == nullptr ? held_rank : owner->hello.rank;
  std::optional<SlotRef> newest;
  slots_.for_each([&](const SlotRef& ref, const Slot& slot) {
    if (ref.rank != rank || ref.shard != shard || slot.state != SlotState::whole) return;
    if (is_current(slot.piece.checkpoint) || is_to_be_written(ref, slot.piece)) return;
    if (!newest || slots_.at(*newest).piece.checkpoint < slot.piece.checkpoint) newest = ref;
  });
  if (!newest) return;
  slots_.drain(*newest);
  effects.push_back(DropSlot{*newest});
}

// The source that failed least often, in the order given. None while all of them have to wait after a failure.
std::optional<NodeId> Worker::pick_source(const FetchOrder& order, TimeMs now) const {
  std::optional<NodeId> best;
  int best_count = 0;
  for (const NodeId source : order.sources) {
    const auto it = failures_.find({order.piece.shard, order.piece.checkpoint, source});
    const Failures failures = it == failures_.end() ? Failures{} : it->second;
    if (source == config_.node || now < failures.retry_at) continue;
    if (best && failures.count >= best_count) continue;
    best = source;
    best_count = failures.count;
  }
  return best;
}

// A shard of this node's own ranks goes into their segment, a peer's shard into the one in which the agent holds it.
std::optional<SlotRef> Worker::destination(const std::string& shard) {
  const Trainer* owner = home_of(shard);
  const Rank rank = owner == nullptr ? held_rank : owner->hello.rank;
  slots_.add_segment(rank, shard, owner == nullptr ? config_.held_slots : config_.local_slots);
  return slots_.find_free(rank, shard);
}

// In how many parts the decided checkpoint has the main shard.
std::uint32_t Worker::parts_stored(const std::string& main_shard) const {
  for (const Cut& cut : directive_.decision.cuts) {
    if (cut.shard == main_shard) return cut.of;
  }
  return 1;
}

void Worker::on(const FetchEnded& ended, TimeMs now) {
  const auto it = fetches_.find(ended.fetch);
  if (it == fetches_.end()) return;
  const Fetch fetch = it->second;
  fetches_.erase(it);
  if (fetch.source == storage_node && !fetch.cancelled) read_trouble_ = ended.trouble;
  if (ended.result == FetchResult::complete) {
    const bool is_new = fetch.piece.is_parity() && fetch.piece.root_digest == 0;
    slots_.fetched(fetch.slot, tier_from(fetch.source), directive_.incarnation, is_new ? &ended.made : nullptr);
    newest_seen_ = std::max(newest_seen_, fetch.piece.checkpoint);
    fetch_failures_.erase(fetch.piece.shard);
    return;
  }
  slots_.abandon_fill(fetch.slot);
  if (fetch.cancelled) return;
  fetch_failures_[fetch.piece.shard] = {trouble_of(ended.result), fetch.source};
  Failures& failures = failures_[{fetch.piece.shard, fetch.piece.checkpoint, fetch.source}];
  ++failures.count;
  // A single failure may have happened on the way.
  const bool is_corrupt = fetch.source == storage_node && ended.result == FetchResult::corrupt;
  if (is_corrupt && ++failures.corrupt > 1) damaged_.insert(fetch.piece.checkpoint);
  failures.retry_at = now + config_.report_ms * std::min(failures.count, 8);
}

void Worker::on(const SlotReleased& released) { slots_.release(released.slot); }

void Worker::on(const PieceCorrupt& corrupt, Effects& effects) {
  const Slot& slot = slots_.at(corrupt.slot);
  if (slot.state != SlotState::whole) return;
  effects.push_back(Notice{"dropped shard " + corrupt.slot.shard + " of iteration " +
                           std::to_string(slot.piece.checkpoint.iteration()) +
                           " from this node's memory, because its bytes are damaged or wrong"});
  newest_damaged_ = std::max(newest_damaged_, slot.piece.checkpoint);
  orders_from_ = report_sequence_ + 1;
  slots_.drain(corrupt.slot);
  effects.push_back(DropSlot{corrupt.slot});
}

// ---- Restores ----

void Worker::reconcile_restore(Trainer& trainer, Effects& effects) {
  if (!trainer.asked) return;
  const Decision& decision = directive_.decision;
  const Rank rank = trainer.hello.rank;
  if (trainer.refusal) {
    const auto error = trainer.refusal->superseded ? RestoreError::superseded : RestoreError::refused;
    effects.push_back(RestoreFailed{rank, error, trainer.refusal->text});
    trainer.asked = false;
    return;
  }
  if (!is_member(trainer) || !is_admitted(trainer)) return;
  if (decided() && !trainer.share) return;
  switch (decision.verdict) {
    case Verdict::undecided:
      return;
    case Verdict::lost:
    case Verdict::mismatch: {
      const auto error = decision.verdict == Verdict::lost ? RestoreError::lost : RestoreError::mismatch;
      effects.push_back(RestoreFailed{rank, error, decision.text});
      break;
    }
    case Verdict::fresh:
      effects.push_back(
          RestoreReady{rank, directive_.incarnation, decision, *trainer.share, {}, {}, trainer.is_replicated});
      trainer.served_in = directive_.incarnation;
      break;
    case Verdict::restore: {
      const auto main = find_sources(main_pieces(trainer));
      const auto private_ = find_sources(private_pieces(trainer));
      if (directive_.reading_storage && directive_.stranded.empty()) return;  // the checkpoint may still prove damaged
      if (!main || !private_) {
        if (directive_.stranded.empty()) return;  // the pieces are on their way here
        effects.push_back(RestoreFailed{rank, RestoreError::lost, directive_.stranded});
        break;
      }
      RestoreReady ready{
          rank, directive_.incarnation, decision, *trainer.share, *main, private_->front(), trainer.is_replicated};
      if (!trainer.takes.empty()) std::swap(ready.main, ready.taken);
      effects.push_back(std::move(ready));
      trainer.served_in = directive_.incarnation;
      break;
    }
  }
  trainer.asked = false;
}

// The pieces of the decided checkpoint. None unless all of them are here.
std::optional<std::vector<RestoreSource>> Worker::find_sources(const std::vector<std::string>& shards) const {
  std::vector<RestoreSource> sources;
  for (const std::string& shard : shards) {
    const SlotRef* ref = slots_.find_whole(shard, directive_.decision.checkpoint);
    if (ref == nullptr) return std::nullopt;
    sources.push_back({*ref, tier_of(*ref)});
  }
  return sources;
}

AwaitedPieces Worker::awaited(Rank rank) const {
  const auto found = trainers_.find(rank);
  if (found == trainers_.end() || directive_.decision.verdict != Verdict::restore) return {};
  const Trainer& trainer = found->second;
  // While storage is read, the checkpoint may still prove damaged.
  if (!trainer.asked || !is_member(trainer) || !is_admitted(trainer) || directive_.reading_storage) return {};
  if (!trainer.takes.empty()) return {};
  AwaitedPieces awaited{directive_.incarnation, directive_.decision.checkpoint, {}, {}};
  auto pieces = main_pieces(trainer);
  for (std::string& piece : private_pieces(trainer)) pieces.push_back(std::move(piece));
  for (const std::string& piece : pieces) {
    if (const SlotRef* slot = slots_.find_whole(piece, awaited.checkpoint); slot != nullptr)
      awaited.whole.push_back(*slot);
    else if (slot = slots_.find_filling(piece, awaited.checkpoint); slot != nullptr)
      awaited.filling.push_back(*slot);
  }
  return awaited;
}

// The pieces of main shards that the trainer restores. If it takes over shards: all of their pieces but the first one.
std::vector<std::string> Worker::main_pieces(const Trainer& trainer) const {
  if (trainer.takes.empty()) return parts_of(trainer.hello.main_shard, parts_stored(trainer.hello.main_shard));
  std::vector<std::string> pieces;
  for (auto taken = trainer.takes.begin() + 1; taken != trainer.takes.end(); ++taken) {
    for (std::string& part : parts_of(taken->shard, taken->of)) pieces.push_back(std::move(part));
  }
  return pieces;
}

std::vector<std::string> Worker::private_pieces(const Trainer& trainer) {
  if (!trainer.takes.empty()) return {trainer.takes.front().shard};
  return {trainer.adopts.empty() ? trainer.hello.private_shard : trainer.adopts};
}

Tier Worker::tier_of(const SlotRef& ref) const {
  const Slot& slot = slots_.at(ref);
  return slot.fetched_in == directive_.incarnation ? slot.from : Tier::local;
}

// ---- Writes to storage ----

void Worker::reconcile_writes(Effects& effects) {
  const WriteOrder& order = directive_.write;
  if (writing_ || order.shards.empty()) return;
  if (!config_.storage_writes) {
    written_ = {order.checkpoint, order.attempt, order.shards,
                "node " + std::to_string(config_.node) +
                    " has no option storage; give all agents of the job the same option storage"};
    written_epoch_ = directive_.epoch;
    return;
  }
  if (written_.checkpoint == order.checkpoint && written_.attempt == order.attempt && written_.shards == order.shards)
    return;
  Writing writing{{order.checkpoint, order.attempt, order.shards, ""}, directive_.epoch, {}};
  for (const std::string& shard : order.shards) {
    const SlotRef* ref = slots_.find_whole(shard, order.checkpoint);
    if (ref == nullptr) return;  // the leader will learn that the piece is not here
    writing.slots.push_back(*ref);
  }
  effects.push_back(StartWrite{order.checkpoint, writing.slots, is_void() ? written_ : Written{}});
  writing_ = std::move(writing);
}

// The checkpoint that was written last will not become whole. The leader that ordered it knows that. Another leader may
// not know what the first one did with it, unless there was trouble here.
bool Worker::is_void() const {
  const bool is_notified = written_epoch_ == directive_.epoch || !written_.trouble.empty();
  return is_notified && written_.checkpoint > directive_.stored && written_.checkpoint != directive_.write.checkpoint;
}

bool Worker::is_to_be_written(const SlotRef& ref, const PieceInfo& piece) const {
  if (writing_ && contains(writing_->slots, ref)) return true;
  const WriteOrder& order = directive_.write;
  const bool is_done = written_.checkpoint == order.checkpoint && written_.attempt == order.attempt;
  return piece.checkpoint == order.checkpoint && !is_done && contains(order.shards, piece.shard);
}

void Worker::on(const WriteEnded& ended) {
  if (!writing_ || writing_->order.checkpoint != ended.checkpoint) return;
  written_ = std::move(writing_->order);
  written_.trouble = ended.trouble;
  written_epoch_ = writing_->epoch;
  writing_.reset();
}

}  // namespace ckpt::core
