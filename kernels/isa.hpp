// Names the instruction sets that the CPU kernels are built for, and finds the best one that this processor has. All
// give the same bytes and the same digests. Thread-safe.
#pragma once

#include <cstdint>
#include <vector>

namespace ckpt::kernels {

enum class Isa : std::uint8_t { portable, avx2, avx512 };

const char* name(Isa isa);

// Whether this processor and its operating system run `isa`. They always run `portable`.
bool supported(Isa isa);

std::vector<Isa> supported_isas();

// The fastest supported one.
Isa best_isa();

}  // namespace ckpt::kernels
