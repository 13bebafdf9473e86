#include "client/capture.hpp"

#include "base/check.hpp"
#include "base/error.hpp"
#include "options/options.hpp"

namespace ckpt::client {
namespace {

constexpr std::int64_t private_timeout_ms = 60'000;  // far longer than any copy of a private shard

std::optional<std::string> misfit_of(const char* which, const arena::Slot& slot, const PieceState& piece) {
  const ShardState& shard = *piece.shard;
  if (slot.fits(piece.length_bytes(), shard.layout_text.size())) return std::nullopt;
  const bool is_part = piece.length_bytes() != shard.length_bytes();
  return std::string("the ") + which + " shard has grown to " + size_text(shard.length_bytes()) + " in " +
         std::to_string(shard.layout.entries.size()) + " tensors, but its slots were made for " +
         size_text(slot.data_capacity_bytes()) + (is_part ? " of its part" : "");
}

device::Range range_of(const arena::Segment& segment, std::uint32_t slot) {
  const auto memory = segment.slot_memory(slot);
  return {memory.data(), memory.size()};
}

}  // namespace

std::vector<device::Range> ranges_of(const Slots& slots) {
  std::vector<device::Range> ranges;
  for (const arena::Segment& segment : slots)
    for (std::uint32_t slot = 0; slot < segment.slots(); ++slot) ranges.push_back(range_of(segment, slot));
  return ranges;
}

void Capture::attach(AgentSession session) {
  for (WrittenLayouts& written : written_layouts_) written.fill(0);
  if (session.slots != session_.slots) small_.reset();
  if (session.slots && session.slots == attached_ && !device_.wants_ranges()) {
    session_ = std::move(session);
    return;
  }
  // Without slots there is nothing to forget but what the device has prepared for them.
  if (session.slots || attached_)
    device_.attach(session.slots ? ranges_of(*session.slots) : std::vector<device::Range>(), session.slots);
  attached_ = session.slots;
  session_ = std::move(session);
}

void Capture::renew() {
  session_ = {};
  small_.reset();
  failure_.clear();
  is_torn_.store(false);
}

// The agent adds a slot while captures wait for replication.
void Capture::follow_growth(arena::Segment& segment) {
  std::uint32_t slot = segment.slots();
  segment.notice_growth();
  for (; slot < segment.slots(); ++slot) device_.attach_also(range_of(segment, slot), session_.slots);
}

std::optional<arena::Grant> Capture::unused_grant() {
  const arena::Grant grant = session_.control->grant();
  if (grant.sequence == session_.control->used_grant()) return std::nullopt;
  Slots& slots = *session_.slots;
  for (std::size_t i = 0; i < slots.size(); ++i) {
    if (grant.slots[i] >= slots[i].slots()) follow_growth(slots[i]);
    if (grant.slots[i] >= slots[i].slots())
      throw Failure(CKPT_ERR_INTERNAL,
                    "the agent granted a slot that does not exist; do engine and agent have the same version?");
  }
  return grant;
}

std::optional<std::string> Capture::misfit(const RankState& state) const {
  const Slots& slots = *session_.slots;
  for (std::size_t i = 0; i < slots.size(); ++i) {
    const char* which = i + 1 == slots.size() ? "private" : "main";
    if (auto sentence = misfit_of(which, slots[i].slot(0), state.captured[i])) return sentence;
  }
  return std::nullopt;
}

void Capture::begin(const arena::Grant& grant, CheckpointId checkpoint, const RankState& state, device::Stream stream,
                    const device::Plan* private_plan) {
  check(!active_, "a capture begins before the previous one has ended");
  small_.reset();
  Slots& slots = *session_.slots;
  std::array<device::Device::Copy, core::captures_max> copies;
  for (std::size_t i = 0; i < slots.size(); ++i) {
    auto slot = slots[i].writable_slot(grant.slots[i]);
    slot.begin();
    copies[i] = {&state.captured[i].plan, {slot.data(), slot.digests()}};
  }
  // Store in this order: an iteration that was attempted and is not being captured has been captured or never will be.
  session_.control->capturing(checkpoint);
  session_.control->attempted(checkpoint.iteration());
  active_ = {grant, checkpoint, &state};
  const std::size_t parts = slots.size() - 1;  // and the private shard
  if (private_plan != nullptr) copies[parts].plan = private_plan;
  device_.start(std::span(copies).first(parts), copies[parts], stream);
  if (seals_small_early_ && device_.captures_late() && device_.wait_for_synchronous(private_timeout_ms))
    publish_small(*active_);
}

void Capture::seal_small(const arena::Grant& grant, CheckpointId checkpoint, const RankState& state,
                         device::Stream stream, const device::Plan* private_plan) {
  check(!active_, "a private shard is sealed while a capture runs");
  small_.reset();
  const std::size_t last = session_.slots->size() - 1;
  auto slot = (*session_.slots)[last].writable_slot(grant.slots[last]);
  slot.begin();
  // In the order of begin(). The agent takes the iteration for one that is still being captured.
  session_.control->capturing(checkpoint);
  session_.control->attempted(checkpoint.iteration());
  const device::Plan& plan = private_plan != nullptr ? *private_plan : state.captured[last].plan;
  device_.start({}, {&plan, {slot.data(), slot.digests()}}, stream);
  if (!device_.wait_for_synchronous(private_timeout_ms)) {
    device_.cancel();
    session_.control->capturing(CheckpointId());
    return;
  }
  Active small{grant, checkpoint, &state};
  publish_small(small);
  if (!small.is_small_sealed) return;
  small_ = small;
  reserve_late(small);
}

void Capture::reserve_late(const Active& of) {
  const std::size_t parts = session_.slots->size() - 1;
  std::array<device::Device::Copy, core::captures_max> pieces;
  for (std::size_t i = 0; i < parts; ++i) pieces[i] = {&of.state->captured[i].plan, {}};
  device_.reserve_late(std::span(pieces).first(parts));
}

void Capture::begin_late() {
  check(!active_ && small_, "a late capture begins without a sealed private shard");
  Slots& slots = *session_.slots;
  const std::size_t parts = slots.size() - 1;
  std::array<device::Device::Copy, core::captures_max> copies;
  for (std::size_t i = 0; i < parts; ++i) {
    auto slot = slots[i].writable_slot(small_->grant.slots[i]);
    slot.begin();
    copies[i] = {&small_->state->captured[i].plan, {slot.data(), slot.digests()}};
  }
  active_ = std::exchange(small_, std::nullopt);
  device_.start_late(std::span(copies).first(parts));
}

// The slot was emptied, and its data and digests are written. A piece that cannot be sealed now is sealed, or refused,
// at the end of the capture.
void Capture::publish_small(Active& of) {
  const std::size_t last = session_.slots->size() - 1;
  const std::uint8_t slot = of.grant.slots[last];
  try {
    publish((*session_.slots)[last].writable_slot(slot), of, of.state->captured[last], written_layouts_[last][slot]);
    of.is_small_sealed = true;
  } catch (const Failure& failure) {
    failure_ = failure.what();
  }
}

std::uint64_t Capture::length_bytes() const {
  std::uint64_t bytes = 0;
  for (const PieceState& piece : active_->state->captured) bytes += piece.length_bytes();
  return bytes;
}

std::span<const std::byte> Capture::main_piece() const {
  return {session_.slots->front().slot(active_->grant.slots[0]).data(), active_->state->captured[0].length_bytes()};
}

void Capture::publish(arena::WritableSlot slot, const Active& of, const PieceState& piece,
                      std::uint64_t& written_layout) const {
  const ShardState& shard = *piece.shard;
  if (written_layout != shard.layout_hash || !slot.holds_layout(piece.length_bytes(), shard.layout_hash)) {
    slot.write_layout(piece.length_bytes(), shard.layout_text);
    written_layout = shard.layout_hash;
  }
  slot.seal({.checkpoint = of.checkpoint.word(),
             .length_bytes = piece.length_bytes(),
             .root_digest = 0,
             .layout_bytes = shard.layout_text.size(),
             .layout_hash = shard.layout_hash,
             .world_size = world_size_});
}

bool Capture::release(std::span<const device::Stream> streams, std::int64_t timeout_ms, Sealed sealed) {
  sealed_ = std::move(sealed);
  failure_.clear();
  return device_.release(streams, timeout_ms, [this](bool whole) { over(whole); });
}

// Runs on any thread.
void Capture::over(bool whole) {
  whole = whole && !is_torn_.load() && seal();
  session_.control->capturing(CheckpointId());
  session_.control->ring_agent();
  active_.reset();
  const Sealed sealed = std::move(sealed_);  // the training thread may release the next capture during the call
  sealed(whole);
}

bool Capture::seal() try {
  const arena::Grant grant = active_->grant;
  Slots& slots = *session_.slots;
  for (std::size_t i = 0; i < slots.size() - (active_->is_small_sealed ? 1 : 0); ++i) {
    const std::uint8_t slot = grant.slots[i];
    publish(slots[i].writable_slot(slot), *active_, active_->state->captured[i], written_layouts_[i][slot]);
  }
  session_.control->used_grant(grant.sequence);
  return true;
} catch (const Failure& failure) {  // no thread of the device may throw; the grant stays unused
  failure_ = failure.what();
  return false;
}

void Capture::cancel() {
  device_.cancel();  // first: until this returns, the device may end the capture
  small_.reset();
  if (!active_) return;
  session_.control->capturing(CheckpointId());
  active_.reset();
}

}  // namespace ckpt::client
