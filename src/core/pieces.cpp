#include "core/pieces.hpp"

#include <algorithm>
#include <bit>
#include <functional>

namespace ckpt::core {

namespace {

std::uint32_t short_hash(std::string_view shard) {
  return static_cast<std::uint32_t>(std::hash<std::string_view>{}(shard));
}

}  // namespace

void Holders::push_back(const Holder& holder) {
  if (many_.empty() && few_count_ < few_.size()) {
    few_[few_count_++] = holder;
    return;
  }
  if (many_.empty()) many_.assign(few_.begin(), few_.end());
  many_.push_back(holder);
}

void Pieces::reserve(std::size_t count) {
  all_.reserve(count);
  if (2 * count > buckets_.size()) index(std::bit_ceil(2 * count));
}

Holders& Pieces::operator[](std::string_view shard) {
  if (2 * (all_.size() + 1) > buckets_.size()) index(std::max<std::size_t>(16, 2 * buckets_.size()));
  const std::uint32_t hash = short_hash(shard);
  Bucket& bucket = buckets_[bucket_of(shard, hash)];
  if (bucket.number == none) {
    bucket = {hash, static_cast<std::uint32_t>(all_.size())};
    all_.emplace_back(shard, Holders());
  }
  return all_[bucket.number].second;
}

const Pieces::value_type* Pieces::find(std::string_view shard) const {
  if (buckets_.empty()) return end();
  const std::uint32_t number = buckets_[bucket_of(shard, short_hash(shard))].number;
  return number == none ? end() : &all_[number];
}

std::size_t Pieces::bucket_of(std::string_view shard, std::uint32_t hash) const {
  const std::size_t mask = buckets_.size() - 1;
  for (std::size_t i = hash & mask;; i = (i + 1) & mask) {
    const Bucket& bucket = buckets_[i];
    if (bucket.number == none || (bucket.hash == hash && all_[bucket.number].first == shard)) return i;
  }
}

void Pieces::index(std::size_t buckets) {
  buckets_.assign(buckets, Bucket());
  for (std::uint32_t number = 0; number < all_.size(); ++number) {
    const std::uint32_t hash = short_hash(all_[number].first);
    buckets_[bucket_of(all_[number].first, hash)] = {hash, number};
  }
}

}  // namespace ckpt::core
