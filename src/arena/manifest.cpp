#include "arena/manifest.hpp"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <bit>
#include <cstring>

#include "arena/arena_format.hpp"
#include "arena/layout.hpp"
#include "base/error.hpp"
#include "kernels/digest.hpp"

namespace ckpt::arena {
namespace {

static_assert(std::endian::native == std::endian::little, "manifests are little endian");

// The format of a manifest on the network. It has its own version, because nodes may have arenas of different formats.
constexpr std::uint32_t wire_format_version = 1;

// The beginning of a manifest on the network. After it come the piece's name, the leaf digests and the layout text.
struct Head {
  std::uint64_t check;  // XXH3-64 of all bytes of the manifest after this field
  std::uint32_t format;
  std::uint32_t world_size;
  std::uint64_t checkpoint;
  std::uint64_t length_bytes;
  std::uint64_t root_digest;
  std::uint64_t layout_hash;
  std::uint64_t layout_bytes;
  std::uint64_t shard_bytes;
};
static_assert(sizeof(Head) == 64);

[[noreturn]] void refuse() {
  throw Failure(CKPT_ERR_CORRUPT, "a manifest is damaged or malformed; take the piece from another place");
}

// Copies `data` to `to` and returns the address after the copied bytes.
std::byte* put(std::byte* to, const void* data, std::size_t size_bytes) {
  if (size_bytes != 0) std::memcpy(to, data, size_bytes);
  return to + size_bytes;
}

std::uint64_t check_of(std::span<const std::byte> bytes) {
  return XXH3_64bits(bytes.data() + sizeof(std::uint64_t), bytes.size() - sizeof(std::uint64_t));
}

}  // namespace

bool is_consistent(const Manifest& manifest) {
  return manifest.checkpoint && manifest.world_size != 0 && !manifest.shard.empty() &&
         manifest.shard.size() < name_bytes_max &&
         manifest.leaves.size() == kernels::leaf_count(manifest.length_bytes) &&
         manifest.root_digest == kernels::root_digest(manifest.leaves, manifest.length_bytes) &&
         manifest.layout_hash == layout_hash(manifest.layout);
}

std::uint64_t manifest_bytes(std::uint64_t data_bytes, std::uint64_t layout_bytes) {
  return kernels::leaf_count(data_bytes) * sizeof(std::uint64_t) + layout_bytes;
}

std::uint64_t encoded_bytes(std::uint64_t shard_bytes, std::uint64_t data_bytes, std::uint64_t layout_bytes) {
  return sizeof(Head) + shard_bytes + manifest_bytes(data_bytes, layout_bytes);
}

std::vector<std::byte> encode(const Manifest& manifest) {
  const Head head{0,
                  wire_format_version,
                  manifest.world_size,
                  manifest.checkpoint.word(),
                  manifest.length_bytes,
                  manifest.root_digest,
                  manifest.layout_hash,
                  manifest.layout.size(),
                  manifest.shard.size()};
  const std::size_t digest_bytes = manifest.leaves.size() * sizeof(std::uint64_t);
  std::vector<std::byte> bytes(sizeof(head) + head.shard_bytes + digest_bytes + head.layout_bytes);
  std::byte* end = put(bytes.data(), &head, sizeof(head));
  end = put(end, manifest.shard.data(), manifest.shard.size());
  end = put(end, manifest.leaves.data(), digest_bytes);
  put(end, manifest.layout.data(), manifest.layout.size());
  const std::uint64_t check = check_of(bytes);
  put(bytes.data(), &check, sizeof(check));
  return bytes;
}

Manifest decode_manifest(std::span<const std::byte> bytes) {
  Head head{};
  if (bytes.size() < sizeof(head)) refuse();
  std::memcpy(&head, bytes.data(), sizeof(head));
  const std::uint64_t rest = bytes.size() - sizeof(head);
  const std::uint64_t leaves = kernels::leaf_count(head.length_bytes);
  // Checks that each part alone fits into the received bytes before it adds them up. So the sum cannot overflow.
  if (head.check != check_of(bytes) || head.format != wire_format_version || head.shard_bytes > rest ||
      head.layout_bytes > rest || leaves > rest / sizeof(std::uint64_t) ||
      head.shard_bytes + head.layout_bytes + leaves * sizeof(std::uint64_t) != rest)
    refuse();
  const auto* text = reinterpret_cast<const char*>(bytes.data()) + sizeof(head);
  Manifest manifest;
  manifest.checkpoint = CheckpointId::from_word(head.checkpoint);
  manifest.length_bytes = head.length_bytes;
  manifest.root_digest = head.root_digest;
  manifest.world_size = head.world_size;
  manifest.layout_hash = head.layout_hash;
  manifest.shard.assign(text, head.shard_bytes);
  text += head.shard_bytes;
  manifest.leaves.resize(leaves);
  if (leaves != 0) std::memcpy(manifest.leaves.data(), text, leaves * sizeof(std::uint64_t));
  text += leaves * sizeof(std::uint64_t);
  manifest.layout.assign(text, head.layout_bytes);
  if (!is_consistent(manifest)) refuse();
  return manifest;
}

}  // namespace ckpt::arena
