#include "agent/transfers/storage_reader.hpp"

#include <stop_token>
#include <utility>

namespace ckpt::agent {
namespace {

using core::FetchResult;
using persist::ReadOutcome;

constexpr const char* called_off = "reading from storage was cancelled";

// Other nodes may find a file that this node does not find. So only wrong bytes count against the checkpoint.
FetchResult result_of(ckpt_status status) {
  if (status == CKPT_OK) return FetchResult::complete;
  return status == CKPT_ERR_CORRUPT ? FetchResult::corrupt : FetchResult::failed;
}

FetchOutcome failed(std::string trouble) {
  FetchOutcome outcome;
  outcome.trouble = std::move(trouble);
  return outcome;
}

}  // namespace

// One read. The object keeps itself alive while threads of storage may write to the slot.
class StorageReader::Read : public RunningFetch, public std::enable_shared_from_this<Read> {
 public:
  Read(const FetchRequest& request, CoreQueue& queue)
      : order_(request.order), destination_(request.destination), done_(request.done), queue_(queue) {}

  void start(persist::ReadQueue& source) {
    if (stop_.stop_requested()) return end({CKPT_DISCARDED, called_off, 0});
    source.manifest(
        order_.piece.shard, order_.piece.checkpoint,
        [self = shared_from_this(), &source](const ReadOutcome& outcome, const arena::Manifest& manifest) {
          self->queue_.post([self, &source, outcome, manifest] { self->take_manifest(source, outcome, manifest); });
        });
  }
  void cancel() override { stop_.request_stop(); }

 private:
  void take_manifest(persist::ReadQueue& source, const ReadOutcome& outcome, const arena::Manifest& manifest) {
    if (!outcome.ok()) return end(outcome);
    const std::string& shard = order_.piece.shard;
    if (!destination_.begin(manifest))
      return end({CKPT_ERR_CORRUPT,
                  "shard " + shard +
                      " on storage is not the one that this checkpoint's manifest describes; see ckptctl verify",
                  0});
    manifest_ = manifest;
    source.read(
        shard, order_.piece.checkpoint, {0, order_.piece.length_bytes}, destination_.data(),
        [self = shared_from_this()](const ReadOutcome& ended) {
          self->queue_.post([self, ended] { self->end(ended); });
        },
        stop_.get_token());
  }

  void end(const ReadOutcome& read) {
    if (read.ok() && stop_.stop_requested()) return end({CKPT_DISCARDED, called_off, 0});
    FetchOutcome outcome;
    outcome.result = result_of(read.status);
    if (!read.ok()) {
      outcome.trouble =
          read.sentence + (read.status == CKPT_ERR_LOST ? "; check that all nodes see the same storage" : "");
      return done_(std::move(outcome));
    }
    destination_.seal(manifest_);
    outcome.manifest = std::move(manifest_);
    done_(std::move(outcome));
  }

  const core::StartFetch order_;
  FetchDestination destination_;
  const std::function<void(FetchOutcome)> done_;
  CoreQueue& queue_;
  std::stop_source stop_;
  arena::Manifest manifest_;
};

std::shared_ptr<RunningFetch> StorageReader::start(const FetchRequest& request) {
  if (request.order.source != core::storage_node) return nullptr;
  auto read = std::make_shared<Read>(request, queue_);
  const core::PieceInfo& piece = request.order.piece;
  if (storage_ == nullptr) {
    queue_.post([done = request.done, shard = piece.shard] {
      done(failed("shard " + shard +
                  " must be read from storage, but this agent has no option storage; give all agents of the job the "
                  "same option storage"));
    });
    return read;
  }
  storage_->find_source(piece.shard, piece.checkpoint, [read](persist::ReadQueue& source) { read->start(source); });
  return read;
}

}  // namespace ckpt::agent
