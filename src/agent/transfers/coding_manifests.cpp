// The first half of a coding job: what is needed, and the manifests of what is read.
#include <array>
#include <set>
#include <utility>

#include "agent/transfers/coding_job.hpp"
#include "base/error.hpp"
#include "core/lists.hpp"
#include "kernels/digest.hpp"
#include "kernels/erasure_code.hpp"

namespace ckpt::agent {
namespace {

using core::FetchResult;

std::shared_ptr<const kernels::Coder> coder_for(const placement::ParityLayout& layout,
                                                const placement::DecodeStep& step) {
  std::vector<std::size_t> sources;
  for (const auto& source : step.sources) sources.push_back(source.position);
  const std::array<std::size_t, 1> wanted{step.position};
  const kernels::ErasureCode code(layout.columns(), layout.parity());
  return std::make_shared<const kernels::Coder>(code.decoder(sources, wanted));
}

}  // namespace

// Receives only a manifest.
class CodingJob::ManifestSink : public net::Sink {
 public:
  ManifestSink(std::shared_ptr<CodingJob> job, std::string shard, std::size_t attempt)
      : job_(std::move(job)), shard_(std::move(shard)), attempt_(attempt) {}

  std::optional<std::span<std::byte>> begin(std::span<const std::byte> manifest, std::size_t data_bytes) override {
    if (data_bytes != 0) return std::nullopt;
    encoded_.assign(manifest.begin(), manifest.end());
    return std::span<std::byte>();
  }
  void received(std::size_t, std::size_t) override {}
  void ended(net::FetchEnd end) override {
    if (end != net::FetchEnd::complete) return job_->manifest_ended(shard_, attempt_, std::nullopt, false);
    job_->deps_.pool.submit([job = job_, shard = shard_, attempt = attempt_, encoded = std::move(encoded_)] {
      std::optional<arena::Manifest> manifest;
      try {
        manifest = arena::decode_manifest(encoded);
        if (!job->is_expected(shard, *manifest)) manifest.reset();
      } catch (const Failure&) {
        manifest.reset();
      }
      job->manifest_ended(shard, attempt, std::move(manifest), true);
    });
  }

 private:
  const std::shared_ptr<CodingJob> job_;
  const std::string shard_;
  const std::size_t attempt_;
  std::vector<std::byte> encoded_;
};

bool CodingJob::plan() {
  if (!is_of_group(piece_)) return false;
  for (const auto& source : coding_inputs_.sources) {
    // The piece is computed from the others, also if some node still has it.
    if (source.shard == piece_.shard || !core::group_piece(coding_inputs_.parity_manifest, source.shard)) continue;
    Input& input = inputs_[source.shard];
    input.root_digest = source.root_digest;
    if (source.node != deps_.node) input.nodes.push_back(source.node);
  }
  for (auto& [shard, input] : inputs_) {
    input.here = deps_.index.find(shard, piece_.checkpoint);
    if (input.here != nullptr && !is_expected(shard, input.here->manifest())) input.here = nullptr;
  }
  // If only this node had a source, and it is gone, the source is lost.
  std::vector<core::CodingInputs::Source> there;
  for (const auto& [shard, input] : inputs_) {
    if (has_input(shard)) there.push_back({shard, deps_.node, input.root_digest});
  }
  const auto wanted = *core::group_piece(coding_inputs_.parity_manifest, piece_.shard);
  auto plan = core::plan_coding(coding_inputs_.parity_manifest, wanted,
                                core::lost_pieces(coding_inputs_.parity_manifest, there));
  if (!plan.lost.empty()) return false;
  steps_ = std::move(plan.steps);
  for (const auto& step : steps_) coders_.push_back(coder_for(layout_, step));
  return true;
}

// Every parity piece brings its own manifest and those of all shards of its group. If no parity is read, the manifests
// come from the shards. If a shard is gone, they come from any parity piece.
std::vector<std::string> CodingJob::manifests_needed() const {
  std::set<std::string> parity;
  for (const auto& step : steps_) {
    for (const auto& source : step.sources) {
      if (layout_.is_parity(source.position) && source.bytes.size_bytes != 0)
        parity.insert(core::group_piece_name(coding_inputs_.parity_manifest, source.member, source.position));
    }
  }
  if (!parity.empty()) return {parity.begin(), parity.end()};
  std::vector<std::string> shards;
  bool has_all = true;
  for (const auto& parity_source : coding_inputs_.parity_manifest.sources) {
    if (parity_source.shard.empty()) continue;
    has_all = has_all && has_input(parity_source.shard);
    shards.push_back(parity_source.shard);
  }
  if (has_all) return shards;
  for (const auto& [shard, input] : inputs_) {
    if (core::group_piece(coding_inputs_.parity_manifest, shard)->is_parity && has_input(shard)) return {shard};
  }
  return {};
}

bool CodingJob::has_input(const std::string& shard) const {
  const auto input = inputs_.find(shard);
  return input != inputs_.end() && (input->second.here != nullptr || !input->second.nodes.empty());
}

void CodingJob::ask_for_manifest(const std::string& shard, std::size_t attempt) {
  const Input& input = inputs_.at(shard);
  if (input.here != nullptr) return manifest_ended(shard, attempt, input.here->manifest(), false);
  if (attempt >= input.nodes.size()) return manifest_ended(shard, attempt, std::nullopt, false);
  deps_.transport->fetch(input.nodes[attempt], {shard, piece_.checkpoint.word()}, {0, 0, true, deps_.urgent},
                         std::make_shared<ManifestSink>(shared_from_this(), shard, attempt), fetch_timeout_ms);
}

bool CodingJob::is_expected(const std::string& shard, const arena::Manifest& manifest) const {
  const auto piece = piece_info(manifest);
  return piece.shard == shard && piece.checkpoint == piece_.checkpoint && piece.world_size == piece_.world_size &&
         piece.root_digest == inputs_.at(shard).root_digest && is_of_group(piece);
}

bool CodingJob::is_of_group(const core::PieceInfo& piece) const {
  const core::ParityManifest& parity_manifest = coding_inputs_.parity_manifest;
  const auto place = core::group_piece(parity_manifest, piece.shard);
  if (!place) return false;
  if (place->is_parity) {
    return piece.parity_manifest ==
               core::ParityManifest{parity_manifest.rows, place->member, parity_manifest.sources} &&
           piece.length_bytes == layout_.parity_bytes_of(place->member);
  }
  return parity_manifest.sources[place->member] ==
         core::ParitySource{piece.shard, piece.length_bytes, piece.layout_bytes, piece.root_digest};
}

void CodingJob::manifest_ended(const std::string& shard, std::size_t attempt, std::optional<arena::Manifest> manifest,
                               bool is_damaged) {
  Input& input = inputs_.at(shard);
  if (!manifest && is_damaged) damaged(shard, input.nodes[attempt]);
  if (!manifest && attempt < input.nodes.size()) unusable(shard, input.nodes[attempt]);
  if (!manifest && attempt + 1 < input.nodes.size() && !has_failed()) return ask_for_manifest(shard, attempt + 1);
  if (!manifest) fail(is_damaged ? FetchResult::corrupt : FetchResult::failed);
  bool is_last = false;
  bool goes_on = false;
  {
    const std::lock_guard lock(mutex_);
    input.manifest = std::move(manifest);
    is_last = --manifests_missing_ == 0;
    goes_on = is_last && !failure_ && !cancelled_;
  }
  if (goes_on) {
    keep_manifests();
    if (!prepare_slot())
      fail(FetchResult::no_space);
    else if (made_ == nullptr)
      launch();
    else
      begin_to_take();
  }
  {
    const std::lock_guard lock(mutex_);
    --under_way_;
  }
  finish_if_over();
}

void CodingJob::keep_manifests() {
  kept_ = {coding_inputs_.parity_manifest.rows, coding_inputs_.parity_manifest.member, {}};
  kept_.members.resize(coding_inputs_.parity_manifest.sources.size());
  for (const auto& [shard, input] : inputs_) {
    const auto piece = core::group_piece(coding_inputs_.parity_manifest, shard);
    if (!piece || !input.manifest) continue;
    if (piece->is_parity) {
      kept_.members = decode_kept_manifests(input.manifest->layout).members;
      break;
    }
    kept_.members[piece->member] = input.manifest;
  }
  const auto wanted = *core::group_piece(coding_inputs_.parity_manifest, piece_.shard);
  if (wanted.is_parity)
    kept_.member = wanted.member;
  else
    expected_ = kept_.members[wanted.member]->leaves;
  for (const auto& manifest : kept_.members) {
    if (manifest && inputs_.contains(manifest->shard)) inputs_.at(manifest->shard).manifest = manifest;
  }
}

bool CodingJob::prepare_slot() {
  const std::uint64_t layout_bytes =
      piece_.is_parity() ? encoded_bytes(piece_.parity_manifest) : static_cast<std::uint64_t>(piece_.layout_bytes);
  if (!destination_.begin_unknown(layout_bytes)) return false;
  leaves_.assign(kernels::leaf_count(piece_.length_bytes), 0);
  return true;
}

}  // namespace ckpt::agent
