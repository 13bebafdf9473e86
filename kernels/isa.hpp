// The instruction sets that kernels are built for. One binary holds them all and picks at run time; every one gives the
// same bytes and the same digests. Functions are thread-safe.
#pragma once

#include <cstdint>
#include <vector>

namespace ckpt::kernels {

enum class Isa : std::uint8_t { portable, avx2, avx512 };

const char* name(Isa isa);

// Whether this processor, and the operating system on it, runs `isa`. Portable always is.
bool supported(Isa isa);

std::vector<Isa> supported_isas();

// The fastest supported one.
Isa best_isa();

}  // namespace ckpt::kernels
