#include "core/worker/worker.hpp"

#include <algorithm>
#include <utility>

#include "core/lists.hpp"

namespace ckpt::core {

Worker::Worker(const Config& config, std::uint64_t agent_id, const Recovered& recovered)
    : config_(config),
      agent_id_(agent_id),
      epoch_(recovered.epoch),
      highest_commit_(recovered.highest_commit),
      newest_seen_(recovered.newest_seen),
      newest_damaged_(recovered.newest_damaged),
      persisted_{recovered.highest_commit, recovered.newest_seen, recovered.epoch, recovered.newest_damaged} {
  for (const auto& [ref, piece, whole] : recovered.slots) {
    slots_.add_segment(ref.rank, ref.shard, static_cast<std::uint8_t>(ref.slot + 1));
    if (!whole) continue;
    slots_.grant(ref);
    slots_.captured(ref, piece);
    newest_seen_ = std::max(newest_seen_, piece.checkpoint);
  }
  for (const auto& granted : recovered.granted) {
    for (const SlotRef& ref : granted.slots) slots_.grant(ref);
    if (granted.spare) slots_.grant(*granted.spare);
    orphaned_grants_[granted.rank] = granted;
  }
}

// ---- Trainers ----

void Worker::on(const TrainerHello& hello) {
  Trainer trainer;
  if (const auto old = trainers_.find(hello.rank); old != trainers_.end()) {
    if (old->second.hello.instance == hello.instance) return;  // a repeated hello
    take_back_grant(old->second);
  }
  trainer.hello = hello;
  trainer.incarnation = hello.incarnation;
  trainer.served_in = hello.incarnation;
  trainer.restored = hello.incarnation != 0;
  // In a new incarnation of the rank, the writer that held the grant is proven dead. Otherwise that writer has come
  // back.
  if (hello.incarnation == 0) take_back_orphan(hello.rank);
  if (const auto orphan = orphaned_grants_.find(hello.rank); orphan != orphaned_grants_.end()) {
    trainer.granted = orphan->second.slots;
    trainer.spare = orphan->second.spare;
    orphaned_grants_.erase(orphan);
  }
  trainers_[hello.rank] = std::move(trainer);
  on_decided_incarnation(hello.incarnation);
}

void Worker::on(const TrainerExited& exited) {
  const auto it = trainers_.find(exited.rank);
  if (it == trainers_.end()) {
    take_back_orphan(exited.rank);
  } else if (it->second.hello.instance == exited.instance) {
    take_back_grant(it->second);
    trainers_.erase(it);
  }
}

void Worker::take_back_grant(Trainer& trainer) {
  for (const SlotRef& ref : trainer.granted) slots_.take_back(ref);
  if (trainer.spare) slots_.take_back(*trainer.spare);
  trainer.granted.clear();
  trainer.spare.reset();
}

// Takes back the grant of a writer that never came back and is now proven dead.
void Worker::take_back_orphan(Rank rank) {
  const auto orphan = orphaned_grants_.find(rank);
  if (orphan == orphaned_grants_.end()) return;
  for (const SlotRef& ref : orphan->second.slots) slots_.take_back(ref);
  if (orphan->second.spare) slots_.take_back(*orphan->second.spare);
  orphaned_grants_.erase(orphan);
}

void Worker::on(const RestoreAsked& asked) {
  const auto it = trainers_.find(asked.rank);
  if (it == trainers_.end()) return;
  it->second.asked = true;
  it->second.wants_gpu_replication = asked.wants_gpu_replication;
  it->second.takes_shards = asked.takes_shards;
  it->second.served_in = 0;
}

void Worker::on(const RestoreDone& done) {
  if (const auto it = trainers_.find(done.rank); it != trainers_.end()) it->second.restored = true;
}

void Worker::on(const SegmentsReady& ready) {
  const auto it = trainers_.find(ready.rank);
  if (it == trainers_.end()) return;
  it->second.segments = ready.shards;
  it->second.slots = ready.slots;
  it->second.has_spare = ready.private_slots > ready.slots;
  for (const std::string& shard : ready.shards) slots_.add_segment(ready.rank, shard, ready.slots);
  slots_.add_segment(ready.rank, it->second.hello.private_shard, ready.private_slots);
}

void Worker::on(const Progress& progress) {
  const auto it = trainers_.find(progress.rank);
  if (it == trainers_.end()) return;
  Trainer& trainer = it->second;
  const bool is_skipped = progress.attempted > trainer.attempted && progress.capturing < progress.attempted;
  if (is_skipped && trainer.granted.empty() && !trainer.segments.empty()) trainer.demand.found_none();
  trainer.attempted = std::max(trainer.attempted, progress.attempted);
  trainer.capturing = progress.capturing;
}

void Worker::on(const Captured& captured) {
  const auto it = trainers_.find(captured.rank);
  if (it == trainers_.end() || it->second.granted.empty()) return;
  Trainer& trainer = it->second;
  const bool is_granted =
      captured.pieces.size() == trainer.granted.size() && (!captured.in_spare || trainer.spare.has_value());
  if (!is_granted) return;
  if (captured.in_spare) std::swap(trainer.granted.back(), *trainer.spare);
  for (std::size_t i = 0; i < captured.pieces.size(); ++i) slots_.captured(trainer.granted[i], captured.pieces[i]);
  trainer.granted.clear();
  trainer.demand.captured();
  trainer.capturing = -1;
  const CheckpointId checkpoint = captured.pieces.front().checkpoint;
  trainer.attempted = std::max(trainer.attempted, checkpoint.iteration());
  newest_seen_ = std::max(newest_seen_, checkpoint);
}

void Worker::on(const FreezeAnswered& answered) {
  if (const auto it = trainers_.find(answered.rank); it != trainers_.end()) it->second.freeze = answered.answer;
}

void Worker::on(const TroubleReported& reported) {
  if (const auto it = trainers_.find(reported.rank); it != trainers_.end() && it->second.restored)
    it->second.reports_trouble = true;
}

// They count like captured pieces. Peers may have the rest of the checkpoint.
void Worker::on(const LeftBehind& left) {
  const auto trainer = trainers_.find(left.rank);
  const auto orphan = orphaned_grants_.find(left.rank);  // of a trainer that never came back to this agent
  if (trainer == trainers_.end() && orphan == orphaned_grants_.end()) return;
  std::vector<SlotRef>& granted = trainer != trainers_.end() ? trainer->second.granted : orphan->second.slots;
  std::optional<SlotRef>& spare = trainer != trainers_.end() ? trainer->second.spare : orphan->second.spare;
  for (const auto& [slot, piece] : left.pieces) {
    const bool is_spare = spare == slot;
    if (!is_spare && std::erase(granted, slot) == 0) continue;  // not the slots that it was granted
    if (is_spare) spare.reset();
    slots_.captured(slot, piece);
    newest_seen_ = std::max(newest_seen_, piece.checkpoint);
  }
}

std::vector<RankReport> Worker::rank_reports() const {
  std::vector<RankReport> reports;
  for (const auto& [rank, trainer] : trainers_) {
    RankReport report;
    report.rank = rank;
    report.instance = trainer.hello.instance;
    report.incarnation = trainer.incarnation;
    report.world_size = trainer.hello.world_size;
    report.main_shard = trainer.hello.main_shard;
    report.private_shard = trainer.hello.private_shard;
    report.wants_gpu_replication = trainer.wants_gpu_replication;
    report.takes_shards = trainer.takes_shards;
    report.waiting = trainer.asked;
    report.attempted = trainer.attempted;
    report.capturing = trainer.capturing;
    report.resume_at = trainer.notified_resume;
    report.is_stopped = contains(observed_.stopped, rank);
    for (const auto& [failing, status] : observed_.failed) {
      if (failing == rank) report.failed = status;
    }
    for (const auto& [watched, computing_ms] : watched_.computing_ms) {
      if (watched == rank) report.computing_ms = computing_ms;
    }
    report.freeze = trainer.freeze;
    report.freeze_at = trainer.notified_halt_iteration;
    report.reports_trouble = trainer.reports_trouble;
    report.capture_every = trainer.hello.capture_every;
    report.halts = trainer.hello.halts;
    report.capture = trainer.hello.capture;
    reports.push_back(std::move(report));
  }
  return reports;
}

// ---- The leader's orders ----

void Worker::on_epoch(std::uint64_t epoch) { epoch_ = std::max(epoch_, epoch); }

void Worker::on(const Directive& directive) {
  if (directive.epoch < epoch_) return;  // from a leader that was replaced
  if (directive.epoch == directive_.epoch && directive.sequence <= directive_.sequence) return;  // overtaken
  epoch_ = directive.epoch;
  if (directive.incarnation != directive_.incarnation) read_trouble_.clear();
  directive_ = directive;
  if (directive.decision.verdict != Verdict::undecided) on_decided_incarnation(directive.incarnation);
  highest_commit_ = std::max(highest_commit_, directive.committed);
}

bool Worker::decided() const {
  return directive_.decision.verdict == Verdict::fresh || directive_.decision.verdict == Verdict::restore;
}

// While an incarnation is undecided, or its state lost, nothing is dropped: a node that comes back may still complete
// it. The same holds while the decided checkpoint is read from storage.
bool Worker::keeps(CheckpointId checkpoint) const { return directive_.reading_storage || is_current(checkpoint); }

bool Worker::is_current(CheckpointId checkpoint) const {
  if (!decided() || checkpoint == directive_.committed) return true;
  if (checkpoint == directive_.decision.checkpoint && checkpoint > directive_.committed)
    return true;  // it does not have all copies yet
  if (checkpoint < directive_.committed || checkpoint.incarnation() < directive_.incarnation) return false;
  return !contains(directive_.abandoned, checkpoint);
}

bool Worker::is_member(const Trainer& trainer) const {
  return !trainer.refusal && trainer.incarnation != 0 && trainer.incarnation == directive_.incarnation;
}

// Applies the directive that brings the decision: by that decision the rank may have no place any more.
bool Worker::is_admitted(const Trainer& trainer) const {
  return std::any_of(directive_.admitted.begin(), directive_.admitted.end(), [&](const Admission& admission) {
    return admission.rank == trainer.hello.rank && admission.instance == trainer.hello.instance;
  });
}

// ---- Reconciliation ----

void Worker::reconcile(TimeMs now, Effects& effects) {
  persist_if_newer(effects);
  reconcile_admissions(effects);
  reconcile_drops(effects);
  reconcile_fetches(now, effects);
  for (auto& [rank, trainer] : trainers_) {
    reconcile_restore(trainer, effects);
    reconcile_grant(trainer, effects);
    reconcile_demand(trainer, effects);
    reconcile_words(trainer, effects);
  }
  reconcile_segments(effects);
  reconcile_writes(effects);
}

void Worker::persist_if_newer(Effects& effects) {
  const Persist now{highest_commit_, newest_seen_, epoch_, newest_damaged_};
  if (now.highest_commit == persisted_.highest_commit && now.newest_seen == persisted_.newest_seen &&
      now.epoch == persisted_.epoch && now.newest_damaged == persisted_.newest_damaged) {
    return;
  }
  persisted_ = now;
  effects.push_back(now);
}

void Worker::reconcile_admissions(Effects& effects) {
  for (const Admission& admission : directive_.admitted) {
    const auto it = trainers_.find(admission.rank);
    if (it == trainers_.end() || it->second.hello.instance != admission.instance || it->second.refusal) continue;
    Trainer& trainer = it->second;
    if (trainer.served_in != 0 && trainer.served_in != directive_.incarnation) continue;
    if (trainer.incarnation != directive_.incarnation) trainer.share.reset();
    trainer.incarnation = directive_.incarnation;
    if (admission.share) {
      trainer.share = admission.share;
      trainer.adopts = admission.adopts;
      trainer.takes = admission.takes;
      trainer.is_replicated = admission.is_replicated;
    }
    if (admission.replication &&
        std::exchange(trainer.notified_replication_in, trainer.incarnation) != trainer.incarnation)
      effects.push_back(NotifyReplicationGroup{admission.rank, trainer.incarnation, *admission.replication});
  }
  for (const Refusal& refusal : directive_.refused) {
    const auto it = trainers_.find(refusal.rank);
    if (it == trainers_.end() || it->second.hello.instance != refusal.instance || it->second.refusal) continue;
    it->second.refusal = refusal;
    effects.push_back(Fence{refusal.rank, refusal.instance, refusal.incarnation, refusal.text});
  }
}

void Worker::reconcile_drops(Effects& effects) {
  std::vector<SlotRef> dropped;
  slots_.for_each([&](const SlotRef& ref, const Slot& slot) {
    if (slot.state == SlotState::whole && !keeps(slot.piece.checkpoint) && !is_to_be_written(ref, slot.piece))
      dropped.push_back(ref);
  });
  for (const SlotRef& ref : dropped) {
    slots_.drain(ref);
    effects.push_back(DropSlot{ref});
  }
  for (auto& [id, fetch] : fetches_) {
    if (fetch.cancelled || keeps(fetch.piece.checkpoint)) continue;
    fetch.cancelled = true;
    effects.push_back(CancelFetch{id});
  }
  std::erase_if(failures_, [&](const auto& entry) { return !keeps(std::get<CheckpointId>(entry.first)); });
  std::erase_if(fetch_failures_, [&](const auto& entry) {
    return std::none_of(directive_.fetches.begin(), directive_.fetches.end(),
                        [&](const FetchOrder& order) { return order.piece.shard == entry.first; });
  });
}

// The shards that the trainer captures in this incarnation, in the order of its segments.
std::vector<std::string> Worker::captures(const Trainer& trainer) {
  std::vector<std::string> shards;
  if (trainer.share) shards = parts_of(trainer.hello.main_shard, *trainer.share);
  shards.push_back(trainer.hello.private_shard);
  return shards;
}

// The trainer on this node that captures the shard, or null.
const Worker::Trainer* Worker::home_of(const std::string& shard) const {
  for (const auto& [rank, trainer] : trainers_) {
    if (!is_member(trainer)) continue;
    if (contains(captures(trainer), shard)) return &trainer;
  }
  return nullptr;
}

void Worker::reconcile_grant(Trainer& trainer, Effects& effects) {
  if (!trainer.granted.empty() || !trainer.restored || !is_member(trainer) || !decided() || !trainer.share) return;
  if (trainer.segments != captures(trainer)) return;  // not ready yet
  std::vector<SlotRef> slots;
  for (const std::string& shard : trainer.segments) {
    const auto slot = slots_.find_free(trainer.hello.rank, shard);
    if (!slot) return;
    slots.push_back(*slot);
  }
  for (const SlotRef& ref : slots) slots_.grant(ref);
  trainer.granted = slots;
  if (trainer.has_spare && !trainer.spare) {
    trainer.spare = slots_.find_free(trainer.hello.rank, trainer.hello.private_shard);
    if (trainer.spare) slots_.grant(*trainer.spare);
  }
  effects.push_back(GrantSlots{trainer.hello.rank, *trainer.share, std::move(slots), trainer.spare});
}

// The third slot, or the fourth where storage has one. Asked for once: where memory lacks, the driver tells people.
void Worker::reconcile_demand(Trainer& trainer, Effects& effects) const {
  const auto slots = static_cast<std::uint8_t>(trainer.slots + 1);
  if (!trainer.demand.wants_more() || slots > config_.local_slots_max || slots <= trainer.slots_asked) return;
  trainer.slots_asked = slots;
  effects.push_back(AddSlots{trainer.hello.rank, trainer.segments, slots});
}

void Worker::reconcile_words(Trainer& trainer, Effects& effects) {
  if (!is_member(trainer)) return;
  const CheckpointId committed = directive_.committed;
  if (committed.incarnation() == directive_.incarnation && committed > trainer.notified_commit) {
    trainer.notified_commit = committed;
    effects.push_back(NotifyCommit{trainer.hello.rank, committed});
  }
  if (directive_.stored > trainer.notified_stored) {
    trainer.notified_stored = directive_.stored;
    effects.push_back(NotifyStored{trainer.hello.rank, directive_.stored});
  }
  if (directive_.resume_at > trainer.notified_resume) {
    trainer.notified_resume = directive_.resume_at;
    effects.push_back(NotifyResume{trainer.hello.rank, directive_.resume_at});
  }
  // A rank that still waits in restore() changes nothing, and may take part in the next incarnation.
  if (trainer.served_in != directive_.incarnation) return;
  // A halt ends with its incarnation.
  const Halt& halt = directive_.halt;
  const bool is_news =
      halt.number != trainer.notified_halt || (halt.iteration && halt.iteration != trainer.notified_halt_iteration);
  if (halt.incarnation == directive_.incarnation && halt.number != 0 && is_news) {
    trainer.notified_halt = halt.number;
    trainer.notified_halt_iteration = halt.iteration;
    effects.push_back(NotifyHalt{trainer.hello.rank, halt.number, halt.iteration});
  }
}

// Frees memory only once the new incarnation has a commit of its own. Until then a restart may change the placement
// again.
void Worker::reconcile_segments(Effects& effects) {
  if (!decided() || directive_.committed.incarnation() != directive_.incarnation) return;
  for (const auto& [rank, shard] : slots_.empty_segments()) {
    const Trainer* home = home_of(shard);
    const bool held_for_peers = rank == held_rank && home == nullptr && contains(directive_.wanted, shard);
    const auto trainer = trainers_.find(rank);
    const bool captured_here =
        trainer != trainers_.end() && (!is_member(trainer->second) || (home != nullptr && home->hello.rank == rank));
    if (held_for_peers || captured_here) continue;
    slots_.remove_segment(rank, shard);
    effects.push_back(ReleaseSegment{rank, shard});
  }
}

// ---- Reporting ----

std::optional<Report> Worker::report_if_due(TimeMs now) {
  Report report;
  report.node = config_.node;
  report.arena_id = config_.arena_id;
  report.agent_id = agent_id_;
  report.epoch = epoch_;
  report.domain = config_.domain;
  report.standby = config_.standby;
  report.highest_commit = std::max(highest_commit_, notified_commit_);
  report.newest_seen = newest_seen_;
  report.newest_damaged = newest_damaged_;
  report.newest_known_incarnation = newest_known_incarnation_;
  report.ranks = rank_reports();
  report.in_trouble = watched_.in_trouble;
  report.pieces = slots_.whole_pieces();
  report.storage = config_.storage;
  report.written = written_;
  report.damaged.assign(damaged_.begin(), damaged_.end());
  report.read_trouble = read_trouble_;
  report.protection = config_.protection;
  if (!fetch_failures_.empty()) {
    // A lack of memory explains more than a failed transfer.
    const auto worst = std::find_if(fetch_failures_.begin(), fetch_failures_.end(),
                                    [](const auto& entry) { return entry.second.trouble == FetchTrouble::no_space; });
    const LastFailure& failure = (worst != fetch_failures_.end() ? worst : fetch_failures_.begin())->second;
    report.fetch_trouble = failure.trouble;
    report.fetch_source = failure.source;
  }
  report.coordination_fails = observed_.coordination_fails;
  report.roll_call = directive_.epoch == epoch_ ? directive_.roll_call : 0;
  report.directive = last_report_.directive;  // as in the last report, so that the comparison ignores it
  report.sequence = report_sequence_;
  const bool due = report_sequence_ == 0 || now - last_report_at_ >= config_.report_ms;
  if (!due && report == last_report_) return std::nullopt;
  report.directive = directive_.epoch == epoch_ ? directive_.sequence : 0;
  report.sequence = ++report_sequence_;
  last_report_ = report;
  last_report_at_ = now;
  for (RankStanding& standing : report.in_trouble) standing.still_ms += now - watched_at_;  // that alone is no news
  return report;
}

}  // namespace ckpt::core
