// A fuzz target as an ordinary program, of any compiler: `PROGRAM FILE` tries its seeds and every line of the file, an
// input in hexadecimal, and ends with "replayed N inputs". What is not sound ends it.
#include <fstream>
#include <iostream>
#include <stdexcept>
#include <string>
#include <vector>

#include "fuzz/fuzz.hpp"

namespace {

std::byte byte_of(const std::string& digits) {
  std::size_t used = 0;
  const int value = std::stoi(digits, &used, 16);
  if (used != 2) throw std::invalid_argument("two digits make a byte");
  return static_cast<std::byte>(value);
}

std::vector<std::byte> bytes_of(const std::string& line) {
  std::vector<std::byte> bytes;
  for (std::size_t at = 0; at < line.size(); at += 2) bytes.push_back(byte_of(line.substr(at, 2)));
  return bytes;
}

void try_text(const std::string& text) {
  ckpt::fuzz::try_input({reinterpret_cast<const std::byte*>(text.data()), text.size()});
}

}  // namespace

int main(int argc, char** argv) {
  std::ifstream corpus;
  if (argc == 2) corpus.open(argv[1]);
  if (!corpus.is_open()) {
    std::cerr << "usage: " << argv[0] << " FILE (of inputs, one a line, in hexadecimal)\n";
    return 2;
  }
  const auto seeds = ckpt::fuzz::seeds();
  for (const std::string& seed : seeds) try_text(seed);
  std::size_t number = 0;
  for (std::string line; std::getline(corpus, line);) {
    std::cout << "line " << ++number << std::endl;  // the last one is what ends the program
    ckpt::fuzz::try_input(bytes_of(line));
  }
  std::cout << "replayed " << seeds.size() + number << " inputs\n";
  return 0;
}
