// libFuzzer's entry points. `PROGRAM --seeds DIRECTORY` writes the target's seeds to files there, and ends.
#include <cstdint>
#include <fstream>
#include <iostream>
#include <string_view>

#include "fuzz/fuzz.hpp"

extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  if (*argc != 3 || std::string_view((*argv)[1]) != "--seeds") return 0;
  int number = 0;
  for (const std::string& seed : ckpt::fuzz::seeds()) {
    const std::string path = std::string((*argv)[2]) + "/seed-" + std::to_string(number++);
    if (!(std::ofstream(path, std::ios::binary) << seed).flush()) {
      std::cerr << "cannot write " << path << '\n';
      std::exit(1);
    }
  }
  std::exit(0);
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  ckpt::fuzz::try_input({reinterpret_cast<const std::byte*>(data), size});
  return 0;
}
