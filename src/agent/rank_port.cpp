#include "agent/rank_port.hpp"

#include <chrono>

#include "base/thread.hpp"

namespace ckpt::agent {
namespace {

// The bell wakes the watcher; this only bounds the wait.
constexpr std::int64_t longest_wait_ms = 1000;
// A look that is still pending when the bell rings again is awaited in steps of this.
constexpr std::chrono::milliseconds pending_pause{1};

}  // namespace

RankPort::RankPort(protocol::TrainerHello hello, arena::Control control, std::optional<arena::Grant> outstanding,
                   std::function<void()> look)
    : hello_(std::move(hello)),
      control_(std::make_unique<arena::Control>(std::move(control))),
      sequence_(control_->grant().sequence),
      outstanding_(outstanding),
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

void RankPort::grant(std::uint8_t main_slot, std::uint8_t private_slot) {
  outstanding_ = arena::Grant{++sequence_, main_slot, private_slot};
  control_->grant(*outstanding_);
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
      last_captured_ = seen.captured->main.version;
      seen.used = *outstanding_;
      outstanding_.reset();
    } else {
      seen.complaint = "rank " + std::to_string(hello_.rank) + " reported a capture whose slots are not whole";
      grant(outstanding_->main_slot, outstanding_->private_slot);
    }
  } else if (used > sequence_) {
    seen.complaint = "rank " + std::to_string(hello_.rank) + " reported a capture that it was not granted";
  }
  if (attempted != attempted_ || capturing != capturing_) {
    const bool taken = capturing >= attempted || (last_captured_ && last_captured_.iteration() >= attempted);
    seen.skipped = attempted > attempted_ && !taken;
    attempted_ = attempted;
    capturing_ = capturing;
    seen.progress = protocol::Progress{hello_.rank, attempted, capturing};
  }
  return seen;
}

bool RankPort::take_captured(const Segments& segments, Seen& seen) const {
  const auto main = segments.find({hello_.rank, hello_.main_shard});
  const auto private_ = segments.find({hello_.rank, hello_.private_shard});
  if (main == nullptr || private_ == nullptr || outstanding_->main_slot >= main->spec().slots ||
      outstanding_->private_slot >= private_->spec().slots)
    return false;
  auto main_manifest = main->slot(outstanding_->main_slot).read();
  auto private_manifest = private_->slot(outstanding_->private_slot).read();
  if (!main_manifest || !private_manifest || main_manifest->version != private_manifest->version ||
      main_manifest->version <= last_captured_ || main_manifest->world_size != hello_.world_size ||
      private_manifest->world_size != hello_.world_size)
    return false;
  seen.captured = protocol::Captured{hello_.rank, piece_info(*main_manifest), piece_info(*private_manifest)};
  seen.main = std::move(*main_manifest);
  seen.private_ = std::move(*private_manifest);
  return true;
}

}  // namespace ckpt::agent
