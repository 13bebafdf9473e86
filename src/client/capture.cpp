#include "client/capture.hpp"

#include <utility>

#include "arena/gradient_record.hpp"
#include "base/check.hpp"
#include "base/error.hpp"
#include "options/options.hpp"

namespace ckpt::client {
namespace {

constexpr std::int64_t private_timeout_ms = 60'000;  // far longer than any copy of a private shard

std::optional<std::string> misfit_of(const char* which, const arena::Slot& slot, const PieceState& piece,
                                     bool has_record) {
  const ShardState& shard = *piece.shard;
  const std::uint64_t bytes = has_record ? arena::bytes_with_record(piece.length_bytes()) : piece.length_bytes();
  if (slot.fits(piece.length_bytes(), shard.layout_text.size()) && bytes <= slot.data_capacity_bytes())
    return std::nullopt;
  const bool is_part = piece.length_bytes() != shard.length_bytes();
  return std::string("the ") + which + " shard has grown to " + size_text(shard.length_bytes()) + " in " +
         std::to_string(shard.layout.entries.size()) + " tensors, but the slots for " +
         (is_part ? "this rank's part of it" : "it") + " were made for " + size_text(slot.data_capacity_bytes());
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
  if (session.slots != session_.slots) {
    late_.reset();
    own_.reset();
  }
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
  late_.reset();
  own_.reset();
  own_is_steady_ = false;
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
  for (std::size_t i = 0; i < session_.slots->size(); ++i) check_slot(i, grant.slots[i]);
  return grant;
}

void Capture::check_slot(std::size_t segment, std::uint8_t slot) {
  arena::Segment& of = (*session_.slots)[segment];
  if (slot >= of.slots()) follow_growth(of);
  if (slot >= of.slots())
    throw Failure(CKPT_ERR_INTERNAL,
                  "the agent granted a slot that does not exist; run ckptd and libckptengine of one version");
}

std::optional<std::string> Capture::misfit(const RankState& state) const {
  const Slots& slots = *session_.slots;
  for (std::size_t i = 0; i < slots.size(); ++i) {
    const char* which = i + 1 == slots.size() ? "private" : "main";
    const bool is_all = state.captured[i].length_bytes() == state.captured[i].shard->length_bytes();
    const bool has_record = has_records_ && slots.size() == 2 && i == 0 && is_all;
    if (auto sentence = misfit_of(which, slots[i].slot(0), state.captured[i], has_record)) return sentence;
  }
  return std::nullopt;
}

// If the device can, the private shard is sealed first.
void Capture::begin(const arena::Grant& grant, CheckpointId checkpoint, const RankState& state, device::Stream stream,
                    const device::Plan* private_plan) {
  check(!active_, "a capture begins before the previous one has ended");
  late_.reset();
  Slots& slots = *session_.slots;
  const std::size_t parts = slots.size() - 1;  // and the private shard
  const bool is_own_kept =
      seals_own_early_ && device_.can_start_late() && keep_own(checkpoint, state, stream, private_plan);
  std::array<device::Device::Copy, core::captures_max + 1> copies;
  for (std::size_t i = 0; i < parts; ++i) {
    auto slot = slots[i].writable_slot(grant.slots[i]);
    slot.begin();
    copies[i] = {&state.captured[i].plan, {slot.data(), slot.digests()}};
  }
  const auto record = record_copy(grant, state);
  if (record) copies[parts] = *record;
  device::Device::Copy own{&nothing_, {}};
  if (!is_own_kept) {
    auto slot = slots[parts].writable_slot(grant.slots[parts]);
    slot.begin();
    own = {private_plan != nullptr ? private_plan : &state.captured[parts].plan, {slot.data(), slot.digests()}};
  }
  // Store in this order: an iteration that was attempted and is not being captured has been captured or never will be.
  session_.control->capturing(checkpoint);
  session_.control->attempted(checkpoint.iteration());
  active_ = {grant,       checkpoint,
             &state,      is_own_kept ? own_->slot : grant.slots[parts],
             is_own_kept, record ? record->plan->length_bytes() : 0};
  if (!is_own_kept) own_.reset();
  device_.start(std::span(copies).first(parts + (record ? 1 : 0)), own, stream);
  // A GPU copies the private shard with the rest.
  if (!is_own_kept && seals_own_early_ && device_.captures_late() && device_.wait_for_synchronous(private_timeout_ms))
    seal_active_own();
}

// A record belongs to a main shard that is one piece.
std::optional<device::Device::Copy> Capture::record_copy(const arena::Grant& grant, const RankState& state) {
  const device::Plan* const record = std::exchange(record_, nullptr);
  if (record == nullptr || session_.slots->size() != 2) return std::nullopt;
  auto slot = session_.slots->front().writable_slot(grant.slots[0]);
  const auto place = slot.record_place(state.captured.front().length_bytes(), record->length_bytes());
  if (!place) return std::nullopt;
  return device::Device::Copy{record, {place->data, place->digests}};
}

void Capture::seal_active_own() {
  const PieceState& piece = active_->state->captured.back();
  own_ = Own{active_->own_slot, active_->checkpoint, piece.length_bytes(), piece.shard->layout_hash};
  seal_own(*active_->state);
  own_->is_kept = true;
  active_->is_own_sealed = own_->is_sealed;
}

// After a capture, one slot of its grant remains for this rank.
Capture::OwnSlots Capture::own_slots() {
  const arena::Control& control = *session_.control;
  const std::uint64_t used = control.used_grant();
  const bool in_spare = control.used_spare();
  const arena::Grant grant = control.grant();
  OwnSlots own;
  const std::size_t last = session_.slots->size() - 1;
  const bool is_open = grant.sequence != used;
  if (grant.sequence != 0 && (is_open || in_spare)) own.slots[own.count++] = grant.slots[last];
  if (grant.spare && (is_open || !in_spare)) own.slots[own.count++] = *grant.spare;
  for (std::size_t i = 0; i < own.count; ++i) check_slot(last, own.slots[i]);
  return own;
}

// Returns false if the device did not end the copy.
bool Capture::write_own(std::uint8_t slot, CheckpointId checkpoint, const RankState& state, device::Stream stream,
                        const device::Plan* private_plan, bool is_to_be_sealed) {
  const PieceState& piece = state.captured.back();
  auto to = session_.slots->back().writable_slot(slot);
  to.begin();
  own_ = Own{slot, checkpoint, piece.length_bytes(), piece.shard->layout_hash};
  const device::Plan& plan = private_plan != nullptr ? *private_plan : piece.plan;
  device_.start({}, {&plan, {to.data(), to.digests()}}, stream);
  if (!device_.wait_for_synchronous(private_timeout_ms)) {
    device_.cancel();
    own_.reset();
    return false;
  }
  if (is_to_be_sealed) seal_own(state);
  return true;
}

void Capture::seal_own(const RankState& state) {
  try {
    publish(session_.slots->size() - 1, own_->slot, own_->checkpoint, state.captured.back());
    own_->is_sealed = true;
  } catch (const Failure& failure) {
    failure_ = failure.what();
  }
}

bool Capture::keep_own(CheckpointId checkpoint, const RankState& state, device::Stream stream,
                       const device::Plan* private_plan) {
  check(!active_, "a private shard is sealed while a capture runs");
  const OwnSlots own = own_slots();
  if (own.count == 0) return false;
  const PieceState& piece = state.captured.back();
  const bool is_there = own_ && own_->checkpoint == checkpoint && own.has(own_->slot);
  if (is_there && own_->is_kept) return own_->is_sealed;
  bool is_same = false;
  if (is_there && own_->length_bytes == piece.length_bytes() && own_->layout_hash == piece.shard->layout_hash) {
    auto written = session_.slots->back().writable_slot(own_->slot);
    is_same = !device_.verify(private_plan != nullptr ? *private_plan : piece.plan, written.digests(), stream);
    own_is_steady_ = is_same;
  }
  const std::uint8_t other = own_ && own.slots[0] == own_->slot ? own.slots[own.count - 1] : own.slots[0];
  if (!is_same) {
    if (!write_own(is_there ? own_->slot : other, checkpoint, state, stream, private_plan, true)) return false;
  } else if (!own_->is_sealed) {
    seal_own(state);
  }
  own_->is_kept = true;
  return own_->is_sealed;
}

void Capture::prepare_own(CheckpointId checkpoint, const RankState& state) {
  check(!active_, "a private shard is prepared while a capture runs");
  const OwnSlots own = own_slots();
  for (std::size_t i = 0; i < own.count; ++i) {
    if (own_ && own.slots[i] == own_->slot) continue;
    write_own(own.slots[i], checkpoint, state, nullptr, nullptr, own_is_steady_);
    return;
  }
}

void Capture::expect_late(CheckpointId checkpoint, const RankState& state) {
  late_ = Late{checkpoint, &state};
  const std::size_t parts = session_.slots->size() - 1;
  std::array<device::Device::Copy, core::captures_max> pieces;
  for (std::size_t i = 0; i < parts; ++i) pieces[i] = {&state.captured[i].plan, {}};
  device_.reserve_late(std::span(pieces).first(parts));
}

bool Capture::begin_late(const arena::Grant& grant) {
  check(!active_ && late_ && own_, "a late capture begins without a sealed private shard");
  Slots& slots = *session_.slots;
  const std::size_t parts = slots.size() - 1;
  if (grant.slots[parts] != own_->slot && grant.spare != own_->slot) return false;
  std::array<device::Device::Copy, core::captures_max> copies;
  for (std::size_t i = 0; i < parts; ++i) {
    auto slot = slots[i].writable_slot(grant.slots[i]);
    slot.begin();
    copies[i] = {&late_->state->captured[i].plan, {slot.data(), slot.digests()}};
  }
  active_ = Active{grant, late_->checkpoint, late_->state, own_->slot, true};
  late_.reset();
  device_.start_late(std::span(copies).first(parts));
  return true;
}

std::uint64_t Capture::length_bytes() const {
  std::uint64_t bytes = 0;
  for (const PieceState& piece : active_->state->captured) bytes += piece.length_bytes();
  return bytes;
}

std::span<const std::byte> Capture::main_piece() const {
  return {session_.slots->front().slot(active_->grant.slots[0]).data(), active_->state->captured[0].length_bytes()};
}

// The slot was emptied, and its data and digests are written.
void Capture::publish(std::size_t segment, std::uint8_t number, CheckpointId checkpoint, const PieceState& piece) {
  const ShardState& shard = *piece.shard;
  auto slot = (*session_.slots)[segment].writable_slot(number);
  std::uint64_t& written_layout = written_layouts_[segment][number];
  if (written_layout != shard.layout_hash || !slot.holds_layout(piece.length_bytes(), shard.layout_hash)) {
    slot.write_layout(piece.length_bytes(), shard.layout_text);
    written_layout = shard.layout_hash;
  }
  slot.seal({.checkpoint = checkpoint.word(),
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
  const std::size_t last = session_.slots->size() - 1;
  if (active_->record_bytes != 0)
    session_.slots->front()
        .writable_slot(grant.slots[0])
        .seal_record(active_->checkpoint, active_->state->captured.front().length_bytes(), active_->record_bytes);
  for (std::size_t i = 0; i < last; ++i) publish(i, grant.slots[i], active_->checkpoint, active_->state->captured[i]);
  if (!active_->is_own_sealed) publish(last, active_->own_slot, active_->checkpoint, active_->state->captured[last]);
  session_.control->used_grant(grant.sequence, active_->own_slot != grant.slots[last]);
  return true;
} catch (const Failure& failure) {  // no thread of the device may throw; the grant stays unused
  failure_ = failure.what();
  return false;
}

void Capture::cancel() {
  device_.cancel();  // first: until this returns, the device may end the capture
  late_.reset();
  if (!active_) return;
  session_.control->capturing(CheckpointId());
  active_.reset();
}

}  // namespace ckpt::client
