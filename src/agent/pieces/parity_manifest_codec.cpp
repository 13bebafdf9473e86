#include "agent/pieces/parity_manifest_codec.hpp"

#include <cstring>
#include <span>

#include "base/error.hpp"
#include "core/parity_pieces.hpp"

namespace ckpt::agent {
namespace {

// Each member's manifest follows, as arena::encode() writes it, after its size in 8 bytes; size 0: none.
struct Head {
  std::uint32_t rows;
  std::uint32_t member;
  std::uint64_t members;
};
static_assert(sizeof(Head) == 16);

[[noreturn]] void refuse() {
  throw Failure(CKPT_ERR_CORRUPT, "the parity manifest of a parity piece is damaged, so this piece cannot be used");
}

void put(std::string& text, const void* data, std::size_t size_bytes) {
  text.append(static_cast<const char*>(data), size_bytes);
}

std::string_view take(std::string_view& text, std::uint64_t size_bytes) {
  if (size_bytes > text.size()) refuse();
  const std::string_view taken = text.substr(0, size_bytes);
  text.remove_prefix(size_bytes);
  return taken;
}

template <class T>
T take_value(std::string_view& text) {
  T value;
  std::memcpy(&value, take(text, sizeof(T)).data(), sizeof(T));
  return value;
}

}  // namespace

std::string encode(const KeptManifests& kept) {
  std::string text;
  const Head head{kept.rows, kept.member, kept.members.size()};
  put(text, &head, sizeof(head));
  for (const auto& manifest : kept.members) {
    const auto bytes = manifest ? arena::encode(*manifest) : std::vector<std::byte>();
    const std::uint64_t size_bytes = bytes.size();
    put(text, &size_bytes, sizeof(size_bytes));
    put(text, bytes.data(), bytes.size());
  }
  return text;
}

KeptManifests decode_kept_manifests(std::string_view text) {
  const auto head = take_value<Head>(text);
  if (head.members > placement::max_parity_members) refuse();
  KeptManifests kept{head.rows, head.member, {}};
  for (std::uint64_t i = 0; i < head.members; ++i) {
    const std::string_view bytes = take(text, take_value<std::uint64_t>(text));
    kept.members.emplace_back();
    if (!bytes.empty()) kept.members.back() = arena::decode_manifest(std::as_bytes(std::span(bytes)));
  }
  if (!text.empty() || !core::is_valid(parity_manifest_of(kept))) refuse();
  return kept;
}

core::ParityManifest parity_manifest_of(const KeptManifests& kept) {
  core::ParityManifest parity_manifest{kept.rows, kept.member, {}};
  for (const auto& manifest : kept.members) {
    parity_manifest.sources.emplace_back();
    if (!manifest) continue;
    parity_manifest.sources.back() = {manifest->shard, manifest->length_bytes, manifest->layout.size(),
                                      manifest->root_digest};
  }
  return parity_manifest;
}

std::uint64_t encoded_bytes(const core::ParityManifest& parity_manifest) {
  std::uint64_t bytes = sizeof(Head);
  for (const core::ParitySource& each : parity_manifest.sources) {
    bytes += sizeof(std::uint64_t);
    if (each.shard.empty()) continue;
    bytes += arena::encoded_bytes(each.shard.size(), each.length_bytes, each.layout_bytes);
  }
  return bytes;
}

}  // namespace ckpt::agent
