// How many threads a block of each GPU kernel has. The kernels and the code that launches them must agree on these
// numbers. Internal to kernels/.
#pragma once

namespace ckpt::kernels::device {

inline constexpr unsigned digest_threads_per_block = 128;
inline constexpr unsigned digest_leaves_per_block = 16;

// A block packs or unpacks one leaf.
inline constexpr unsigned pack_threads_per_block = 256;

}  // namespace ckpt::kernels::device
