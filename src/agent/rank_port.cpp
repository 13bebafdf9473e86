#include "agent/rank_port.hpp"

#include <algorithm>
#include <chrono>

#include "base/thread.hpp"

namespace ckpt::agent {
namespace {

// The bell wakes the watcher; this only bounds the wait.
constexpr std::int64_t longest_wait_ms = 1000;
// A look that is still pending when the bell rings again is awaited in steps of this.
constexpr std::chrono::milliseconds pending_pause{1};

}  // namespace

RankPort::RankPort(protocol::TrainerHello hello, arena::Control control, std::optional<OpenGrant> outstanding,
                   std::function<void()> look)
    : hello_(std::move(hello)),
      control_(std::make_shared<arena::Control>(std::move(control))),
      incarnation_(hello_.incarnation),
      sequence_(control_->grant().sequence),
      outstanding_(std::move(outstanding)),
      look_(std::move(look)) {
  watcher_ = start_thread("ckptd-bell", [this] { watch(); });
}

RankPort::~RankPort() {
  stop_.store(true, std::memory_order_release);
  control_->ring_agent();
  watcher_.join();
}

void RankPort::watch() {
  std::uint32_t seen = control_->trainer_bell() - 1;  // look once at the beginning
  while (!stop_.load(std::memory_order_acquire)) {
    const std::uint32_t bell = control_->trainer_bell();
    if (bell == seen) {
      control_->wait_trainer_bell(seen, Deadline::in_ms(longest_wait_ms));
      continue;
    }
    if (pending_.exchange(true, std::memory_order_acq_rel)) {
      std::this_thread::sleep_for(pending_pause);
      continue;
    }
    seen = bell;
    look_();
  }
}

void RankPort::grant(const protocol::Share& share, const std::vector<protocol::SlotRef>& slots) {
  outstanding_ = OpenGrant{++sequence_, slots};
  arena::Grant grant{sequence_, {}};
  for (std::size_t i = 0; i < std::min(slots.size(), grant.slots.size()); ++i) grant.slots[i] = slots[i].slot;
  control_->share(share);
  control_->grant(grant);
}

RankPort::Seen RankPort::look(const Segments& segments) {
  Seen seen;
  // The trainer stores `capturing` before `attempted`, and `used_grant` before it clears `capturing`. Read the other
  // way round, an iteration that was attempted and is not being captured has either been captured, as used_grant says
  // then, or been skipped.
  const std::int64_t attempted = control_->attempted();
  const Version capturing_version = control_->capturing();
  const std::uint64_t used = control_->used_grant();
  const std::int64_t capturing = capturing_version ? capturing_version.iteration() : -1;

  if (outstanding_ && used == outstanding_->sequence) {
    if (take_captured(segments, seen)) {
      last_captured_ = seen.captured->pieces.front().version;
      outstanding_.reset();
    } else {
      seen.complaint = "rank " + std::to_string(hello_.rank) + " reported a capture whose slots are not whole";
      grant(control_->share(), std::vector(outstanding_->slots));
    }
  } else if (used > sequence_) {
    seen.complaint = "rank " + std::to_string(hello_.rank) + " reported a capture that it was not granted";
  }
  seen.failed = control_->failure_since(last_captured_ ? last_captured_.iteration() : -1);
  if (attempted != attempted_ || capturing != capturing_) {
    const bool taken = capturing >= attempted || (last_captured_ && last_captured_.iteration() >= attempted);
    seen.skipped = attempted > attempted_ && !taken;
    attempted_ = attempted;
    capturing_ = capturing;
    seen.progress = protocol::Progress{hello_.rank, attempted, capturing};
  }
  return seen;
}

// All slots of the grant, whole and of one version, of the trainer's life and newer than the last.
bool RankPort::take_captured(const Segments& segments, Seen& seen) const {
  protocol::Captured captured{hello_.rank, {}};
  decltype(seen.pieces) pieces;
  for (const protocol::SlotRef& ref : outstanding_->slots) {
    const auto segment = segments.find({ref.rank, ref.shard});
    if (segment == nullptr || ref.slot >= segment->spec().slots) return false;
    auto manifest = segment->slot(ref.slot).read();
    if (!manifest || manifest->version <= last_captured_ || manifest->world_size != hello_.world_size) return false;
    if (manifest->version.incarnation() != incarnation_) return false;
    captured.pieces.push_back(piece_info(*manifest));
    if (captured.pieces.back().version != captured.pieces.front().version) return false;
    pieces.emplace_back(ref, std::move(*manifest));
  }
  seen.captured = std::move(captured);
  seen.pieces = std::move(pieces);
  return true;
}

}  // namespace ckpt::agent
