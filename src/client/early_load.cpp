#include "client/early_load.hpp"

#include <algorithm>

#include "kernels/digest.hpp"

namespace ckpt::client {
namespace {

// 4 MiB: between two steps, the engine looks whether the agent has answered.
constexpr std::size_t leaves_per_step = 64;
constexpr std::int64_t wait_ms = 5;

bool is_same_piece(const arena::Manifest& a, const arena::Manifest& b) {
  return a.shard == b.shard && a.checkpoint == b.checkpoint && a.length_bytes == b.length_bytes &&
         a.root_digest == b.root_digest;
}

// Of two pieces of the main shard, or two private shards. Different parts of one cut share nothing.
bool share_tensors(const arena::Manifest& a, const arena::Manifest& b) {
  const core::ShardPart first = core::parse_part(a.shard), second = core::parse_part(b.shard);
  return first.of != second.of || first.index == second.index;
}

}  // namespace

bool ArrivingPiece::find(CheckpointId checkpoint) {
  auto arrival = slot_.arrival();
  if (!arrival || arrival->manifest.checkpoint != checkpoint) return false;
  arrival_ = std::move(*arrival);
  return true;
}

ArrivingPiece::Step ArrivingPiece::load(device::Device& device, const device::Plan& plan) {
  const std::uint64_t arrived_bytes = std::min(slot_.arrived_bytes(), manifest().length_bytes);
  const std::size_t all = manifest().leaves.size();
  const std::size_t arrived = arrived_bytes == manifest().length_bytes ? all : arrived_bytes / kernels::leaf_size_bytes;
  const std::size_t last = std::min(arrived, leaves_ + leaves_per_step);
  const bool has_news = leaves_ < last;
  std::optional<std::size_t> bad;
  if (has_news) bad = device.load_leaves(plan, {slot_.data(), manifest().leaves.data()}, leaves_, last);
  has_changed_tensors_ = has_changed_tensors_ || has_news;
  // If somebody writes to the slot meanwhile, what was copied may differ from what was verified.
  if (!slot_.is_arriving(arrival_.number)) return Step::over;
  leaves_ = std::max(leaves_, bad.value_or(last));
  if (bad || leaves_ == all) return Step::over;
  return has_news ? Step::copied : Step::waits;
}

void EarlyLoad::follow(ArrivingSlot arriving) {
  if (arriving.is_whole) return;
  const ArrivingPiece piece(arriving.segment.slot(arriving.slot));
  followed_.push_front({std::move(arriving), piece});
}

bool EarlyLoad::step() noexcept {
  try {
    if (followed_.empty()) return false;
    const Followed& first = followed_.front();
    const std::uint32_t seen = first.piece.doorbell();
    if (!copy_arrived() && !followed_.empty() && &first == &followed_.front())
      first.piece.wait(seen, Deadline::in_ms(wait_ms));
  } catch (const std::exception&) {
    followed_.clear();  // the pieces are loaded once they are whole
  }
  return !followed_.empty();
}

// Returns false if nothing has arrived.
bool EarlyLoad::copy_arrived() {
  bool has_copied = false;
  for (auto it = followed_.begin(); it != followed_.end();) {
    const auto each = it++;
    const ArrivingPiece::Step step = advance(*each);
    has_copied = has_copied || step != ArrivingPiece::Step::waits;
    if (step == ArrivingPiece::Step::over) followed_.erase(each);
    if (step == ArrivingPiece::Step::copied) followed_.splice(followed_.begin(), followed_, each);
  }
  return has_copied;
}

ArrivingPiece::Step EarlyLoad::advance(Followed& followed) {
  if (followed.is_overtaken) return ArrivingPiece::Step::over;
  if (!followed.plan) {
    if (!followed.piece.find(followed.slot.checkpoint)) return ArrivingPiece::Step::waits;
    if (!begin(followed)) return ArrivingPiece::Step::over;
  }
  const ArrivingPiece::Step step = followed.piece.load(device_, *followed.plan);
  has_changed_tensors_ = has_changed_tensors_ || followed.piece.has_changed_tensors();
  loaded(followed).leaves = followed.piece.leaves();
  return step;
}

// Returns false if the piece does not fit the tensors. Once all is there, restore() says why.
bool EarlyLoad::begin(Followed& followed) {
  const arena::Manifest& manifest = followed.piece.manifest();
  const ShardState& shard = followed.slot.is_private ? state_.private_ : state_.main;
  const auto range = arena::range_of(core::parse_part(manifest.shard), shard.length_bytes());
  if (manifest.layout_hash != shard.layout_hash || manifest.length_bytes != range.size_bytes) return false;
  followed.plan = shard.plan.slice(range.first_byte, range.size_bytes);
  take_tensors(followed);
  followed.piece.skip(loaded(followed).leaves);
  return true;
}

// Another piece may still be arriving that the decision no longer names. The same piece may arrive in another slot
// anew.
void EarlyLoad::take_tensors(const Followed& followed) {
  const arena::Manifest& manifest = followed.piece.manifest();
  const auto shares = [&](const arena::Manifest& other, bool is_private) {
    return is_private == followed.slot.is_private && share_tensors(other, manifest);
  };
  for (Followed& other : followed_)
    if (&other != &followed && other.plan && shares(other.piece.manifest(), other.slot.is_private))
      other.is_overtaken = true;
  std::erase_if(loaded_, [&](const Loaded& other) {
    return shares(other.manifest, other.is_private) && !is_same_piece(other.manifest, manifest);
  });
}

EarlyLoad::Loaded& EarlyLoad::loaded(const Followed& followed) {
  const arena::Manifest& manifest = followed.piece.manifest();
  const auto found = std::find_if(loaded_.begin(), loaded_.end(),
                                  [&](const Loaded& each) { return is_same_piece(each.manifest, manifest); });
  return found != loaded_.end() ? *found : loaded_.emplace_back(Loaded{manifest, followed.slot.is_private, 0});
}

void EarlyLoad::forget() {
  followed_.clear();
  loaded_.clear();
  has_changed_tensors_ = true;
}

std::size_t EarlyLoad::leaves_loaded(const arena::Manifest& manifest) const {
  const auto found = std::find_if(loaded_.begin(), loaded_.end(),
                                  [&](const Loaded& each) { return is_same_piece(each.manifest, manifest); });
  return found == loaded_.end() ? 0 : found->leaves;
}

}  // namespace ckpt::client
