#include "persist/source.hpp"

#include <algorithm>
#include <set>

namespace ckpt::persist {
namespace {

using Parts = std::vector<Choice::Part>;

struct Candidate {
  std::size_t source;
  const ShardOffer* offer;
};

// The range that reaches furthest from `begin` on, of the first source that has one.
std::optional<Choice::Part> part_from(std::uint64_t begin, const std::vector<Candidate>& candidates) {
  for (const Candidate& candidate : candidates) {
    std::uint64_t reach = begin;
    for (const ByteRange& range : candidate.offer->ranges) {
      const std::uint64_t length = candidate.offer->length_bytes;
      if (range.offset_bytes > begin || range.offset_bytes > length) continue;
      reach = std::max(reach, range.offset_bytes + std::min(range.size_bytes, length - range.offset_bytes));
    }
    if (reach > begin) return Choice::Part{candidate.source, {begin, reach - begin}};
  }
  return std::nullopt;
}

// One after the other, each time from the first source that has the next byte. A part ends where a source listed
// earlier has bytes again.
std::optional<Parts> cover(const std::vector<Candidate>& candidates) {
  const std::uint64_t length = candidates.front().offer->length_bytes;
  Parts parts;
  for (std::uint64_t begin = 0; begin < length;) {
    auto part = part_from(begin, candidates);
    if (!part) return std::nullopt;
    for (const Candidate& earlier : candidates) {
      if (earlier.source >= part->source) break;
      for (const ByteRange& range : earlier.offer->ranges)
        if (range.size_bytes != 0 && range.offset_bytes > begin && range.offset_bytes < begin + part->range.size_bytes)
          part->range.size_bytes = range.offset_bytes - begin;
    }
    begin += part->range.size_bytes;
    parts.push_back(*part);
  }
  return parts;
}

std::vector<Candidate> candidates_for(std::span<const Listing> listings, const std::string& shard, Version version) {
  std::vector<Candidate> candidates;
  for (std::size_t source = 0; source < listings.size(); ++source)
    for (const Offer& offer : listings[source].offers)
      for (const ShardOffer& offered : offer.shards)
        if (offer.version == version && offered.shard == shard) candidates.push_back({source, &offered});
  return candidates;
}

// From those that agree on the shard's digest; of several such groups the one that comes first and suffices.
std::optional<Parts> parts_of(std::span<const Listing> listings, const std::string& shard, Version version) {
  const auto candidates = candidates_for(listings, shard, version);
  std::set<std::pair<std::uint64_t, std::uint64_t>> tried;
  for (const Candidate& leader : candidates) {
    if (!tried.emplace(leader.offer->length_bytes, leader.offer->root_digest).second) continue;
    std::vector<Candidate> agreeing;
    for (const Candidate& candidate : candidates)
      if (candidate.offer->length_bytes == leader.offer->length_bytes &&
          candidate.offer->root_digest == leader.offer->root_digest)
        agreeing.push_back(candidate);
    if (auto parts = cover(agreeing)) return parts;
  }
  return std::nullopt;
}

}  // namespace

std::optional<Choice> choose(std::span<const Listing> listings, std::span<const std::string> shards) {
  std::map<Version, std::uint32_t, std::greater<>> versions;
  for (const Listing& listing : listings)
    for (const Offer& offer : listing.offers) versions.emplace(offer.version, offer.world_size);
  for (const auto& [version, world_size] : versions) {
    Choice choice{version, world_size, {}};
    const bool whole = std::all_of(shards.begin(), shards.end(), [&, version = version](const std::string& shard) {
      auto parts = parts_of(listings, shard, version);
      if (parts) choice.shards.emplace(shard, std::move(*parts));
      return parts.has_value();
    });
    if (whole) return choice;
  }
  return std::nullopt;
}

void withdraw(Listing& listing, const std::string& shard, Version version) {
  for (Offer& offer : listing.offers)
    if (offer.version == version) std::erase_if(offer.shards, [&](const ShardOffer& at) { return at.shard == shard; });
  std::erase_if(listing.offers, [](const Offer& offer) { return offer.shards.empty(); });
}

}  // namespace ckpt::persist
