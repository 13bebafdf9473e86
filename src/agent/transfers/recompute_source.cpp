#include "agent/transfers/recompute_source.hpp"

#include <atomic>
#include <cstring>
#include <new>
#include <utility>

#include "agent/transfers/repeated_update.hpp"
#include "arena/gradient_record.hpp"
#include "base/error.hpp"
#include "kernels/digest.hpp"

namespace ckpt::agent {
namespace {

using core::FetchResult;

constexpr std::string_view record_prefix = "gradients:";

// A record as it travels.
struct ServedRecord {
  Pin piece;
  std::vector<std::byte> manifest;
};

std::vector<std::byte> encoded(const arena::SlotRecord& record, const std::vector<std::byte>& piece_manifest) {
  const std::uint64_t count = record.digests.size();
  std::vector<std::byte> bytes(sizeof(count) + record.digests.size_bytes());
  std::memcpy(bytes.data(), &count, sizeof(count));
  if (count != 0) std::memcpy(bytes.data() + sizeof(count), record.digests.data(), record.digests.size_bytes());
  bytes.insert(bytes.end(), piece_manifest.begin(), piece_manifest.end());
  return bytes;
}

}  // namespace

std::string record_name(const std::string& shard) { return std::string(record_prefix) + shard; }

std::optional<net::ServedPiece> serve_record(const PieceIndex& index, const net::PieceName& name) {
  if (!name.shard.starts_with(record_prefix)) return std::nullopt;
  auto served = std::make_shared<ServedRecord>();
  served->piece = index.find(name.shard.substr(record_prefix.size()), CheckpointId::from_word(name.checkpoint));
  if (served->piece == nullptr || !served->piece->segment().is_whole_file()) return std::nullopt;
  const auto record = served->piece->segment().slot(served->piece->slot().slot).record();
  if (!record) return std::nullopt;
  served->manifest = encoded(*record, served->piece->encoded_manifest());
  return net::ServedPiece{served->manifest, record->data, served};
}

// One fetch of a record, then the repeated update, or else the fetch of the whole piece.
class RecomputeSource::Recomputation : public net::Sink,
                                       public RunningFetch,
                                       public std::enable_shared_from_this<Recomputation> {
 public:
  Recomputation(RecomputeSource& source, const FetchRequest& request, Pin base)
      : source_(source), deps_(source.deps_), request_(request), base_(std::move(base)) {}

  void start() {
    const core::PieceInfo& piece = request_.order.piece;
    deps_.transport->fetch(request_.order.source, {record_name(piece.shard), piece.checkpoint.word()},
                           net::FetchPart{.urgent = request_.urgent}, shared_from_this(), request_.timeout_ms);
  }
  void cancel() override {
    is_cancelled_.store(true);
    if (whole_ != nullptr) whole_->cancel();
  }

  std::optional<std::span<std::byte>> begin(std::span<const std::byte> manifest, std::size_t data_bytes) override {
    if (data_bytes > arena::record_bytes_max(request_.order.piece.length_bytes) || !accept(manifest, data_bytes))
      return std::nullopt;
    record_memory_.reset(new (std::nothrow) std::byte[data_bytes]);
    if (record_memory_ == nullptr) return std::nullopt;
    record_ = {record_memory_.get(), data_bytes};
    return record_;
  }
  void received(std::size_t, std::size_t size_bytes) override { received_bytes_ += size_bytes; }
  bool wanted() const override { return !is_cancelled_.load(); }
  void ended(net::FetchEnd end) override {
    if (end == net::FetchEnd::complete)
      deps_.pool.submit([self = shared_from_this()] { self->repeat(); });
    else
      post(End::missing, end == net::FetchEnd::not_there ? "" : "the gradients did not arrive");
  }

 private:
  // Reads what serve_record() sends as the manifest.
  bool accept(std::span<const std::byte> bytes, std::size_t record_bytes) {
    std::uint64_t count = 0;
    if (bytes.size() < sizeof(count)) return false;
    std::memcpy(&count, bytes.data(), sizeof(count));
    if (count != kernels::leaf_count(record_bytes) || bytes.size() - sizeof(count) < count * sizeof(std::uint64_t))
      return false;
    record_digests_.resize(count);
    if (count != 0) std::memcpy(record_digests_.data(), bytes.data() + sizeof(count), count * sizeof(std::uint64_t));
    const auto rest = bytes.subspan(sizeof(count) + count * sizeof(std::uint64_t));
    encoded_manifest_.assign(rest.begin(), rest.end());
    return true;
  }

  // On a digest thread.
  void repeat() {
    if (is_cancelled_.load() || !base_->segment().is_whole_file() || !request_.destination.is_whole_file())
      return post(End::missing, "");
    auto manifest = request_.destination.begin(encoded_manifest_);
    if (!manifest) return post(End::damaged, "the gradients belong to another piece");
    try {
      const arena::GradientRecord record = arena::decode_record(record_);
      if (const std::string why = why_not(record, *manifest, base_->manifest()); !why.empty())
        return post(End::missing, why);
      const auto digests = repeat_update(record, record_, base_->data(), request_.destination.data());
      const bool is_equal = digests == manifest->leaves;
      const End end = core::judge_repeated(is_equal, is_equal || is_record_whole());
      if (end == End::equal) return finish(std::move(*manifest));
      post(end, end == End::damaged ? "the gradients arrived damaged" : "");
    } catch (const Failure& failure) {
      post(End::damaged, failure.what());
    }
  }

  bool is_record_whole() const {
    std::vector<std::uint64_t> digests(record_digests_.size());
    kernels::digest_leaves(record_.data(), record_.size(), digests.data());
    return digests == record_digests_;
  }

  void finish(arena::Manifest manifest) {
    if (is_cancelled_.load()) return post(End::missing, "");
    request_.destination.seal(manifest);
    deps_.queue.post([self = shared_from_this(), manifest = std::move(manifest)]() mutable {
      self->forget();
      self->source_.ended(self->request_.order, End::equal, "");
      FetchOutcome outcome;
      outcome.result = FetchResult::complete;
      outcome.network_bytes = self->received_bytes_;
      outcome.manifest = std::move(manifest);
      self->request_.done(std::move(outcome));
    });
  }

  void post(End end, std::string why) {
    deps_.queue.post([self = shared_from_this(), end, why = std::move(why)] { self->fetch_whole(end, why); });
  }

  // On the core thread: the base may be dropped now.
  void forget() {
    base_.reset();
    record_ = {};
    record_memory_.reset();
  }

  void fetch_whole(End end, const std::string& why) {
    forget();
    if (is_cancelled_.load()) return request_.done({});
    source_.ended(request_.order, end, why);
    FetchRequest whole = request_;
    whole.done = [done = request_.done, bytes = received_bytes_](FetchOutcome outcome) {
      outcome.network_bytes += bytes;
      done(std::move(outcome));
    };
    whole_ = deps_.peer.start(whole);
  }

  RecomputeSource& source_;  // core thread only: other threads may work on when it is gone
  const Dependencies deps_;
  FetchRequest request_;
  Pin base_;
  std::unique_ptr<std::byte[]> record_memory_;
  std::span<std::byte> record_;
  std::vector<std::byte> encoded_manifest_;
  std::vector<std::uint64_t> record_digests_;
  std::uint64_t received_bytes_ = 0;
  std::atomic<bool> is_cancelled_{false};
  std::shared_ptr<RunningFetch> whole_;  // core thread only
};

std::shared_ptr<RunningFetch> RecomputeSource::start(const FetchRequest& request) {
  const core::StartFetch& order = request.order;
  std::vector<Pin> pieces;
  std::vector<core::RepeatedUpdates::Held> held;
  for (std::uint8_t slot = 0; slot < arena::segment_slots_max; ++slot) {
    const core::SlotRef ref{order.slot.rank, order.slot.shard, slot};
    Pin piece = deps_.index.find(ref);
    if (piece == nullptr) continue;
    held.push_back({ref, piece->manifest().checkpoint, piece->manifest().length_bytes});
    pieces.push_back(std::move(piece));
  }
  const auto choice = decisions_.choose(order, request.urgent, held);
  if (choice.base == nullptr) {
    deps_.counters.not_recomputed += choice.is_candidate;
    return nullptr;
  }
  Pin base = std::move(pieces[static_cast<std::size_t>(choice.base - held.data())]);
  const auto recomputation = std::make_shared<Recomputation>(*this, request, std::move(base));
  recomputation->start();
  return recomputation;
}

void RecomputeSource::ended(const core::StartFetch& order, End end, const std::string& why) {
  const std::string& shard = order.piece.shard;
  const bool is_last = decisions_.ended(shard, end);
  switch (end) {
    case End::equal:
      ++deps_.counters.recomputed;
      return;
    case End::unequal:
      ++deps_.counters.recomputed_in_vain;
      deps_.notice("a repeated update of shard " + shard +
                   " did not give the bytes of the rank that made it, so this node fetched the whole piece" +
                   (is_last ? "; after three such updates in a row, no more are repeated" : ""));
      return;
    case End::damaged:
    case End::missing:
      ++deps_.counters.not_recomputed;
      if (!why.empty())
        deps_.notice("an update of shard " + shard + " is not repeated, because " + why +
                     ", so this node fetches the whole piece");
  }
}

}  // namespace ckpt::agent
