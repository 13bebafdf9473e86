// How many threads a block of each GPU kernel has. The kernels and the code that launches them must agree on these
// numbers. Internal to kernels/.
#pragma once

namespace ckpt::kernels::device {

// A block packs, unpacks, digests or encodes one leaf.
inline constexpr unsigned pack_threads_per_block = 256;

// Few, because a kernel with many registers gets whole blocks of them or none.
inline constexpr unsigned parity_threads_per_block = 128;

}  // namespace ckpt::kernels::device
