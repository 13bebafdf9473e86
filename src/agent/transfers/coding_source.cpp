#include "agent/transfers/coding_source.hpp"

#include <utility>

#include "core/lists.hpp"
#include "net/wire.hpp"

namespace ckpt::agent {
namespace {

using core::FetchResult;

// Size of the piece's manifest as it travels. 0 if it does not grow with a group.
std::uint64_t manifest_bytes(const core::PieceInfo& piece) {
  if (!piece.is_parity()) return 0;
  return arena::encoded_bytes(piece.shard.size(), piece.length_bytes, encoded_bytes(piece.parity_manifest));
}

std::string trouble_with(const core::StartFetch& order) {
  const std::uint64_t bytes = manifest_bytes(order.piece);
  if (bytes <= net::wire::manifest_bytes_max) return {};
  return "parity " + order.piece.shard + " is not made: the manifests of the shards that it protects take " +
         std::to_string(bytes >> 20) +
         " MiB, more than agents can send; use smaller parity groups, e.g. protection=xor(4)";
}

}  // namespace

// One coding job after the other, until one succeeds or too few sources are left.
class CodingSource::Attempts : public RunningFetch, public std::enable_shared_from_this<Attempts> {
 public:
  Attempts(const CodingJob::Dependencies& deps, CoreQueue& queue, const FetchRequest& request,
           std::shared_ptr<const MadeParity> made)
      : deps_(deps),
        queue_(queue),
        request_(request),
        made_(std::move(made)),
        has_waited_(made_ != nullptr),
        inputs_(request.order.coding_inputs) {
    deps_.urgent = request.urgent;
  }

  void start() {
    auto done = [weak = weak_from_this(), &queue = queue_](CodingJob::Outcome outcome) {
      queue.post([weak, outcome = std::move(outcome)]() mutable {
        if (const auto self = weak.lock()) self->ended(std::move(outcome));
      });
    };
    job_ = std::make_shared<CodingJob>(deps_, request_.destination, inputs_, std::move(done), made_);
    job_->start();
  }
  void look() override {
    if (job_ != nullptr) job_->look();
  }
  void stop_waiting() override {
    made_ = nullptr;  // for further attempts
    if (job_ != nullptr) job_->stop_waiting();
  }
  void cancel() override {
    is_cancelled_ = true;
    if (job_ != nullptr) job_->cancel();
  }

 private:
  void ended(CodingJob::Outcome outcome) {
    network_bytes_ += outcome.received_bytes;
    for (const PieceRef& piece : outcome.damaged) request_.damaged(piece, false);
    for (const PieceRef& piece : outcome.wrong) request_.damaged(piece, true);
    if (outcome.result != FetchResult::complete && !is_cancelled_ && request_.destination.is_whole_file() &&
        (leave_out(outcome.unusable) || suspect_another(outcome.suspects)))
      return start();
    if (outcome.result == FetchResult::complete && is_convicted()) request_.damaged(*suspected_, true);
    FetchOutcome last;
    last.result = outcome.result;
    last.network_bytes = network_bytes_;
    if (outcome.manifest) last.coded_bytes = outcome.manifest->length_bytes - outcome.taken_bytes;
    if (has_waited_) last.gpu_received_bytes = outcome.taken_bytes;
    last.manifest = std::move(outcome.manifest);
    request_.done(std::move(last));
  }

  // Removes these from the sources. Returns false if none of them is there any more. Whenever it returns true, fewer
  // sources are left, so the attempts end.
  bool leave_out(const std::vector<PieceRef>& unusable) {
    return std::erase_if(inputs_.sources, [&](const core::CodingInputs::Source& source) {
             return core::contains(unusable, PieceRef{source.node, source.shard});
           }) != 0;
  }

  // At least one of several parity pieces is wrong, but the others may suffice. So each attempt leaves out one suspect,
  // and reads all other suspects again. Returns false if each suspect has been left out once.
  bool suspect_another(const std::vector<PieceRef>& suspects) {
    if (!all_inputs_) {
      if (suspects.empty()) return false;
      all_inputs_ = inputs_;
      suspects_ = suspects;
    }
    if (suspects_.empty()) return false;
    suspected_ = suspects_.back();
    suspects_.pop_back();
    inputs_ = *all_inputs_;
    left_out_ = std::erase_if(inputs_.sources, [&](const auto& source) { return source.shard == suspected_->shard; });
    return true;
  }

  // Call this when the piece came out right. Returns whether the suspect that was left out is wrong. That is so if
  // nothing else was left out: decoding uses the first sources that are there, so it has read all other suspects.
  bool is_convicted() const { return suspected_ && inputs_.sources.size() + left_out_ == all_inputs_->sources.size(); }

  CodingJob::Dependencies deps_;
  CoreQueue& queue_;
  const FetchRequest request_;
  std::shared_ptr<const MadeParity> made_;
  const bool has_waited_;  // for what is made elsewhere
  core::CodingInputs inputs_;
  std::shared_ptr<CodingJob> job_;
  std::uint64_t network_bytes_ = 0;  // of all attempts
  bool is_cancelled_ = false;
  // Used once one of several parity pieces is known to be wrong:
  std::optional<core::CodingInputs> all_inputs_;
  std::vector<PieceRef> suspects_;     // to be left out one at a time
  std::optional<PieceRef> suspected_;  // left out now
  std::size_t left_out_ = 0;           // how many of its sources were left out
};

std::shared_ptr<RunningFetch> CodingSource::start(const FetchRequest& request, std::shared_ptr<const MadeParity> made) {
  if (request.order.source != core::parity_node) return nullptr;
  auto attempts = std::make_shared<Attempts>(deps_, queue_, request, std::move(made));
  FetchOutcome refused;
  refused.trouble = trouble_with(request.order);
  if (refused.trouble.empty() && core::is_valid(request.order.coding_inputs.parity_manifest))
    attempts->start();
  else
    queue_.post([done = request.done, refused] { done(refused); });
  return attempts;
}

}  // namespace ckpt::agent
