// CheckpointSource is the interface to a place outside the nodes' memory that offers checkpoints, or pieces of them.
// Storage is such a place (StorageSource). A CheckpointSource offers pieces as they were captured: shards, or parts of
// shards. Readers verify the pieces against the digests in the offer.
//
// A CheckpointSource belongs to one thread; a CheckpointSourceFactory makes one for each thread. Every call ends within
// the time limits of the place. A call throws Failure if the place cannot be read, or does not have what the caller
// asks for.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "arena/manifest.hpp"
#include "core/checkpoint_id.hpp"
#include "persist/shard_reader.hpp"

namespace ckpt::persist {

// One piece that is offered.
struct ShardOffer {
  std::string shard;  // name of the piece: a shard, or a part of one
  std::uint64_t length_bytes = 0;
  std::uint64_t layout_bytes = 0;
  std::uint64_t root_digest = 0;
  std::vector<ByteRange> ranges;  // the byte ranges that can be read; {0, length_bytes}: all of the piece
};

struct Offer {
  CheckpointId checkpoint;
  std::uint32_t world_size = 0;
  std::vector<ShardOffer> shards;
};

struct Listing {
  std::vector<Offer> offers;
  std::vector<std::string> problems;  // a sentence for each checkpoint that cannot be used
  std::vector<std::string> remarks;   // other notices for people, a sentence each
  // A sentence for each checkpoint that cannot be read now ("withheld") and may be newer than all offers.
  std::vector<std::string> withheld;
  // The largest incarnation of any checkpoint at this place, complete or not. Checkpoints of unknown incarnation do not
  // count.
  std::uint64_t newest_incarnation = 0;
  bool knows_incarnations = true;  // false: a withheld checkpoint may be of a newer incarnation
};

class CheckpointSource {
 public:
  virtual ~CheckpointSource() = default;
  virtual std::string name() const = 0;  // for messages
  virtual Listing list() = 0;
  // Returns the manifest of an offered piece: its layout, length and leaf digests.
  virtual arena::Manifest manifest(const std::string& shard, CheckpointId checkpoint) = 0;
  // Reads a range of an offered piece into `destination` and verifies it. Throws CKPT_ERR_CORRUPT if the bytes are not
  // those that were offered. After a failure the content of `destination` is undefined, and nothing writes to it any
  // more.
  virtual void read(const std::string& shard, CheckpointId checkpoint, ByteRange range, std::byte* destination) = 0;
};

// Makes a CheckpointSource. Its calls fail soon after a stop is requested through the stop token.
using CheckpointSourceFactory = std::function<std::unique_ptr<CheckpointSource>(std::stop_token)>;

}  // namespace ckpt::persist
