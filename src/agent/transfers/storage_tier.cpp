#include "agent/transfers/storage_tier.hpp"

#include <algorithm>
#include <utility>

#include "persist/storage_source.hpp"

namespace ckpt::agent {
namespace {

using persist::ReadOutcome;
using persist::WriteOutcome;

persist::FileSystemOptions file_options(const Options& options) {
  persist::FileSystemOptions files;
  files.timeout_ms = options.storage_timeout_ms;
  files.queue_depth = options.storage_depth;
  files.block_bytes = options.storage_block_bytes;
  return files;
}

persist::WriteQueueOptions write_options(const Options& options) {
  persist::WriteQueueOptions writes;
  writes.job = options.job;
  writes.node = options.node;
  writes.files = file_options(options);
  writes.bytes_per_second = options.storage_bytes_per_s;
  writes.retention = {options.storage_keep_last, options.storage_keep_every};
  return writes;
}

persist::FileSystemFactory make_files(const Options& options) {
  return [location = options.storage](const persist::FileSystemOptions& files) {
    return persist::open_file_system(location, files);
  };
}

persist::CheckpointSourceFactory make_source(const Options& options) {
  // Several threads call it at the same time.
  return [location = options.storage, job = options.job, base = file_options(options)](std::stop_token stop) {
    persist::FileSystemOptions files = base;
    files.stop = std::move(stop);
    return std::make_unique<persist::StorageSource>(persist::open_file_system(location, files), job);
  };
}

std::string trouble_of(const WriteOutcome& outcome) {
  if (outcome.kind == WriteOutcome::Kind::done) return "";
  return outcome.sentence.empty() ? "a newer checkpoint was written instead" : outcome.sentence;
}

bool is_all(const persist::ShardOffer& shard) {
  return shard.ranges == std::vector<persist::ByteRange>{{0, shard.length_bytes}};
}

}  // namespace

// One listing of all sources. Requests that come meanwhile wait for it, too.
struct StorageTier::Round {
  std::vector<persist::Listing> listings;
  std::size_t left = 0;
  std::vector<Then> then;
};

StorageTier::StorageTier(const Options& options, const std::vector<persist::CheckpointSourceFactory>& others,
                         const PieceIndex& index, CoreQueue& queue, Handle handle, Note note)
    : index_(index), queue_(queue), handle_(std::move(handle)), note_(std::move(note)) {
  const persist::ReadQueue::Limits limits;
  if (!options.storage.empty()) {
    persist::open_file_system(options.storage, file_options(options));  // throws for an invalid location
    writes_ = std::make_unique<persist::WriteQueue>(make_files(options), write_options(options));
    sources_.push_back(std::make_unique<persist::ReadQueue>(make_source(options), limits));
  }
  for (const auto& other : others) sources_.push_back(std::make_unique<persist::ReadQueue>(other, limits));
}

StorageTier::~StorageTier() = default;

// A listing under way may have seen an older state, so a new request gets a new one.
void StorageTier::list() {
  if (round_)
    list_again_ = true;
  else
    look(handle_);
}

void StorageTier::look(Then then) {
  if (round_) return round_->then.push_back(std::move(then));
  round_ = std::make_unique<Round>();
  round_->listings.resize(sources_.size());
  round_->left = sources_.size();
  round_->then.push_back(std::move(then));
  for (std::size_t i = 0; i < sources_.size(); ++i) {
    sources_[i]->list([this, i, &queue = queue_](const ReadOutcome& outcome, const persist::Listing& listing) {
      queue.post([this, i, outcome, listing] { take_listing(i, outcome, listing); });
    });
  }
}

// Storage that does not answer is trouble. Any other source that does not answer offers nothing.
void StorageTier::take_listing(std::size_t source, const ReadOutcome& outcome, persist::Listing listing) {
  if (!outcome.ok()) note_(outcome.sentence);
  if (!outcome.ok() && source == 0 && writes_) {
    listing.withheld.push_back(outcome.sentence);
    listing.knows_incarnations = false;
  }
  for (const std::string& problem : listing.problems) note_("a checkpoint on storage cannot be used: " + problem);
  for (const std::string& remark : listing.remarks) note_(remark);
  for (const std::string& problem : listing.withheld) note_(problem);
  round_->listings[source] = std::move(listing);
  if (--round_->left != 0) return;
  const auto round = std::exchange(round_, nullptr);
  const core::StorageListed listed = merge(*round);
  if (std::exchange(list_again_, false)) look(handle_);
  for (const Then& then : round->then) then(listed);
}

core::StorageListed StorageTier::merge(const Round& round) {
  core::StorageListed listed;
  offered_by_.clear();
  for (std::size_t source = 0; source < round.listings.size(); ++source) {
    const persist::Listing& listing = round.listings[source];
    listed.unusable.insert(listed.unusable.end(), listing.problems.begin(), listing.problems.end());
    listed.newest_incarnation = std::max(listed.newest_incarnation, listing.newest_incarnation);
    listed.knows_incarnations = listed.knows_incarnations && listing.knows_incarnations;
    if (listed.trouble.empty() && !listing.withheld.empty()) listed.trouble = listing.withheld.front();
    for (const persist::Offer& offer : listing.offers) {
      for (const persist::ShardOffer& shard : offer.shards) {
        if (!is_all(shard) || !offered_by_.try_emplace({offer.checkpoint, shard.shard}, source).second) continue;
        listed.pieces.push_back({shard.shard, offer.checkpoint, shard.length_bytes, shard.layout_bytes,
                                 shard.root_digest, offer.world_size});
      }
    }
  }
  return listed;
}

void StorageTier::write(const core::StartWrite& write) {
  std::vector<persist::Piece> pieces;
  std::uint64_t bytes = 0;
  for (const core::SlotRef& slot : write.slots) {
    const Pin pin = index_.find(slot);
    if (pin == nullptr) {
      queue_.post([this, checkpoint = write.checkpoint] {
        handle_(core::WriteEnded{checkpoint,
                                 "a piece of the checkpoint was dropped before it could be written to storage; a later "
                                 "checkpoint will be written"});
      });
      return;
    }
    pieces.push_back({{pin, &pin->manifest()}, pin->data(), pin});
    bytes += pin->manifest().length_bytes;
  }
  const auto done = [this, &queue = queue_, bytes](const WriteOutcome& outcome) {
    queue.post([this, checkpoint = outcome.checkpoint, trouble = trouble_of(outcome), bytes] {
      if (trouble.empty())
        wrote(checkpoint, bytes);
      else
        note_("iteration " + std::to_string(checkpoint.iteration()) +
              " was not written to storage; training goes on: " + trouble);
      handle_(core::WriteEnded{checkpoint, trouble});
    });
  };
  writes_->write(write.checkpoint, std::move(pieces), done, {write.discarded.checkpoint, write.discarded.shards});
}

// Keeps the newest two: one may still be written while the one before it is the newest complete one.
void StorageTier::wrote(CheckpointId checkpoint, std::uint64_t bytes) {
  written_bytes_[checkpoint] = bytes;
  while (written_bytes_.size() > 2) written_bytes_.erase(written_bytes_.begin());
}

std::uint64_t StorageTier::bytes_written(CheckpointId step) const {
  const auto found = written_bytes_.find(step);
  return found == written_bytes_.end() ? 0 : found->second;
}

void StorageTier::commit(const core::FinalizeCheckpoint& commit) {
  writes_->commit(
      commit.checkpoint, commit.world_size, commit.shards, {commit.damaged.begin(), commit.damaged.end()},
      [this, &queue = queue_](const WriteOutcome& outcome) {
        // After a successful commit, the sentence says what could not be removed.
        queue.post([this, checkpoint = outcome.checkpoint, said = outcome.sentence, trouble = trouble_of(outcome)] {
          if (!said.empty()) note_(said);
          handle_(core::FinalizeEnded{checkpoint, trouble});
        });
      });
}

// The leader's node has listed the sources. This node may have to list them itself to know which one offers the shard.
void StorageTier::find_source(const std::string& shard, CheckpointId checkpoint,
                              const std::function<void(persist::ReadQueue&)>& then) {
  const std::pair key{checkpoint, shard};
  if (const auto offered = offered_by_.find(key); offered != offered_by_.end()) return then(*sources_[offered->second]);
  look([this, key, then](const core::StorageListed&) {
    const auto found = offered_by_.find(key);
    then(*sources_[found == offered_by_.end() ? 0 : found->second]);
  });
}

}  // namespace ckpt::agent
