#include "persist/storage_source.hpp"

#include <algorithm>

#include "persist/checkpoint_catalog.hpp"

namespace ckpt::persist {
namespace {

Offer offer_of(const CheckpointRecord& stored) {
  Offer offer{stored.checkpoint, stored.world_size, {}};
  for (const ShardRecord& shard : stored.shards)
    offer.shards.push_back(
        {shard.shard, shard.data_bytes, shard.layout_bytes, shard.root_digest, {{0, shard.data_bytes}}});
  return offer;
}

}  // namespace

StorageSource::StorageSource(std::unique_ptr<FileSystem> files, std::string job)
    : files_(std::move(files)), job_(std::move(job)) {}

Listing StorageSource::list() {
  Listing listing;
  records_.clear();
  reader_.reset();
  auto stored_checkpoints = list_checkpoints(*files_, job_);
  const auto newest = std::find_if(stored_checkpoints.begin(), stored_checkpoints.end(),
                                   [](const StoredCheckpoint& stored) { return stored.usable(); });
  const CheckpointId newest_offered = newest == stored_checkpoints.end() ? CheckpointId() : newest->checkpoint();
  for (StoredCheckpoint& stored : stored_checkpoints) {
    listing.newest_incarnation = std::max(listing.newest_incarnation, stored.newest_incarnation);
    if (!stored.remark.empty()) listing.remarks.push_back(stored.remark);
    if (stored.is_withheld && stored.newest_incarnation == 0) listing.knows_incarnations = false;
    if (stored.usable()) {
      listing.offers.push_back(offer_of(*stored.record));
      records_.emplace(stored.checkpoint(), std::move(*stored.record));
    } else if (stored.is_withheld && stored.may_be_newer_than(newest_offered)) {
      listing.withheld.push_back(stored.problem +
                                 "; this checkpoint may be complete, and newer than all that can be read");
    } else {
      listing.problems.push_back(std::move(stored.problem));
    }
  }
  return listing;
}

const CheckpointRecord& StorageSource::record_of(CheckpointId checkpoint) {
  if (!records_.contains(checkpoint)) list();
  const auto found = records_.find(checkpoint);
  if (found == records_.end())
    throw Failure(CKPT_ERR_LOST, name() + " no longer has " + folder_name(checkpoint.iteration()) + " of incarnation " +
                                     std::to_string(checkpoint.incarnation()) + "; find out what removed it");
  return found->second;
}

ShardReader& StorageSource::reader_of(const std::string& shard, CheckpointId checkpoint) {
  const bool fits = reader_ && reader_->manifest().shard == shard && reader_->manifest().checkpoint == checkpoint;
  if (!fits) reader_ = std::make_unique<ShardReader>(*files_, record_of(checkpoint), shard);
  return *reader_;
}

arena::Manifest StorageSource::manifest(const std::string& shard, CheckpointId checkpoint) {
  return reader_of(shard, checkpoint).manifest();
}

void StorageSource::read(const std::string& shard, CheckpointId checkpoint, ByteRange range, std::byte* destination) {
  reader_of(shard, checkpoint).read(range, destination);
}

}  // namespace ckpt::persist
