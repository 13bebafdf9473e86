#include "agent/pieces/segments.hpp"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <set>
#include <utility>

#include "arena/space_left.hpp"
#include "base/same_file.hpp"

namespace ckpt::agent {
namespace {

using core::held_rank;
using core::SlotRef;

SegmentKey key_of(const arena::SegmentSpec& spec) {
  return {spec.kind == arena::SegmentKind::held ? held_rank : spec.rank, spec.shard};
}

std::uint64_t number_of(const arena::Segment& segment) {
  const std::string& path = segment.path();
  const auto slash = path.rfind('/') + 1;
  std::uint64_t number = 0;
  std::from_chars(path.data() + slash, path.data() + path.size(), number);
  return number;
}

// Copies a whole piece from an outgrown segment into its successor.
void copy_piece(const arena::Segment& from, arena::Segment& to, std::uint32_t slot) {
  const auto manifest = from.slot(slot).read();
  if (!manifest) return;
  auto target = to.writable_slot(slot);
  target.begin();
  if (manifest->length_bytes != 0) std::memcpy(target.data(), from.slot(slot).data(), manifest->length_bytes);
  target.seal(*manifest);
}

constexpr unsigned touching_threads = 2;

std::string mebibytes(std::uint64_t bytes) { return std::to_string((bytes + (1u << 20) - 1) >> 20) + " MiB"; }

}  // namespace

// A request on its way through the maker's thread: first what to make, then the result.
struct Segments::Made {
  Request request;
  std::vector<std::pair<std::shared_ptr<arena::Segment>, std::uint32_t>> grown;  // with the number of slots they get
  std::vector<std::pair<SegmentKey, arena::SegmentSpec>> specs;
  std::vector<std::shared_ptr<arena::Segment>> outgrown;  // one per spec, or null
  std::vector<arena::Segment> segments;
  std::optional<Failure> failure;
};

Segments::Segments(arena::NodeArena& arena, const Limits& limits, PieceIndex& index, CoreQueue& queue,
                   std::function<bool(const SegmentKey&)> busy)
    : arena_(arena), limits_(limits), index_(index), queue_(queue), busy_(std::move(busy)) {}

Segments::~Segments() = default;

core::Recovered Segments::recover(const std::vector<core::Recovered::Granted>& granted,
                                  std::vector<std::string>& notices) {
  std::set<SlotRef> granted_slots;
  for (const auto& grant : granted) {
    granted_slots.insert(grant.slots.begin(), grant.slots.end());
    if (grant.spare) granted_slots.insert(*grant.spare);
  }
  auto found = arena_.attach_segments(notices);
  // If an agent died while it enlarged a segment, there are two. The older one is whole until it is removed.
  std::sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return number_of(a) < number_of(b); });
  core::Recovered recovered;
  bool is_damaged = false;
  for (arena::Segment& segment : found) {
    const SegmentKey key = key_of(segment.spec());
    if (segments_.contains(key)) {
      notices.push_back("removed " + segment.path() + ", which an earlier agent left unfinished");
      arena::NodeArena::remove_segment(std::move(segment));
      continue;
    }
    const auto shared = std::make_shared<arena::Segment>(std::move(segment));
    segments_[key] = shared;
    for (std::uint32_t i = 0; i < shared->slots(); ++i) {
      const SlotRef slot{key.rank, key.shard, static_cast<std::uint8_t>(i)};
      auto manifest = granted_slots.contains(slot) ? std::nullopt : shared->slot(i).read();
      recovered.slots.push_back({slot, {}, false});
      if (!manifest) continue;
      try {
        recovered.slots.back().piece = piece_info(*manifest);
      } catch (const Failure& failure) {
        notices.push_back("dropped a damaged piece in " + shared->path() +
                          " (other nodes may have copies): " + failure.what());
        is_damaged = true;  // nobody knows which checkpoint the piece belonged to
        continue;
      }
      recovered.slots.back().whole = true;
      index_.add(slot, shared, std::move(*manifest));
    }
  }
  std::copy_if(granted.begin(), granted.end(), std::back_inserter(recovered.granted), [&](const auto& grant) {
    const auto is_here = [&](const SlotRef& slot) { return segments_.contains({slot.rank, slot.shard}); };
    return std::all_of(grant.slots.begin(), grant.slots.end(), is_here) && (!grant.spare || is_here(*grant.spare));
  });
  const arena::NodeMemory memory = arena_.memory();
  recovered.highest_commit = memory.highest_commit;
  recovered.newest_seen = memory.newest_seen;
  recovered.newest_damaged = is_damaged ? memory.newest_seen : memory.newest_damaged;
  recovered.epoch = memory.highest_epoch;
  return recovered;
}

std::shared_ptr<arena::Segment> Segments::find(const SegmentKey& key) const {
  const auto found = segments_.find(key);
  return found == segments_.end() ? nullptr : found->second;
}

arena::SegmentSpec Segments::spec_for(const SegmentKey& key, const SlotNeed& need) const {
  const bool held = key.rank == held_rank;
  arena::SegmentSpec spec;
  spec.kind = held ? arena::SegmentKind::held : arena::SegmentKind::local;
  spec.rank = held ? 0 : key.rank;
  const std::uint32_t spare = need.has_spare ? 1 : 0;
  spec.slots = std::max(held ? limits_.held_slots : limits_.local_slots, need.slots) + spare;
  spec.slots_max = std::max((held ? limits_.held_slots : limits_.local_slots_max) + spare, spec.slots);
  spec.shard = key.shard;
  spec.data_capacity_bytes = need.data_bytes;
  spec.manifest_capacity_bytes = arena::manifest_bytes(need.data_bytes, need.layout_bytes);
  // A successor holds everything that its predecessor held.
  if (const auto old = find(key)) {
    spec.slots = std::max(spec.slots, old->slots());
    spec.slots_max = std::max(spec.slots_max, old->spec().slots_max);
    spec.data_capacity_bytes = std::max(spec.data_capacity_bytes, old->spec().data_capacity_bytes);
    spec.manifest_capacity_bytes = std::max(spec.manifest_capacity_bytes, old->spec().manifest_capacity_bytes);
  }
  return spec;
}

std::uint64_t Segments::segment_bytes(const SegmentKey& key, const SlotNeed& need) const {
  return arena::segment_bytes(spec_for(key, need));
}

bool Segments::large_enough(const SegmentKey& key, const SlotNeed& need) const {
  const auto segment = find(key);
  return segment != nullptr && !is_outgrown(key, need) && segment->slots() >= spec_for(key, need).slots;
}

// Whether the segment's file has no room for the need, so that a new segment must take its place.
bool Segments::is_outgrown(const SegmentKey& key, const SlotNeed& need) const {
  const auto segment = find(key);
  return segment != nullptr && (segment->spec().slots_max < spec_for(key, need).slots ||
                                !segment->slot(0).fits(need.data_bytes, need.layout_bytes));
}

void Segments::ensure(const std::vector<std::pair<SegmentKey, SlotNeed>>& needs, std::uint64_t extra_bytes, Done done) {
  waiting_.push_back({needs, extra_bytes, std::move(done)});
  if (!making_) start_next();
}

void Segments::start_next() {
  while (!making_ && !waiting_.empty()) {
    Request request = std::move(waiting_.front());
    waiting_.pop_front();
    const bool there = std::all_of(request.needs.begin(), request.needs.end(),
                                   [&](const auto& need) { return large_enough(need.first, need.second); });
    if (there)
      request.done(std::nullopt);
    else if (outgrows_busy(request))
      blocked_.push_back(std::move(request));
    else
      make(std::move(request));
  }
}

bool Segments::outgrows_busy(const Request& request) const {
  return std::any_of(request.needs.begin(), request.needs.end(), [&](const auto& need) {
    const auto& [key, slots] = need;
    return is_outgrown(key, slots) && busy_(key);
  });
}

void Segments::unblock() {
  std::move(blocked_.begin(), blocked_.end(), std::back_inserter(waiting_));
  blocked_.clear();
  if (!making_) start_next();
}

void Segments::make(Request request) {
  auto made = std::make_shared<Made>();
  made->request = std::move(request);
  try {
    std::uint64_t more_bytes = made->request.extra_bytes;
    for (const auto& [key, need] : made->request.needs) {
      if (large_enough(key, need)) continue;
      const arena::SegmentSpec spec = spec_for(key, need);
      const auto there = find(key);
      if (there != nullptr && !is_outgrown(key, need)) {
        more_bytes += (spec.slots - there->slots()) * arena::slot_bytes(spec);
        made->grown.emplace_back(there, spec.slots);
        continue;
      }
      more_bytes += arena::segment_bytes(spec);
      made->specs.emplace_back(key, spec);
      made->outgrown.push_back(there);
    }
    check_space(more_bytes);
  } catch (const Failure& failure) {
    return made->request.done(failure);
  }
  making_ = true;
  maker_.submit([this, made] {
    try {
      for (const auto& [segment, slots] : made->grown) segment->grow(slots, touching_threads);
      for (std::size_t i = 0; i < made->specs.size(); ++i) {
        made->segments.push_back(arena_.create_segment(made->specs[i].second, touching_threads));
        if (made->outgrown[i] == nullptr) continue;
        for (std::uint32_t slot = 0; slot < made->outgrown[i]->slots(); ++slot)
          copy_piece(*made->outgrown[i], made->segments.back(), slot);
      }
    } catch (const Failure& failure) {
      made->failure = failure;
    } catch (const std::exception& error) {
      made->failure = Failure(CKPT_ERR_SYSTEM, std::string("cannot make a segment in the arena: ") + error.what());
    }
    queue_.post([this, made] { finish(made); });
  });
}

void Segments::finish(std::shared_ptr<Made> made) {
  making_ = false;
  for (std::size_t i = 0; i < made->segments.size(); ++i) {
    if (made->failure)
      arena::NodeArena::remove_segment(std::move(made->segments[i]));
    else
      adopt(made->specs[i].first, std::move(made->segments[i]));
  }
  made->request.done(made->failure);
  if (!making_) start_next();
}

void Segments::adopt(const SegmentKey& key, arena::Segment segment) {
  const auto successor = std::make_shared<arena::Segment>(std::move(segment));
  const auto outgrown = std::exchange(segments_[key], successor);
  if (outgrown == nullptr) return;
  for (std::uint32_t i = 0; i < outgrown->slots(); ++i) {
    const SlotRef slot{key.rank, key.shard, static_cast<std::uint8_t>(i)};
    const Pin piece = index_.find(slot);
    auto manifest = successor->slot(i).read();
    if (piece != nullptr && manifest && manifest->checkpoint == piece->manifest().checkpoint) {
      index_.add(slot, successor, std::move(*manifest));
    } else if (manifest) {
      successor->writable_slot(i).drop(manifest->checkpoint);  // dropped while it was copied
    }
  }
  unlink_same(outgrown->path(), outgrown->fd());  // current readers have it mapped
}

void Segments::check_space(std::uint64_t more_bytes) const {
  const std::uint64_t used = bytes_used(), left = space_left_bytes();
  const std::string what = "the arena needs " + mebibytes(more_bytes) + " more in " + arena_.directory();
  if (limits_.budget_bytes != 0 && used + more_bytes > limits_.budget_bytes)
    throw Failure(CKPT_ERR_NO_SPACE, what + ", but uses " + mebibytes(used) + " of the " +
                                         mebibytes(limits_.budget_bytes) +
                                         " that the option arena_bytes allows; raise arena_bytes");
  if (more_bytes > left)
    throw Failure(CKPT_ERR_NO_SPACE, what + ", but only " + mebibytes(left) +
                                         " are free there; enlarge that file system (mount -o remount,size=..., or "
                                         "--shm-size of the container), or set the option arena_dir to a larger tmpfs");
}

void Segments::remove(const SegmentKey& key) {
  const auto found = segments_.find(key);
  if (found == segments_.end()) return;
  const auto segment = std::move(found->second);
  segments_.erase(found);
  unlink_same(segment->path(), segment->fd());
}

std::vector<std::pair<SegmentKey, std::shared_ptr<arena::Segment>>> Segments::take_damaged() {
  std::vector<std::pair<SegmentKey, std::shared_ptr<arena::Segment>>> damaged;
  for (const auto& [key, segment] : segments_)
    if (!segment->is_whole_file()) damaged.emplace_back(key, segment);
  for (const auto& [key, segment] : damaged) remove(key);
  return damaged;
}

std::uint64_t Segments::nameless_bytes() const {
  std::uint64_t bytes = 0;
  for (const auto& [key, segment] : segments_)
    if (!is_same_file(segment->path(), segment->fd())) bytes += segment->size_bytes();
  return bytes;
}

std::uint64_t Segments::bytes_used() const {
  std::uint64_t used = besides_bytes_;
  for (const auto& [key, segment] : segments_) used += segment->size_bytes();
  return used;
}

std::uint64_t Segments::space_left_bytes() const { return arena::space_left_bytes(arena_.directory()); }

}  // namespace ckpt::agent
