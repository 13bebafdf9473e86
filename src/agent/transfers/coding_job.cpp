#include "agent/transfers/coding_job.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <set>
#include <utility>

#include "arena/layout.hpp"
#include "base/error.hpp"
#include "core/lists.hpp"
#include "kernels/digest.hpp"
#include "kernels/erasure_code.hpp"

namespace ckpt::agent {
namespace {

using core::FetchResult;
using core::NodeId;

static_assert(placement::parity_unit_bytes == kernels::leaf_size_bytes, "ranges of a group begin with a leaf");
static_assert(ChunkBuffers::size_bytes % kernels::leaf_size_bytes == 0);
static_assert(ChunkBuffers::count >= placement::max_parity_members);

constexpr std::size_t chunks_in_flight = 4;
}  // namespace

// A range of the piece that is computed at once.
struct CodingJob::Chunk {
  struct SourceRange {
    std::string shard;  // "": zeros
    std::uint64_t first_byte = 0;
    std::size_t size_bytes = 0;
    const std::byte* data = nullptr;
    NodeId node = 0;  // where it came from
  };
  std::shared_ptr<const kernels::Coder> coder;
  std::uint64_t first_byte = 0;
  std::size_t size_bytes = 0;  // whole leaves
  std::vector<SourceRange> parts;
  std::vector<ChunkBuffers::Buffer> buffers;  // one per fetched part, in the same order; one more may be for the result
  std::size_t missing = 0;                    // parts that have not arrived
};

// Receives a range into a buffer of a chunk.
class CodingJob::ChunkSink : public net::Sink {
 public:
  ChunkSink(std::shared_ptr<CodingJob> job, std::shared_ptr<Chunk> chunk, std::size_t source, std::size_t attempt)
      : job_(std::move(job)), chunk_(std::move(chunk)), source_(source), attempt_(attempt) {}

  std::optional<std::span<std::byte>> begin(std::span<const std::byte>, std::size_t data_bytes) override {
    const Chunk::SourceRange& part = chunk_->parts[source_];
    if (data_bytes != part.size_bytes) return std::nullopt;
    return std::span(const_cast<std::byte*>(part.data), data_bytes);
  }
  void received(std::size_t, std::size_t) override {}
  void ended(net::FetchEnd end) override {
    job_->source_ended(chunk_, source_, attempt_, end == net::FetchEnd::complete);
  }

 private:
  const std::shared_ptr<CodingJob> job_;
  const std::shared_ptr<Chunk> chunk_;
  const std::size_t source_;
  const std::size_t attempt_;
};

CodingJob::CodingJob(const Dependencies& dependencies, FetchDestination destination, core::CodingInputs coding_inputs,
                     Done done, std::shared_ptr<const MadeParity> made)
    : deps_(dependencies),
      destination_(std::move(destination)),
      piece_(destination_.piece()),
      coding_inputs_(std::move(coding_inputs)),
      done_(std::move(done)),
      made_(std::move(made)),
      layout_(core::layout_of(coding_inputs_.parity_manifest)) {}

void CodingJob::cancel() {
  {
    const std::lock_guard lock(mutex_);
    cancelled_ = true;
  }
  look();
}

void CodingJob::start() {
  const auto needed = plan() ? manifests_needed() : std::vector<std::string>();
  {
    const std::lock_guard lock(mutex_);
    manifests_missing_ = needed.size();
    under_way_ = needed.size() + 1;  // this call counts, too
    if (needed.empty()) failure_ = FetchResult::failed;
  }
  for (const std::string& shard : needed) ask_for_manifest(shard, 0);
  {
    const std::lock_guard lock(mutex_);
    --under_way_;
  }
  finish_if_over();
}

// ---- Chunks ----

bool CodingJob::has_next() const { return step_ < steps_.size(); }

// The next range of the current step. The caller holds the lock.
std::shared_ptr<CodingJob::Chunk> CodingJob::next_chunk() {
  const placement::DecodeStep& step = steps_[step_];
  auto chunk = std::make_shared<Chunk>();
  chunk->coder = coders_[step_];
  chunk->first_byte = step.bytes.first_byte + in_step_;
  chunk->size_bytes = std::min<std::uint64_t>(ChunkBuffers::size_bytes, step.bytes.size_bytes - in_step_);
  for (const auto& source : step.sources) {
    Chunk::SourceRange& part = chunk->parts.emplace_back();
    if (source.bytes.size_bytes == 0) continue;
    const std::string name = core::group_piece_name(coding_inputs_.parity_manifest, source.member, source.position);
    std::uint64_t first_byte = source.bytes.first_byte + in_step_;
    if (layout_.is_parity(source.position))
      first_byte += layout_.row_offset(source.member, source.position - layout_.columns());
    // A source that ends before the chunk does continues with zeros.
    const std::uint64_t length_bytes = inputs_.at(name).manifest->length_bytes;
    if (first_byte >= length_bytes) continue;
    part.shard = name;
    part.first_byte = first_byte;
    part.size_bytes = std::min<std::uint64_t>(chunk->size_bytes, length_bytes - first_byte);
  }
  in_step_ += chunk->size_bytes;
  if (in_step_ == step.bytes.size_bytes) {
    ++step_;
    in_step_ = 0;
  }
  return chunk;
}

// Keeps chunks_in_flight chunks under way.
void CodingJob::launch() {
  for (;;) {
    std::shared_ptr<Chunk> chunk;
    {
      const std::lock_guard lock(mutex_);
      if (failure_ || cancelled_ || !has_next() || under_way_ > chunks_in_flight) return;
      chunk = next_chunk();
      ++under_way_;
    }
    std::size_t fetched = 0;
    for (Chunk::SourceRange& part : chunk->parts) {
      if (part.shard.empty()) continue;
      const Input& input = inputs_.at(part.shard);
      if (input.here != nullptr) {
        part.data = input.here->data() + part.first_byte;
        part.node = deps_.node;
      } else {
        ++fetched;
      }
    }
    chunk->missing = fetched + 1;  // the call below counts, too
    const bool is_ragged = chunk->first_byte + chunk->size_bytes > piece_.length_bytes;
    deps_.buffers.ask(fetched + (is_ragged ? 1 : 0), [self = shared_from_this(), chunk](auto buffers) {
      chunk->buffers = std::move(buffers);
      std::size_t next = 0;
      for (Chunk::SourceRange& part : chunk->parts) {
        if (!part.shard.empty() && part.data == nullptr) part.data = chunk->buffers[next++];
      }
      for (std::size_t i = 0; i < chunk->parts.size(); ++i) {
        const Chunk::SourceRange& part = chunk->parts[i];
        if (part.shard.empty() || self->inputs_.at(part.shard).here != nullptr) continue;
        if (self->has_failed())
          self->source_ready(chunk);  // it failed while it waited for the buffers
        else
          self->fetch(chunk, i, 0);
      }
      self->source_ready(chunk);
    });
  }
}

void CodingJob::fetch(const std::shared_ptr<Chunk>& chunk, std::size_t source, std::size_t attempt) {
  Chunk::SourceRange& part = chunk->parts[source];
  part.node = inputs_.at(part.shard).nodes[attempt];
  deps_.transport->fetch(part.node, {part.shard, piece_.checkpoint.word()},
                         {part.first_byte, part.size_bytes, false, deps_.urgent},
                         std::make_shared<ChunkSink>(shared_from_this(), chunk, source, attempt), fetch_timeout_ms);
}

void CodingJob::source_ended(const std::shared_ptr<Chunk>& chunk, std::size_t source, std::size_t attempt,
                             bool is_whole) {
  const Chunk::SourceRange& part = chunk->parts[source];
  const bool has_another = attempt + 1 < inputs_.at(part.shard).nodes.size();
  if (!is_whole) unusable(part.shard, part.node);
  if (!is_whole && has_another && !has_failed()) return fetch(chunk, source, attempt + 1);
  if (!is_whole) fail(FetchResult::failed);
  {
    const std::lock_guard lock(mutex_);
    outcome_.received_bytes += is_whole ? part.size_bytes : 0;
  }
  source_ready(chunk);
}

void CodingJob::source_ready(const std::shared_ptr<Chunk>& chunk) {
  {
    const std::lock_guard lock(mutex_);
    if (--chunk->missing != 0) return;
  }
  deps_.pool.submit([self = shared_from_this(), chunk] {
    self->combine(chunk);
    self->chunk_over(chunk);
  });
}

void CodingJob::combine(const std::shared_ptr<Chunk>& chunk) {
  if (has_failed()) return;
  std::vector<kernels::Source> sources;
  std::vector<std::vector<std::uint64_t>> digests;
  std::vector<std::uint64_t*> digest_places;
  for (const Chunk::SourceRange& part : chunk->parts) {
    sources.push_back({part.data, part.size_bytes});
    digests.emplace_back(kernels::leaf_count(part.size_bytes));
    digest_places.push_back(digests.back().empty() ? nullptr : digests.back().data());
  }
  const std::uint64_t wanted_bytes =
      std::min<std::uint64_t>(chunk->size_bytes, piece_.length_bytes - chunk->first_byte);
  const bool is_ragged = wanted_bytes < chunk->size_bytes;
  std::byte* place = destination_.data() + chunk->first_byte;
  std::vector<std::uint64_t> made(kernels::leaf_count(chunk->size_bytes));
  const kernels::Output output{is_ragged ? chunk->buffers.back() : place, made.data()};
  chunk->coder->combine(sources, std::span(&output, 1), chunk->size_bytes, digest_places);
  if (!check_sources(*chunk, digests)) return;
  if (is_ragged) {
    std::memcpy(place, output.data, wanted_bytes);
    kernels::digest_leaves(place, wanted_bytes, made.data());
  }
  const std::size_t first_leaf = chunk->first_byte / kernels::leaf_size_bytes;
  const std::size_t count = kernels::leaf_count(wanted_bytes);
  const bool is_good = expected_.empty() || std::equal(made.begin(), made.begin() + static_cast<std::ptrdiff_t>(count),
                                                       expected_.begin() + static_cast<std::ptrdiff_t>(first_leaf));
  if (!is_good) return made_nothing_true(*chunk);
  std::copy_n(made.begin(), count, leaves_.begin() + static_cast<std::ptrdiff_t>(first_leaf));
}

bool CodingJob::check_sources(const Chunk& chunk, const std::vector<std::vector<std::uint64_t>>& digests) {
  bool is_good = true;
  for (std::size_t i = 0; i < chunk.parts.size(); ++i) {
    const Chunk::SourceRange& part = chunk.parts[i];
    if (part.shard.empty()) continue;
    const auto& leaves = inputs_.at(part.shard).manifest->leaves;
    const auto expected = leaves.begin() + static_cast<std::ptrdiff_t>(part.first_byte / kernels::leaf_size_bytes);
    if (std::equal(digests[i].begin(), digests[i].end(), expected)) continue;
    damaged(part.shard, part.node);
    is_good = false;
  }
  if (!is_good) fail(FetchResult::corrupt);
  return is_good;
}

void CodingJob::chunk_over(const std::shared_ptr<Chunk>& chunk) {
  deps_.buffers.give_back(std::exchange(chunk->buffers, {}));
  {
    const std::lock_guard lock(mutex_);
    --under_way_;
  }
  launch();
  finish_if_over();
}

// ---- The end ----

// After a failure the job starts nothing new.
bool CodingJob::has_failed() {
  const std::lock_guard lock(mutex_);
  return failure_ || cancelled_;
}

void CodingJob::fail(FetchResult result) {
  const std::lock_guard lock(mutex_);
  if (!failure_ || result == FetchResult::corrupt) failure_ = result;
}

void CodingJob::unusable(const std::string& shard, NodeId node) {
  const std::lock_guard lock(mutex_);
  core::add_once(outcome_.unusable, PieceRef{node, shard});
}

void CodingJob::damaged(const std::string& shard, NodeId node) {
  const std::lock_guard lock(mutex_);
  core::add_once(outcome_.damaged, PieceRef{node, shard});
  core::add_once(outcome_.unusable, PieceRef{node, shard});
}

// The result does not match its digests, although every source matches its own. The parity manifest also has the
// digests of the shards, so parity is wrong. If the job read one parity piece, that piece is wrong. If it read several,
// at least one of them is.
void CodingJob::made_nothing_true(const Chunk& chunk) {
  std::vector<PieceRef> parity;
  for (const Chunk::SourceRange& part : chunk.parts) {
    if (part.shard.starts_with(core::parity_prefix)) parity.push_back({part.node, part.shard});
  }
  {
    const std::lock_guard lock(mutex_);
    if (parity.size() == 1) {
      core::add_once(outcome_.wrong, parity.front());
      core::add_once(outcome_.unusable, parity.front());
    } else {
      outcome_.suspects = std::move(parity);
    }
  }
  fail(FetchResult::corrupt);
}

void CodingJob::finish_if_over() {
  Outcome outcome;
  {
    const std::lock_guard lock(mutex_);
    const bool has_ended = failure_ || cancelled_ || (manifests_missing_ == 0 && !has_next());
    if (over_ || under_way_ != 0 || !has_ended) return;
    over_ = true;
    outcome = std::move(outcome_);
    outcome.result = failure_ ? *failure_ : cancelled_ ? FetchResult::failed : FetchResult::complete;
  }
  if (outcome.result == FetchResult::complete) seal(outcome);
  for (auto& [shard, input] : inputs_) input.here = nullptr;  // pins
  done_(std::move(outcome));
}

void CodingJob::seal(Outcome& outcome) {
  arena::Manifest manifest;
  if (piece_.is_parity()) {
    manifest.shard = piece_.shard;
    manifest.checkpoint = piece_.checkpoint;
    manifest.length_bytes = piece_.length_bytes;
    manifest.world_size = piece_.world_size;
    manifest.layout = encode(kept_);
    manifest.layout_hash = arena::layout_hash(manifest.layout);
    manifest.leaves = std::move(leaves_);
    manifest.root_digest = kernels::root_digest(manifest.leaves, manifest.length_bytes);
  } else {
    manifest = *kept_.members[core::group_piece(coding_inputs_.parity_manifest, piece_.shard)->member];
    // All leaves were compared, so the digest over them must be the announced one.
    if (piece_info(manifest) != piece_) {
      outcome.result = FetchResult::corrupt;
      return;
    }
  }
  destination_.seal(manifest);
  outcome.manifest = std::move(manifest);
}

}  // namespace ckpt::agent
