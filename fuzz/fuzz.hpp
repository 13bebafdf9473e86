// What a fuzz target is: something that takes any bytes, and well-formed ones to begin with. driver.cpp makes a
// libFuzzer program of it.
//
// Many formats carry digests, which no mutation ever hits. A target mends them, so that what lies behind is reached,
// and tries the bytes as they are besides.
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
