#include "net/wire.hpp"

#include <xxhash.h>

#include <algorithm>

namespace ckpt::net::wire {

bool plausible(const Hello& hello) { return hello.magic == magic && hello.version == version; }

bool plausible(const FetchRequest& request, std::size_t payload_bytes) {
  return request.shard_bytes == payload_bytes && payload_bytes <= shard_name_bytes_max &&
         request.wishes <= (wants_manifest | is_urgent);
}

bool plausible(const FetchAnswer& answer, std::size_t payload_bytes) {
  if (answer.status > Status::waiting || answer.manifest_bytes != payload_bytes) return false;
  if (answer.status != Status::found) return payload_bytes == 0;
  return payload_bytes <= manifest_bytes_max && answer.chunk_bytes >= grain_bytes;
}

bool within(const FetchAnswer& answer, const FetchRequest& request) {
  return answer.data_bytes <= request.size_bytes &&
         ((request.wishes & wants_manifest) != 0 || answer.manifest_bytes == 0);
}

bool plausible(const Chunk& chunk, std::size_t payload_bytes, std::size_t data_bytes, std::size_t chunk_bytes) {
  if (chunk.offset >= data_bytes || chunk.offset % grain_bytes != 0) return false;
  if (payload_bytes == 0 || payload_bytes > chunk_bytes || payload_bytes > data_bytes - chunk.offset) return false;
  return payload_bytes % grain_bytes == 0 || payload_bytes == data_bytes - chunk.offset;
}

std::span<const std::byte> range_of(const FetchRequest& request, std::span<const std::byte> data) {
  const std::uint64_t first_byte = std::min<std::uint64_t>(request.first_byte, data.size());
  return data.subspan(first_byte, std::min<std::uint64_t>(request.size_bytes, data.size() - first_byte));
}

std::uint64_t job_hash(std::string_view job) { return XXH3_64bits(job.data(), job.size()); }

}  // namespace ckpt::net::wire
