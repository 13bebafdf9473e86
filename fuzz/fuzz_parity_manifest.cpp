// What the manifest of a parity piece carries: the manifests of a group. What is taken is a group that can be, and is
// written as it was read.
#include "agent/pieces/parity_manifest_codec.hpp"
#include "base/error.hpp"
#include "core/parity_pieces.hpp"
#include "fuzz/fuzz.hpp"
#include "fuzz/mended_manifest.hpp"
#include "fuzz/samples.hpp"

namespace ckpt::fuzz {
namespace {

constexpr std::size_t parity_manifest_head_bytes = 16;  // docs/formats.md, "A parity piece"

// With the digests of all manifests in it that can be told apart.
std::string mended_parity_manifest(Input input) {
  std::string text = text_of(input);
  for (std::size_t at = parity_manifest_head_bytes; at + sizeof(std::uint64_t) <= text.size();) {
    std::uint64_t size = 0;
    std::memcpy(&size, text.data() + at, sizeof(size));
    at += sizeof(size);
    if (size > text.size() - at) break;
    const auto manifest = mended(std::as_bytes(std::span(text)).subspan(at, size));
    if (size != 0) std::memcpy(text.data() + at, manifest.data(), size);
    at += size;
  }
  return text;
}

void try_text(const std::string& text) {
  try {
    const agent::KeptManifests kept = agent::decode_kept_manifests(text);
    const core::ParityManifest parity_manifest = agent::parity_manifest_of(kept);
    require(core::is_valid(parity_manifest));
    require(agent::encode(kept) == text && agent::encoded_bytes(parity_manifest) == text.size());
  } catch (const Failure& failure) {
    require(failure.status() == CKPT_ERR_CORRUPT);
  }
}

}  // namespace

void try_input(Input input) {
  try_text(text_of(input));
  try_text(mended_parity_manifest(input));
}

std::vector<std::string> seeds() {
  agent::KeptManifests kept{1, 0, {sample_manifest("rank0", 10), std::nullopt, sample_manifest("rank2", 20'000)}};
  agent::KeptManifests two{
      2, 1, {sample_manifest("rank0", 0), sample_manifest("rank1", 3), sample_manifest("rank2", 5)}};
  return {agent::encode(kept), agent::encode(two)};
}

}  // namespace ckpt::fuzz
