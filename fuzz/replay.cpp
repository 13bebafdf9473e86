// A fuzz target as an ordinary program, of any compiler: `PROGRAM FOLDER` tries its seeds and every file of the folder,
// and ends with "replayed N inputs". What is not sound ends it.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <vector>

#include "fuzz/fuzz.hpp"

namespace {

void try_text(const std::string& text) {
  ckpt::fuzz::try_input({reinterpret_cast<const std::byte*>(text.data()), text.size()});
}

std::vector<std::filesystem::path> files_of(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> files;
  if (!std::filesystem::is_directory(folder)) return files;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: " << argv[0] << " FOLDER\n";
    return 2;
  }
  const auto seeds = ckpt::fuzz::seeds();
  for (const std::string& seed : seeds) try_text(seed);
  const auto files = files_of(argv[1]);
  for (const std::filesystem::path& path : files) {
    std::cout << path.filename().string() << std::endl;  // the last one is what ends the program
    std::ifstream file(path, std::ios::binary);
    try_text({std::istreambuf_iterator<char>(file), {}});
  }
  std::cout << "replayed " << seeds.size() + files.size() << " inputs\n";
  return 0;
}
