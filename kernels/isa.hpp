// Names the instruction sets that the CPU kernels are built for, and finds the best one that this processor has. The
// kernels of all instruction sets give the same bytes and the same digests. Thread-safe.
#pragma once

#include <cstdint>
#include <vector>

namespace ckpt::kernels {

enum class Isa : std::uint8_t { portable, avx2, avx512 };

const char* name(Isa isa);

// True if this processor and its operating system can run `isa`. `portable` always runs.
bool supported(Isa isa);

std::vector<Isa> supported_isas();

// The fastest instruction set that is supported here.
Isa best_isa();

}  // namespace ckpt::kernels
