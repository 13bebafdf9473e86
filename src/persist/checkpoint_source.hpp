// Somebody who offers checkpoints, whole or in parts: storage is one (StorageSource); a save that healthy replicas make
// while the job goes down would be another. What is offered are pieces as they were captured, shards or parts of them
// (protocol/shard_parts.hpp). They are checked where they are read, against the offer's digests.
//
// A Source belongs to one thread; make one per thread (CheckpointSourceFactory). Every call ends by itself, with
// Failure where the source cannot do what it is asked.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "arena/manifest.hpp"
#include "persist/shard_reader.hpp"
#include "protocol/checkpoint_id.hpp"

namespace ckpt::persist {

struct ShardOffer {
  std::string shard;
  std::uint64_t length_bytes = 0;
  std::uint64_t layout_bytes = 0;
  std::uint64_t root_digest = 0;
  std::vector<ByteRange> ranges;  // what of it can be had; {0, length_bytes}: all
};

struct Offer {
  CheckpointId checkpoint;
  std::uint32_t world_size = 0;
  std::vector<ShardOffer> shards;
};

struct Listing {
  std::vector<Offer> offers;
  std::vector<std::string> problems;  // what was found and cannot be used, a sentence each
  std::vector<std::string> remarks;   // what else people should know, likewise
  std::vector<std::string> withheld;  // what there is and cannot be read now: it may be newer than all that is offered
  // The largest that anything found belongs to, whole or not; beyond what is withheld, of which nothing may be known.
  std::uint64_t newest_incarnation = 0;
  bool knows_incarnations = true;  // false: there may be newer ones in what is withheld
};

class CheckpointSource {
 public:
  virtual ~CheckpointSource() = default;
  virtual std::string name() const = 0;  // for messages
  virtual Listing list() = 0;
  // Digests and layout of a shard that was offered.
  virtual arena::Manifest manifest(const std::string& shard, CheckpointId checkpoint) = 0;
  // Verified: CKPT_ERR_CORRUPT where the source no longer has what it offered. After a failure the destination holds
  // anything, and nothing writes to it any more.
  virtual void read(const std::string& shard, CheckpointId checkpoint, ByteRange range, std::byte* destination) = 0;
};

using CheckpointSourceFactory = std::function<std::unique_ptr<CheckpointSource>(std::stop_token)>;

}  // namespace ckpt::persist
