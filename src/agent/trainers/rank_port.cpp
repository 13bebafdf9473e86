#include "agent/trainers/rank_port.hpp"

#include <algorithm>
#include <chrono>

#include "agent/trainers/claims.hpp"
#include "base/check.hpp"
#include "base/error.hpp"
#include "base/thread.hpp"

namespace ckpt::agent {
namespace {

// The doorbell wakes the watcher. This only bounds its wait.
constexpr std::int64_t longest_wait_ms = 1000;
// If the doorbell rings while a look is pending, the watcher waits for it in steps of this length.
constexpr std::chrono::milliseconds pending_pause{1};

}  // namespace

std::map<core::Rank, OpenGrant> find_open_grants(const std::string& directory, const Log& log) {
  std::map<core::Rank, OpenGrant> grants;
  for (const LivingTrainer& trainer : living_trainers(directory)) {
    try {
      const auto control = arena::Control::attach(directory, trainer.rank);
      // A used grant's slots are sealed and stay sealed, because nobody grants them meanwhile. To all others the
      // trainer may be writing.
      const std::uint64_t used = control.used_grant();
      const arena::Grant grant = control.grant();
      if (grant.sequence == used && !grant.spare) continue;
      const core::Share share = control.share();
      if (!core::is_valid(share))
        throw Failure(
            CKPT_ERR_CORRUPT,
            "its control page is damaged: it names parts of the main shard that do not exist; restart the rank");
      auto shards = core::parts_of(trainer.main_shard, share);
      shards.push_back(trainer.private_shard);
      OpenGrant open{grant.sequence, {}};
      for (std::size_t i = 0; i < shards.size(); ++i) open.slots.push_back({trainer.rank, shards[i], grant.slots[i]});
      if (grant.spare) open.spare = core::SlotRef{trainer.rank, trainer.private_shard, *grant.spare};
      if (grant.sequence == used) {
        open.spare = own_slots_of(open, control).left;
        open.slots.clear();
      }
      grants[trainer.rank] = std::move(open);
    } catch (const Failure& failure) {
      log->warn("rank {}: {}", trainer.rank, failure.what());  // the trainer learns of it when it comes back
    }
  }
  return grants;
}

OwnSlots own_slots_of(const OpenGrant& grant, const arena::Control& control) {
  const bool is_in_spare = grant.spare && control.used_grant() == grant.sequence && control.used_spare();
  return is_in_spare ? OwnSlots{*grant.spare, grant.slots.back()} : OwnSlots{grant.slots.back(), grant.spare};
}

// It stored `capturing` before it began, and `used_grant` after it had sealed all slots. The own state of a newer
// iteration is what it sealed before an update.
LeftPieces left_by_orphan(const std::string& directory, core::Rank rank, const OpenGrant& grant,
                          const Segments& segments) try {
  const auto control = arena::Control::attach(directory, rank);
  const CheckpointId capturing = control.capturing();
  const std::int64_t attempted = control.attempted();
  const bool is_whole = control.used_grant() == grant.sequence;
  LeftPieces pieces;
  const auto take = [&](const core::SlotRef& ref, const auto& is_wanted) {
    const auto segment = segments.find({ref.rank, ref.shard});
    if (segment == nullptr || ref.slot >= segment->slots()) return;
    auto manifest = segment->slot(ref.slot).read();
    if (manifest && is_wanted(manifest->checkpoint)) pieces.emplace_back(ref, std::move(*manifest));
  };
  const auto is_newest = [&](CheckpointId checkpoint) { return is_whole || (capturing && checkpoint == capturing); };
  const auto is_newest_own = [&](CheckpointId checkpoint) {
    return attempted >= 0 && checkpoint.iteration() >= attempted;
  };
  std::optional<core::SlotRef> left = grant.spare;
  if (!grant.slots.empty()) {
    const OwnSlots own = own_slots_of(grant, control);
    for (auto ref = grant.slots.begin(); ref != grant.slots.end() - 1; ++ref) take(*ref, is_newest);
    is_whole ? take(own.used, is_newest) : take(own.used, is_newest_own);
    left = own.left;
  }
  if (left) take(*left, is_newest_own);
  return pieces;
} catch (const Failure&) {  // without its page nobody knows what is new
  return {};
}

RankPort::RankPort(core::TrainerHello hello, arena::Control control, std::optional<OpenGrant> outstanding,
                   std::function<void()> look)
    : hello_(std::move(hello)),
      control_(std::make_shared<arena::Control>(std::move(control))),
      incarnation_(hello_.incarnation),
      sequence_(control_->grant().sequence),
      outstanding_(std::move(outstanding)),
      look_(std::move(look)) {
  if (outstanding_ && outstanding_->slots.empty()) {
    spare_ = outstanding_->spare;
    outstanding_.reset();
  }
  watcher_ = start_thread("ckptd-doorbell", [this] { watch(); });
}

RankPort::~RankPort() {
  stop_.store(true, std::memory_order_release);
  control_->ring_agent();
  watcher_.join();
}

void RankPort::watch() {
  std::uint32_t last_rung = control_->trainer_doorbell() - 1;  // look once at the beginning
  while (!stop_.load(std::memory_order_acquire)) {
    const std::uint32_t doorbell = control_->trainer_doorbell();
    if (doorbell == last_rung) {
      control_->wait_trainer_doorbell(last_rung, Deadline::in_ms(longest_wait_ms));
      continue;
    }
    if (pending_.exchange(true, std::memory_order_acq_rel)) {
      std::this_thread::sleep_for(pending_pause);
      continue;
    }
    last_rung = doorbell;
    look_();
  }
}

void RankPort::grant(const core::Share& share, const std::vector<core::SlotRef>& slots,
                     const std::optional<core::SlotRef>& spare) {
  arena::Grant grant{sequence_ + 1, {}};
  check(slots.size() <= grant.slots.size(), "a grant has more slots than a trainer captures into");
  for (std::size_t i = 0; i < slots.size(); ++i) grant.slots[i] = slots[i].slot;
  if (spare) grant.spare = spare->slot;
  outstanding_ = OpenGrant{++sequence_, slots, spare};
  control_->share(share);
  control_->grant(grant);
}

RankPort::ControlChanges RankPort::look(const Segments& segments) {
  ControlChanges changes;
  // The trainer stores `capturing` before `attempted`, and `used_grant` before it clears `capturing`. Here they are
  // read in the opposite order of the stores. So an iteration that was attempted and is not being captured was either
  // captured, which used_grant says, or skipped.
  const arena::FreezeWords freeze = control_->freeze();
  const std::int64_t attempted = control_->attempted();
  const CheckpointId capturing_checkpoint = control_->capturing();
  const std::uint64_t used = control_->used_grant();
  const std::int64_t capturing = capturing_checkpoint ? capturing_checkpoint.iteration() : -1;

  if (outstanding_ && used == outstanding_->sequence) {
    if (take_captured(segments, changes)) {
      last_captured_ = changes.captured->pieces.front().checkpoint;
      spare_ = own_slots_of(*outstanding_, *control_).left;
      outstanding_.reset();
    } else {
      changes.complaint = "rank " + std::to_string(hello_.rank) +
                          " reported a capture, but did not seal all of its slots; this snapshot is lost, and the next "
                          "one uses the same slots";
      grant(control_->share(), std::vector(outstanding_->slots), std::optional(outstanding_->spare));
    }
  } else if (used > sequence_) {
    changes.complaint = "rank " + std::to_string(hello_.rank) +
                        " reported a capture for which it had no grant; this snapshot is ignored";
  }
  changes.failed = control_->failure_since(last_captured_ ? last_captured_.iteration() : -1);
  if (attempted != attempted_ || capturing != capturing_) {
    const bool taken = capturing >= attempted || (last_captured_ && last_captured_.iteration() >= attempted);
    changes.skipped = attempted > attempted_ && !taken;
    attempted_ = attempted;
    capturing_ = capturing;
    changes.progress = core::Progress{hello_.rank, attempted, capturing};
  }
  const core::FreezeAnswer answer{freeze.halt, static_cast<core::Freeze>(freeze.state), freeze.iteration};
  if (freeze.state > static_cast<std::uint8_t>(core::last_freeze)) {
    changes.complaint =
        "rank " + std::to_string(hello_.rank) +
        " answered a halt in a way that this agent does not know; run ckptd and libckptengine of one version";
  } else if (answer != freeze_) {
    freeze_ = answer;
    changes.freeze = core::FreezeAnswered{hello_.rank, answer};
  }
  return changes;
}

// The piece in a granted slot, if it is whole, of the trainer's incarnation, and newer than its last capture.
std::optional<arena::Manifest> RankPort::sealed_piece(const Segments& segments, const core::SlotRef& ref) const {
  const auto segment = segments.find({ref.rank, ref.shard});
  if (segment == nullptr || ref.slot >= segment->slots()) return std::nullopt;
  auto manifest = segment->slot(ref.slot).read();
  if (!manifest || manifest->checkpoint <= last_captured_ || manifest->world_size != hello_.world_size ||
      manifest->checkpoint.incarnation() != incarnation_)
    return std::nullopt;
  return manifest;
}

LeftPieces RankPort::left_behind(const Segments& segments) const {
  LeftPieces pieces;
  if (incarnation_ == 0) return pieces;
  const auto take = [&](const core::SlotRef& ref) {
    if (auto manifest = sealed_piece(segments, ref)) pieces.emplace_back(ref, std::move(*manifest));
  };
  if (outstanding_) std::for_each(outstanding_->slots.begin(), outstanding_->slots.end(), take);
  if (const auto& spare = outstanding_ ? outstanding_->spare : spare_) take(*spare);
  return pieces;
}

// Checks all slots of the grant: whole, of one checkpoint, of the trainer's incarnation, and newer than the last
// capture.
bool RankPort::take_captured(const Segments& segments, ControlChanges& changes) const {
  core::Captured captured{hello_.rank, {}};
  decltype(changes.pieces) pieces;
  std::vector<core::SlotRef> slots = outstanding_->slots;
  captured.in_spare = outstanding_->spare && control_->used_spare();
  if (captured.in_spare) slots.back() = *outstanding_->spare;
  for (const core::SlotRef& ref : slots) {
    auto manifest = sealed_piece(segments, ref);
    if (!manifest) return false;
    captured.pieces.push_back(piece_info(*manifest));
    if (captured.pieces.back().checkpoint != captured.pieces.front().checkpoint) return false;
    pieces.emplace_back(ref, std::move(*manifest));
  }
  changes.captured = std::move(captured);
  changes.pieces = std::move(pieces);
  return true;
}

}  // namespace ckpt::agent
