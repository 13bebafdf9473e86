#include "agent/transfers/fetch_sink.hpp"

#include <algorithm>

#include "agent/pieces/piece_index.hpp"
#include "base/error.hpp"
#include "kernels/copy_digest.hpp"

namespace ckpt::agent {

using core::FetchResult;

FetchSink::FetchSink(std::shared_ptr<arena::Segment> segment, std::uint8_t slot, core::PieceInfo expected,
                     WorkerPool& pool, Done done)
    : segment_(std::move(segment)),
      slot_(segment_->writable_slot(slot)),
      expected_(std::move(expected)),
      pool_(pool),
      done_(std::move(done)) {}

void FetchSink::cancel() {
  const std::lock_guard lock(mutex_);
  cancelled_ = true;
}

std::optional<std::span<std::byte>> FetchSink::begin(std::span<const std::byte> manifest, std::size_t data_bytes) {
  {
    const std::lock_guard lock(mutex_);
    if (cancelled_ || over_) return std::nullopt;
  }
  if (!accept(manifest, data_bytes)) {
    const std::lock_guard lock(mutex_);
    corrupt_ = true;
    return std::nullopt;
  }
  slot_.begin();
  slot_.drop(CheckpointId());  // this checkpoint may have been dropped from here before
  leaf_bytes_.assign(manifest_.leaves.size(), 0);
  return std::span(slot_.data(), data_bytes);
}

// Nothing that the source says is believed beyond what was announced to us.
bool FetchSink::accept(std::span<const std::byte> manifest, std::size_t data_bytes) {
  try {
    manifest_ = arena::decode_manifest(manifest);
    return piece_info(manifest_) == expected_ && manifest_.length_bytes == data_bytes &&
           slot_.fits(manifest_.length_bytes, manifest_.layout.size());
  } catch (const Failure&) {
    return false;
  }
}

void FetchSink::received(std::size_t offset_bytes, std::size_t size_bytes) {
  // Neighbouring leaves that became whole are verified in one go.
  std::size_t run_begin = 0, run_end = 0;
  for (std::size_t at = offset_bytes; at < offset_bytes + size_bytes;) {
    const std::size_t leaf = at / kernels::leaf_size_bytes;
    if (leaf >= leaf_bytes_.size()) return;
    const std::size_t leaf_end = std::min((leaf + 1) * kernels::leaf_size_bytes, offset_bytes + size_bytes);
    leaf_bytes_[leaf] += static_cast<std::uint32_t>(leaf_end - at);
    at = leaf_end;
    if (leaf_bytes_[leaf] < kernels::leaf_length(manifest_.length_bytes, leaf)) continue;
    ++whole_leaves_;
    if (run_end != leaf || run_begin == run_end) {
      submit(run_begin, run_end);
      run_begin = leaf;
    }
    run_end = leaf + 1;
  }
  submit(run_begin, run_end);
}

void FetchSink::submit(std::size_t first_leaf, std::size_t last_leaf) {
  if (first_leaf == last_leaf) return;
  {
    const std::lock_guard lock(mutex_);
    ++verifying_;
  }
  pool_.submit([self = shared_from_this(), first_leaf, last_leaf] { self->verify(first_leaf, last_leaf); });
}

void FetchSink::verify(std::size_t first_leaf, std::size_t last_leaf) {
  const bool good =
      !kernels::verify_leaves(slot_.data(), manifest_.length_bytes, first_leaf, last_leaf, manifest_.leaves.data());
  {
    const std::lock_guard lock(mutex_);
    corrupt_ = corrupt_ || !good;
    --verifying_;
  }
  finish_if_over();
}

void FetchSink::ended(net::FetchEnd end) {
  {
    const std::lock_guard lock(mutex_);
    // A transfer that ends well with bytes missing did not.
    if (end == net::FetchEnd::complete && whole_leaves_ != leaf_bytes_.size()) end = net::FetchEnd::peer_failed;
    end_ = end;
  }
  finish_if_over();
}

std::size_t FetchSink::backlog() const {
  const std::lock_guard lock(mutex_);
  return verifying_;
}

bool FetchSink::wanted() const {
  const std::lock_guard lock(mutex_);
  return !cancelled_;
}

void FetchSink::finish_if_over() {
  FetchResult result = FetchResult::failed;
  {
    const std::lock_guard lock(mutex_);
    if (over_ || !end_ || verifying_ != 0) return;
    over_ = true;
    if (corrupt_)
      result = FetchResult::corrupt;
    else if (*end_ == net::FetchEnd::complete && !cancelled_)
      result = FetchResult::complete;
  }
  if (result != FetchResult::complete) return done_(result, std::nullopt);
  slot_.seal(manifest_);
  done_(result, std::move(manifest_));
}

}  // namespace ckpt::agent
