// What each fuzz target provides: a function that takes any bytes, and well-formed inputs to begin with. driver.cpp
// makes a libFuzzer program of it.
//
// Many formats contain digests, which a random change never makes right. So a target tries each input twice: as it is,
// and with digests that fit. The second reaches the code behind the check.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <span>
#include <string>
#include <vector>

namespace ckpt::fuzz {

using Input = std::span<const std::byte>;

// Of each target: refuses the input or takes it, and aborts where what it took is not sound.
void try_input(Input input);
std::vector<std::string> seeds();

inline void require(bool holds) {
  if (!holds) std::abort();
}

inline std::string text_of(Input input) { return {reinterpret_cast<const char*>(input.data()), input.size()}; }

inline std::string text_of(const std::vector<std::byte>& bytes) { return text_of(Input(bytes)); }

}  // namespace ckpt::fuzz
