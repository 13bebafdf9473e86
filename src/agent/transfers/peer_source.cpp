#include "agent/transfers/peer_source.hpp"

#include <algorithm>
#include <utility>

#include "core/chain_order.hpp"
#include "kernels/digest.hpp"

namespace ckpt::agent {
namespace {

using core::FetchResult;

net::PieceName name_of(const core::PieceInfo& piece) { return {piece.shard, piece.checkpoint.word()}; }

std::uint64_t chain_of(const core::StartFetch& order) {
  return order.chain_from == core::no_node ? net::no_chain : order.chain_from;
}

// Most pieces of which PeerSource remembers what failed fetches have verified. A manifest has about a ten-thousandth of
// its piece's size.
constexpr std::size_t unfinished_max = 64;

void end(const FetchRequest& request, FetchResult result, std::optional<arena::Manifest> manifest,
         std::size_t kept_bytes) {
  FetchOutcome outcome;
  outcome.result = result;
  if (manifest) outcome.network_bytes = manifest->length_bytes - kept_bytes;
  outcome.manifest = std::move(manifest);
  if (result == FetchResult::corrupt) request.damaged({request.order.source, request.order.piece.shard}, false);
  request.done(std::move(outcome));
}

}  // namespace

void PeerSource::ordered(const core::StartFetch& order, bool urgent) {
  if (urgent && is_node(order.source)) arriving_.expect(name_of(order.piece), chain_of(order));
}

std::shared_ptr<RunningFetch> PeerSource::start(const FetchRequest& request) {
  const core::StartFetch& order = request.order;
  if (!is_node(order.source)) return nullptr;
  auto done = [this, request, &queue = queue_](FetchResult result, std::optional<arena::Manifest> manifest) {
    queue.post([this, request, result, manifest = std::move(manifest)]() mutable {
      end(request, result, std::move(manifest), running_.at(request.order.fetch)->kept_bytes());
    });
  };
  const auto sink = std::make_shared<FetchSink>(request.destination, pool_, std::move(done));
  running_[order.fetch] = sink;
  const net::PieceName name = name_of(order.piece);
  if (request.urgent) arriving_.add(name, sink);
  const auto fetch = [transport = transport_, sink, name, source = order.source, urgent = request.urgent,
                      chain = chain_of(order), timeout_ms = request.timeout_ms](std::size_t kept_bytes) {
    const net::FetchPart rest{.first_byte = kept_bytes, .urgent = urgent, .chain = chain};
    transport->fetch(source, name, rest, sink, timeout_ms);
  };
  auto before = unfinished_.extract({name.shard, name.checkpoint});
  if (before.empty() || !(piece_info(before.mapped().manifest) == order.piece)) {
    fetch(0);
  } else {
    pool_.submit([fetch, sink, before = std::move(before.mapped())] { fetch(sink->keep_verified(before)); });
  }
  return sink;
}

void PeerSource::ended(const core::StartFetch& order, const FetchOutcome& outcome) {
  const net::PieceName name = name_of(order.piece);
  if (outcome.manifest) unfinished_.erase({name.shard, name.checkpoint});
  if (!is_node(order.source)) return;
  if (const auto running = running_.extract(order.fetch); !running.empty() && !outcome.manifest)
    remember(order.piece, running.mapped()->unfinished());
  arriving_.remove(name, outcome.result == FetchResult::complete ? index_.find(order.slot) : Pin());
}

void PeerSource::remember(const core::PieceInfo& piece, std::optional<Unfinished> unfinished) {
  if (!unfinished) return;
  const std::pair<std::string, std::uint64_t> name(piece.shard, piece.checkpoint.word());
  if (unfinished_.size() >= unfinished_max && !unfinished_.contains(name)) unfinished_.erase(unfinished_.begin());
  unfinished_.insert_or_assign(name, std::move(*unfinished));
}

void ArrivingPieces::expect(const net::PieceName& name, std::uint64_t chain) {
  const std::lock_guard lock(mutex_);
  if (!failed_.contains({name.shard, name.checkpoint})) *active_at_ms_ = now_ms_();
  std::erase_if(failed_, [&](const Key& failed) { return failed.second != name.checkpoint; });
  arriving_[{name.shard, name.checkpoint}].chain = chain;
}

void ArrivingPieces::add(const net::PieceName& name, const std::shared_ptr<FetchSink>& sink) {
  sink->note_arrivals([at_ms = active_at_ms_, now_ms = now_ms_] { *at_ms = now_ms(); });
  const std::lock_guard lock(mutex_);
  arriving_[{name.shard, name.checkpoint}].sink = sink;
}

void ArrivingPieces::remove(const net::PieceName& name, const Pin& piece) {
  std::shared_ptr<FetchSink> sink;
  {
    const std::lock_guard lock(mutex_);
    const auto found = arriving_.find({name.shard, name.checkpoint});
    if (found == arriving_.end()) return;
    sink = std::move(found->second.sink);
    arriving_.erase(found);
    if (piece == nullptr)
      failed_.insert({name.shard, name.checkpoint});
    else
      failed_.erase({name.shard, name.checkpoint});
  }
  if (piece != nullptr && sink != nullptr) sink->keep(piece);
}

std::optional<net::ServedPiece> ArrivingPieces::find(const net::PieceName& name, const net::Asker& asker) const {
  if (asker.chain == net::no_chain) return std::nullopt;
  std::shared_ptr<FetchSink> sink;
  bool has_failed = false;
  {
    const std::lock_guard lock(mutex_);
    const auto found = arriving_.find({name.shard, name.checkpoint});
    if (found == arriving_.end() || found->second.chain != asker.chain) return std::nullopt;
    if (!core::comes_after(asker.node, own_node_, static_cast<core::NodeId>(asker.chain))) return std::nullopt;
    sink = found->second.sink;
    has_failed = failed_.contains({name.shard, name.checkpoint});
  }
  if (sink != nullptr) {
    if (auto served = sink->serve()) return served;
    has_failed = has_failed || !sink->may_begin();
  }
  if (has_failed || now_ms_() - *active_at_ms_ >= quiet_ms) return std::nullopt;
  net::ServedPiece coming;
  coming.is_coming = true;
  return coming;
}

FetchSink::FetchSink(FetchDestination destination, WorkerPool& pool, Done done)
    : destination_(std::move(destination)), pool_(pool), done_(std::move(done)) {}

void FetchSink::cancel() {
  const std::lock_guard lock(mutex_);
  cancelled_ = true;
}

std::size_t FetchSink::keep_verified(const Unfinished& before) {
  if (!destination_.is_whole_file()) return 0;
  const std::size_t length_bytes = destination_.piece().length_bytes;
  kept_leaves_ = destination_.count_leaves_here(before.manifest, before.leaves);
  const std::lock_guard lock(mutex_);
  manifest_ = before.manifest;
  verified_leaves_ = kept_leaves_;
  kept_bytes_ = std::min(kept_leaves_ * kernels::leaf_size_bytes, length_bytes);
  return kept_bytes_;
}

std::optional<Unfinished> FetchSink::unfinished() const {
  const std::lock_guard lock(mutex_);
  return verified_leaves_ == 0 ? std::nullopt : std::optional(Unfinished{manifest_, verified_leaves_});
}

std::optional<std::span<std::byte>> FetchSink::begin(std::span<const std::byte> manifest, std::size_t data_bytes) {
  {
    const std::lock_guard lock(mutex_);
    if (cancelled_ || over_) return std::nullopt;
  }
  const bool is_the_rest = data_bytes == destination_.piece().length_bytes - kept_bytes_;
  auto accepted = is_the_rest ? destination_.begin(manifest) : std::nullopt;
  if (!accepted) {
    const std::lock_guard lock(mutex_);
    corrupt_ = true;
    return std::nullopt;
  }
  manifest_ = std::move(*accepted);
  leaf_bytes_.assign(manifest_.leaves.size(), 0);
  whole_leaves_ = kept_leaves_;
  {
    const std::lock_guard lock(mutex_);
    encoded_manifest_.assign(manifest.begin(), manifest.end());
    length_bytes_ = manifest_.length_bytes;
    verified_.assign(manifest_.leaves.size(), false);
    std::fill_n(verified_.begin(), kept_leaves_, true);
  }
  return std::span(destination_.data() + kept_bytes_, data_bytes);
}

void FetchSink::received(std::size_t offset_bytes, std::size_t size_bytes) {
  if (note_arrival_) note_arrival_();
  offset_bytes += kept_bytes_;
  // Neighbouring leaves that are complete now are verified together.
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
  const bool good = destination_.verify(manifest_, first_leaf, last_leaf);
  {
    const std::lock_guard lock(mutex_);
    corrupt_ = corrupt_ || !good;
    if (good) note_verified(first_leaf, last_leaf);
    --verifying_;
  }
  finish_if_over();
}

void FetchSink::note_verified(std::size_t first_leaf, std::size_t last_leaf) {
  std::fill(verified_.begin() + static_cast<std::ptrdiff_t>(first_leaf),
            verified_.begin() + static_cast<std::ptrdiff_t>(last_leaf), true);
  while (verified_leaves_ < verified_.size() && verified_[verified_leaves_]) ++verified_leaves_;
}

std::optional<net::ServedPiece> FetchSink::serve() {
  const auto self = shared_from_this();
  {
    const std::lock_guard lock(mutex_);
    if (encoded_manifest_.empty() || has_failed()) return std::nullopt;
    ++readers_;
  }
  std::shared_ptr<void> pin(nullptr, [self](void*) { self->stop_reading(); });
  return net::ServedPiece{
      encoded_manifest_, {destination_.data(), length_bytes_}, std::move(pin), [self] { return self->ready_bytes(); }};
}

void FetchSink::stop_reading() {
  {
    const std::lock_guard lock(mutex_);
    --readers_;
  }
  finish_if_over();
}

std::optional<std::size_t> FetchSink::ready_bytes() const {
  const std::lock_guard lock(mutex_);
  if (has_failed()) return std::nullopt;
  return std::min<std::size_t>(verified_leaves_ * kernels::leaf_size_bytes, length_bytes_);
}

void FetchSink::keep(Pin piece) {
  const std::lock_guard lock(mutex_);
  piece_ = std::move(piece);
}

void FetchSink::ended(net::FetchEnd end) {
  {
    const std::lock_guard lock(mutex_);
    // The peer says complete, but bytes are missing.
    if (end == net::FetchEnd::complete && whole_leaves_ != leaf_bytes_.size()) end = net::FetchEnd::peer_failed;
    end_ = end;
  }
  finish_if_over();
}

std::size_t FetchSink::backlog() const {
  const std::lock_guard lock(mutex_);
  return verifying_;
}

bool FetchSink::may_begin() const {
  const std::lock_guard lock(mutex_);
  return encoded_manifest_.empty() && !has_failed();
}

bool FetchSink::wanted() const {
  const std::lock_guard lock(mutex_);
  return !cancelled_;
}

void FetchSink::finish_if_over() {
  FetchResult result = FetchResult::failed;
  {
    const std::lock_guard lock(mutex_);
    if (over_ || !end_ || verifying_ != 0 || (has_failed() && readers_ != 0)) return;
    over_ = true;
    if (corrupt_)
      result = FetchResult::corrupt;
    else if (*end_ == net::FetchEnd::complete && !cancelled_)
      result = FetchResult::complete;
  }
  if (result != FetchResult::complete) return done_(result, std::nullopt);
  destination_.seal(manifest_);
  done_(result, std::move(manifest_));
}

}  // namespace ckpt::agent
