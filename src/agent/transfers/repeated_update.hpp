// Repeats one update of a piece, as a gradient record describes it. Pure functions; thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "arena/gradient_record.hpp"
#include "arena/manifest.hpp"

namespace ckpt::agent {

// Returns why the update that leads to the piece with the manifest `after` cannot be repeated on the piece with the
// manifest `before`, as a clause for people. "" if it can.
std::string why_not(const arena::GradientRecord& record, const arena::Manifest& after, const arena::Manifest& before);

// Writes the piece after the update to `after`, and returns the digests of its leaves. `bytes`: the whole record, from
// which `record` was decoded. `before` and `after` have record.piece_bytes bytes each and do not overlap.
std::vector<std::uint64_t> repeat_update(const arena::GradientRecord& record, std::span<const std::byte> bytes,
                                         const std::byte* before, std::byte* after);

}  // namespace ckpt::agent
