#include "engine/capture.hpp"

#include "base/error.hpp"
#include "base/options.hpp"

namespace ckpt::engine {
namespace {

std::optional<std::string> misfit_of(const char* which, const arena::Slot& slot, const ShardState& shard) {
  if (slot.fits(shard.length_bytes(), shard.layout_text.size())) return std::nullopt;
  return std::string("the ") + which + " shard has grown to " + size_text(shard.length_bytes()) + " in " +
         std::to_string(shard.layout.entries.size()) + " tensors, but its slots were made for " +
         size_text(slot.data_capacity_bytes()) +
         "; restart the job, with option slot_bytes set to the largest size the state will have";
}

}  // namespace

void Capture::attach(Session session) {
  session_ = std::move(session);
  main_layouts_.fill(0);
  private_layouts_.fill(0);
}

std::optional<arena::Grant> Capture::unused_grant() const {
  const arena::Grant grant = session_.control->grant();
  if (grant.sequence == session_.control->used_grant()) return std::nullopt;
  if (grant.main_slot >= session_.slots->main.spec().slots ||
      grant.private_slot >= session_.slots->private_.spec().slots)
    throw Failure(CKPT_ERR_INTERNAL,
                  "the agent granted a slot that does not exist; do engine and agent have the same version?");
  return grant;
}

std::optional<std::string> Capture::misfit(const RankState& state) const {
  if (auto sentence = misfit_of("main", session_.slots->main.slot(0), state.main)) return sentence;
  return misfit_of("private", session_.slots->private_.slot(0), state.private_);
}

void Capture::begin(const arena::Grant& grant, Version version, const RankState& state) {
  auto main = session_.slots->main.writable_slot(grant.main_slot);
  auto private_ = session_.slots->private_.writable_slot(grant.private_slot);
  main.begin();
  private_.begin();
  // In this order: an iteration that was attempted and is not being captured has been captured or will never be.
  session_.control->capturing(version);
  session_.control->attempted(version.iteration());
  active_ = {grant, version, &state};
  device_.start(state.main.plan, {main.data(), main.digests()});
  device_.capture(state.private_.plan, {private_.data(), private_.digests()});
}

std::uint64_t Capture::length_bytes() const {
  return active_->state->main.length_bytes() + active_->state->private_.length_bytes();
}

void Capture::publish(arena::WritableSlot slot, const ShardState& shard, std::uint64_t& written_layout) const {
  if (written_layout != shard.layout_hash || !slot.holds_layout(shard.length_bytes(), shard.layout_hash)) {
    slot.write_layout(shard.length_bytes(), shard.layout_text);
    written_layout = shard.layout_hash;
  }
  slot.seal({.version = active_->version.word(),
             .length_bytes = shard.length_bytes(),
             .root_digest = 0,
             .layout_bytes = shard.layout_text.size(),
             .layout_hash = shard.layout_hash,
             .world_size = world_size_});
}

bool Capture::finish(Deadline deadline) {
  if (!device_.finish(deadline)) return false;
  const arena::Grant grant = active_->grant;
  publish(session_.slots->main.writable_slot(grant.main_slot), active_->state->main, main_layouts_[grant.main_slot]);
  publish(session_.slots->private_.writable_slot(grant.private_slot), active_->state->private_,
          private_layouts_[grant.private_slot]);
  session_.control->used_grant(grant.sequence);
  session_.control->capturing(Version());
  session_.control->ring_agent();
  active_.reset();
  return true;
}

void Capture::cancel() {
  if (!active_) return;
  device_.cancel();
  session_.control->capturing(Version());
  active_.reset();
}

}  // namespace ckpt::engine
