// The part of a coding job that takes parity which is made elsewhere. The job computes the rest itself.
#include "agent/transfers/made_parity.hpp"

#include <algorithm>

#include "agent/transfers/coding_job.hpp"
#include "kernels/digest.hpp"

namespace ckpt::agent {

void CodingJob::stop_waiting() {
  {
    const std::lock_guard lock(mutex_);
    may_wait_ = false;
  }
  look();
}

void CodingJob::begin_to_take() {
  {
    const std::lock_guard lock(mutex_);
    takes_ = true;
    ++under_way_;  // until go_on()
    arrival_deadline_ = Deadline::in_ms(deps_.arrival_timeout_ms);
  }
  look();
}

// Leaves are taken in order, by one thread at a time. The first wrong one ends it.
void CodingJob::look() {
  std::size_t first = 0, last = 0;
  {
    const std::lock_guard lock(mutex_);
    if (!takes_ || is_taking_) return;
    const bool takes_no_more = cancelled_ || failure_ || has_wrong_leaf_;
    first = taken_;
    last = takes_no_more ? first : std::clamp(made_->leaves(), first, leaves_.size());
    const bool waits = !takes_no_more && may_wait_ && !arrival_deadline_.passed();
    if (first == last && first != leaves_.size() && waits) return;
    takes_ = first != last;
    is_taking_ = takes_;
    arrival_deadline_ = Deadline::in_ms(deps_.arrival_timeout_ms);
  }
  deps_.pool.submit(
      [self = shared_from_this(), first, last] { first == last ? self->go_on() : self->take(first, last); });
}

void CodingJob::take(std::size_t first_leaf, std::size_t last_leaf) {
  std::size_t leaf = first_leaf;
  while (leaf < last_leaf && take(leaf)) ++leaf;
  {
    const std::lock_guard lock(mutex_);
    taken_ = leaf;
    has_wrong_leaf_ = leaf != last_leaf;
    is_taking_ = false;
  }
  look();
}

// The maker may write meanwhile. So its digests are read once, and the copy in the slot is digested.
bool CodingJob::take(std::size_t leaf) {
  const std::uint64_t at = std::uint64_t{leaf} * kernels::leaf_size_bytes;
  const auto step = std::find_if(steps_.begin(), steps_.end(), [&](const placement::DecodeStep& each) {
    return at >= each.bytes.first_byte && at - each.bytes.first_byte < each.bytes.size_bytes;
  });
  if (step == steps_.end() || at + kernels::leaf_size_bytes > piece_.length_bytes) return false;
  std::byte* const place = destination_.data() + at;
  const MadeParity::Leaf made = made_->copy(leaf, place);
  if (made.sources.size() != layout_.columns()) return false;
  for (const auto& source : step->sources) {
    if (layout_.is_parity(source.position)) return false;
    if (made.sources[source.position] != source_digest(source, at - step->bytes.first_byte)) return false;
  }
  if (kernels::leaf_digest(place, kernels::leaf_size_bytes) != made.digest) return false;
  leaves_[leaf] = made.digest;
  return true;
}

// The digest of the leaf at this offset of a source. 0 if the source has ended there: zeros are added.
std::uint64_t CodingJob::source_digest(const placement::DecodeSource& source, std::uint64_t offset) const {
  if (offset >= source.bytes.size_bytes) return 0;
  const auto& leaves = kept_.members[source.member]->leaves;
  const std::uint64_t leaf = (source.bytes.first_byte + offset) / kernels::leaf_size_bytes;
  return leaf < leaves.size() ? leaves[leaf] : 0;
}

// Computes what was not taken.
void CodingJob::go_on() {
  {
    const std::lock_guard lock(mutex_);
    std::uint64_t left = std::uint64_t{taken_} * kernels::leaf_size_bytes;
    outcome_.taken_bytes = left;
    for (; step_ < steps_.size() && left >= steps_[step_].bytes.size_bytes; ++step_)
      left -= steps_[step_].bytes.size_bytes;
    in_step_ = left;
  }
  launch();
  {
    const std::lock_guard lock(mutex_);
    --under_way_;
  }
  finish_if_over();
}

}  // namespace ckpt::agent
