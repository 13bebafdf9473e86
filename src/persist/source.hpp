// Somebody who offers versions, whole or in parts: storage is one (StorageSource); a save that healthy replicas make
// while the job goes down would be another. What is offered is checked where it is read, against the offer's digests.
//
// A Source belongs to one thread; make one per thread (SourceFactory). Every call ends by itself, with Failure where
// the source cannot do what it is asked.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "arena/manifest.hpp"
#include "persist/shard_reader.hpp"
#include "protocol/version.hpp"

namespace ckpt::persist {

struct ShardOffer {
  std::string shard;
  std::uint64_t length_bytes = 0;
  std::uint64_t root_digest = 0;
  std::vector<ByteRange> ranges;  // what of it can be had; {0, length_bytes}: all
};

struct Offer {
  Version version;
  std::uint32_t world_size = 0;
  std::vector<ShardOffer> shards;
};

struct Listing {
  std::vector<Offer> offers;
  std::vector<std::string> problems;  // what was found and cannot be used, a sentence each
};

class Source {
 public:
  virtual ~Source() = default;
  virtual std::string name() const = 0;  // for messages
  virtual Listing list() = 0;
  // Digests and layout of a shard that was offered.
  virtual arena::Manifest manifest(const std::string& shard, Version version) = 0;
  // Verified: CKPT_ERR_CORRUPT where the source no longer has what it offered. After a failure the destination holds
  // anything, and nothing writes to it any more.
  virtual void read(const std::string& shard, Version version, ByteRange range, std::byte* destination) = 0;
};

using SourceFactory = std::function<std::unique_ptr<Source>(std::stop_token)>;

// Which version to take, and each shard's parts from where.
struct Choice {
  struct Part {
    std::size_t source = 0;  // index into the listings
    ByteRange range;
    bool operator==(const Part&) const = default;
  };
  Version version;
  std::uint32_t world_size = 0;
  std::map<std::string, std::vector<Part>> shards;  // parts in order, without gap or overlap
};

// The newest version for which all `shards` can be had in full, from the sources together; where several have a part,
// from the one that is listed first. Sources that tell different digests of a shard are not mixed. Nothing where there
// is none. Pure.
std::optional<Choice> choose(std::span<const Listing> listings, std::span<const std::string> shards);

// Takes an offer back that proved bad, so that choose() finds the next one.
void withdraw(Listing& listing, const std::string& shard, Version version);

}  // namespace ckpt::persist
