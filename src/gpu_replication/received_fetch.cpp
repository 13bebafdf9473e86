#include "gpu_replication/received_fetch.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "kernels/digest.hpp"

namespace ckpt::agent {

using core::FetchResult;

// Receives only the manifest.
class ReceivedFetch::ManifestSink : public net::Sink {
 public:
  explicit ManifestSink(std::shared_ptr<ReceivedFetch> fetch) : fetch_(std::move(fetch)) {}
  std::optional<std::span<std::byte>> begin(std::span<const std::byte> manifest, std::size_t data_bytes) override {
    if (data_bytes != 0) return std::nullopt;
    encoded_.assign(manifest.begin(), manifest.end());
    return std::span<std::byte>();
  }
  void received(std::size_t, std::size_t) override {}
  void ended(net::FetchEnd end) override {
    fetch_->begin(end == net::FetchEnd::complete ? std::optional(std::move(encoded_)) : std::nullopt);
  }

 private:
  const std::shared_ptr<ReceivedFetch> fetch_;
  std::vector<std::byte> encoded_;
};

// Receives these leaves into the slot.
class ReceivedFetch::RestSink : public net::Sink {
 public:
  RestSink(std::shared_ptr<ReceivedFetch> fetch, std::size_t first_leaf, std::size_t last_leaf)
      : fetch_(std::move(fetch)), first_leaf_(first_leaf), last_leaf_(last_leaf) {}
  std::optional<std::span<std::byte>> begin(std::span<const std::byte>, std::size_t data_bytes) override {
    const std::size_t at = first_leaf_ * kernels::leaf_size_bytes;
    if (data_bytes != std::min<std::size_t>(last_leaf_ * kernels::leaf_size_bytes, fetch_->manifest_.length_bytes) - at)
      return std::nullopt;
    return std::span(fetch_->destination_.data() + at, data_bytes);
  }
  void received(std::size_t, std::size_t) override {}
  bool wanted() const override { return !fetch_->is_cancelled(); }
  void ended(net::FetchEnd end) override {
    if (end != net::FetchEnd::complete) return fetch_->end(FetchResult::failed);
    fetch_->pool_.submit([fetch = fetch_, first = first_leaf_, last = last_leaf_] { fetch->check_rest(first, last); });
  }

 private:
  const std::shared_ptr<ReceivedFetch> fetch_;
  const std::size_t first_leaf_, last_leaf_;
};

ReceivedFetch::ReceivedFetch(FetchDestination destination, Order order,
                             std::shared_ptr<const arena::ReceiveBuffer> receive_buffer, std::size_t place,
                             WorkerPool& pool, std::shared_ptr<TransportPort> transport, Done done)
    : destination_(std::move(destination)),
      piece_(destination_.piece()),
      order_(order),
      receive_buffer_(std::move(receive_buffer)),
      place_(place),
      pool_(pool),
      transport_(std::move(transport)),
      done_(std::move(done)) {}

void ReceivedFetch::start() {
  transport_->fetch(order_.source, name(), {0, 0, true, order_.urgent},
                    std::make_shared<ManifestSink>(shared_from_this()), order_.timeout_ms);
}

void ReceivedFetch::cancel() {
  {
    const std::lock_guard lock(mutex_);
    is_cancelled_ = true;
  }
  look();
}

void ReceivedFetch::stop_waiting() {
  {
    const std::lock_guard lock(mutex_);
    may_wait_ = false;
  }
  look();
}

bool ReceivedFetch::is_cancelled() const {
  const std::lock_guard lock(mutex_);
  return is_cancelled_;
}

void ReceivedFetch::begin(const std::optional<std::vector<std::byte>>& encoded_manifest) {
  if (!encoded_manifest) return end(FetchResult::failed);
  auto accepted = destination_.begin(*encoded_manifest);
  if (!accepted) return end(FetchResult::corrupt);
  manifest_ = std::move(*accepted);
  {
    const std::lock_guard lock(mutex_);
    stage_ = Stage::taking;
    deadline_ = Deadline::in_ms(order_.timeout_ms);
    arrival_deadline_ = Deadline::in_ms(order_.receive_timeout_ms);
  }
  look();
}

// Leaves are taken in order, by one thread at a time.
void ReceivedFetch::look() {
  std::size_t first = 0, last = 0;
  {
    const std::lock_guard lock(mutex_);
    if (stage_ != Stage::taking || is_busy_) return;
    first = taken_;
    const bool takes_no_more = is_cancelled_ || deadline_.passed();
    last = takes_no_more ? first : leaves_received();
    const bool waits = !takes_no_more && may_wait_ && !arrival_deadline_.passed();
    if (first == last && first != manifest_.leaves.size() && waits) return;
    if (first == last) stage_ = Stage::fetching;
    is_busy_ = true;
    taken_ = last;
    arrival_deadline_ = Deadline::in_ms(order_.receive_timeout_ms);
  }
  pool_.submit(
      [self = shared_from_this(), first, last] { first == last ? self->fetch_rest() : self->take(first, last); });
}

// Counts only complete leaves.
std::size_t ReceivedFetch::leaves_received() const {
  const std::uint64_t gpu_received_bytes = receive_buffer_->received(place_, piece_.checkpoint);
  if (gpu_received_bytes >= manifest_.length_bytes) return manifest_.leaves.size();
  return std::max(taken_, static_cast<std::size_t>(gpu_received_bytes / kernels::leaf_size_bytes));
}

// The trainer may write to the receive buffer meanwhile. So the copies in the slot are verified.
void ReceivedFetch::take(std::size_t first_leaf, std::size_t last_leaf) {
  std::size_t first_bad = last_leaf, end_bad = last_leaf;
  std::uint64_t good_bytes = 0;
  for (std::size_t leaf = first_leaf; leaf < last_leaf; ++leaf) {
    const std::size_t at = leaf * kernels::leaf_size_bytes;
    const std::size_t size_bytes = kernels::leaf_length(manifest_.length_bytes, leaf);
    std::memcpy(destination_.data() + at, receive_buffer_->bytes(place_).data() + at, size_bytes);
    if (kernels::leaf_digest(destination_.data() + at, size_bytes) == manifest_.leaves[leaf]) {
      good_bytes += size_bytes;
      continue;
    }
    first_bad = std::min(first_bad, leaf);
    end_bad = leaf + 1;
  }
  {
    const std::lock_guard lock(mutex_);
    if (first_bad < end_bad && first_bad_ == end_bad_) first_bad_ = first_bad;
    if (first_bad < end_bad) end_bad_ = end_bad;
    gpu_received_bytes_ += good_bytes;
    is_busy_ = false;
  }
  look();
}

// Fetches the range from the first to the last missing leaf.
void ReceivedFetch::fetch_rest() {
  const std::size_t first = first_bad_ < end_bad_ ? first_bad_ : taken_;
  const std::size_t last = taken_ < manifest_.leaves.size() ? manifest_.leaves.size() : end_bad_;
  if (is_cancelled()) return end(FetchResult::failed);
  if (first >= last) return end(FetchResult::complete);
  const std::size_t at = first * kernels::leaf_size_bytes;
  const std::size_t size_bytes = std::min<std::size_t>(last * kernels::leaf_size_bytes, manifest_.length_bytes) - at;
  transport_->fetch(order_.source, name(), {at, size_bytes, false, order_.urgent},
                    std::make_shared<RestSink>(shared_from_this(), first, last), order_.timeout_ms);
}

void ReceivedFetch::check_rest(std::size_t first_leaf, std::size_t last_leaf) {
  end(destination_.verify(manifest_, first_leaf, last_leaf) ? FetchResult::complete : FetchResult::corrupt);
}

void ReceivedFetch::end(FetchResult result) {
  if (result == FetchResult::complete && is_cancelled()) result = FetchResult::failed;
  if (result != FetchResult::complete) return done_({result, std::nullopt, 0});
  destination_.seal(manifest_);
  done_({result, std::move(manifest_), gpu_received_bytes_});
}

}  // namespace ckpt::agent
