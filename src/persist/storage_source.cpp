#include "persist/storage_source.hpp"

#include <algorithm>

#include "persist/step_catalog.hpp"

namespace ckpt::persist {
namespace {

Offer offer_of(const StepRecord& step) {
  Offer offer{step.version, step.world_size, {}};
  for (const ShardRecord& shard : step.shards)
    offer.shards.push_back(
        {shard.shard, shard.data_bytes, shard.layout_bytes, shard.root_digest, {{0, shard.data_bytes}}});
  return offer;
}

}  // namespace

StorageSource::StorageSource(std::unique_ptr<FileSystem> files, std::string job)
    : files_(std::move(files)), job_(std::move(job)) {}

Listing StorageSource::list() {
  Listing listing;
  steps_.clear();
  reader_.reset();
  auto steps = list_steps(*files_, job_);
  const auto newest = std::find_if(steps.begin(), steps.end(), [](const Step& step) { return step.usable(); });
  const Version newest_offered = newest == steps.end() ? Version() : newest->version();
  for (Step& step : steps) {
    listing.newest_incarnation = std::max(listing.newest_incarnation, step.newest_incarnation);
    if (!step.remark.empty()) listing.remarks.push_back(step.remark);
    if (step.is_withheld && step.newest_incarnation == 0) listing.knows_incarnations = false;
    if (step.usable()) {
      listing.offers.push_back(offer_of(*step.record));
      steps_.emplace(step.version(), std::move(*step.record));
    } else if (step.is_withheld && step.may_be_newer_than(newest_offered)) {
      listing.withheld.push_back(step.problem + "; the step may be whole, and newer than all that is offered");
    } else {
      listing.problems.push_back(std::move(step.problem));
    }
  }
  return listing;
}

const StepRecord& StorageSource::step_of(Version version) {
  if (!steps_.contains(version)) list();
  const auto found = steps_.find(version);
  if (found == steps_.end())
    throw Failure(CKPT_ERR_LOST, name() + " no longer has " + step_name(version.iteration()) + " of incarnation " +
                                     std::to_string(version.incarnation()));
  return found->second;
}

ShardReader& StorageSource::reader_of(const std::string& shard, Version version) {
  const bool fits = reader_ && reader_->manifest().shard == shard && reader_->manifest().version == version;
  if (!fits) reader_ = std::make_unique<ShardReader>(*files_, step_of(version), shard);
  return *reader_;
}

arena::Manifest StorageSource::manifest(const std::string& shard, Version version) {
  return reader_of(shard, version).manifest();
}

void StorageSource::read(const std::string& shard, Version version, ByteRange range, std::byte* destination) {
  reader_of(shard, version).read(range, destination);
}

}  // namespace ckpt::persist
