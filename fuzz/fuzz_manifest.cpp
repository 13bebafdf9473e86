// Manifests as they travel between nodes. What is taken agrees with itself and is written as it was read.
#include "arena/manifest.hpp"
#include "base/error.hpp"
#include "fuzz/fuzz.hpp"
#include "fuzz/mended_manifest.hpp"
#include "fuzz/samples.hpp"

namespace ckpt::fuzz {
namespace {

void try_bytes(Input bytes) {
  try {
    const arena::Manifest manifest = arena::decode_manifest(bytes);
    require(arena::is_consistent(manifest));
    const auto again = arena::encode(manifest);
    require(again.size() == bytes.size() && std::equal(again.begin(), again.end(), bytes.begin()));
  } catch (const Failure& failure) {
    require(failure.status() == CKPT_ERR_CORRUPT);
  }
}

}  // namespace

void try_input(Input input) {
  try_bytes(input);
  try_bytes(mended(input));
}

std::vector<std::string> seeds() {
  return {text_of(arena::encode(sample_manifest("rank0", 0))), text_of(arena::encode(sample_manifest("rank0", 10))),
          text_of(arena::encode(sample_manifest("model", 20'000))),
          text_of(arena::encode(sample_manifest("blob", 10, false)))};
}

}  // namespace ckpt::fuzz
