// CheckpointSource is the interface of any place outside the nodes' memory that offers checkpoints, or pieces of them.
// Storage is one (StorageSource). A source offers pieces as they were captured: shards, or parts of shards. Readers
// verify them against the digests that the source offered.
//
// A source belongs to one thread; a CheckpointSourceFactory makes one for each thread. Every call ends by itself. It
// throws Failure if the source cannot do what it is asked.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "arena/manifest.hpp"
#include "core/checkpoint_id.hpp"
#include "persist/shard_reader.hpp"

namespace ckpt::persist {

struct ShardOffer {
  std::string shard;
  std::uint64_t length_bytes = 0;
  std::uint64_t layout_bytes = 0;
  std::uint64_t root_digest = 0;
  std::vector<ByteRange> ranges;  // the ranges it can deliver; {0, length_bytes}: all
};

struct Offer {
  CheckpointId checkpoint;
  std::uint32_t world_size = 0;
  std::vector<ShardOffer> shards;
};

struct Listing {
  std::vector<Offer> offers;
  std::vector<std::string> problems;  // what exists and cannot be used, a sentence each
  std::vector<std::string> remarks;   // other news for people, a sentence each
  std::vector<std::string> withheld;  // what exists and cannot be read now; it may be newer than all offers
  // The largest incarnation of anything there, complete or not. Withheld checkpoints of unknown incarnation do not
  // count.
  std::uint64_t newest_incarnation = 0;
  bool knows_incarnations = true;  // false: withheld checkpoints may be of newer incarnations
};

class CheckpointSource {
 public:
  virtual ~CheckpointSource() = default;
  virtual std::string name() const = 0;  // for messages
  virtual Listing list() = 0;
  // Digests and layout of an offered shard.
  virtual arena::Manifest manifest(const std::string& shard, CheckpointId checkpoint) = 0;
  // Reads and verifies a range. Throws CKPT_ERR_CORRUPT if the source no longer has what it offered. After a failure
  // the content of the destination is undefined, and nothing writes to it any more.
  virtual void read(const std::string& shard, CheckpointId checkpoint, ByteRange range, std::byte* destination) = 0;
};

using CheckpointSourceFactory = std::function<std::unique_ptr<CheckpointSource>(std::stop_token)>;

}  // namespace ckpt::persist
