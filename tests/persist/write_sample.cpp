// Writes a step as agents do, for tests/process/test_storage_format.py, which reads it with the tools of others:
//   persist_sample LOCATION SPEC
// SPEC is a file: one line "<shard> <layout text>" per shard, each followed by a line with the path of its bytes.
#include <cstring>
#include <fstream>
#include <iostream>

#include "support.hpp"

namespace ckpt::persist::test {
namespace {

std::vector<std::byte> slurp(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  std::vector<std::byte> bytes(text.size());
  if (!text.empty()) std::memcpy(bytes.data(), text.data(), text.size());
  return bytes;
}

void write(const std::string& location, const std::string& spec_path) {
  const auto files = open_file_system(location, {});
  StepWriter writer = writer_on(*files);
  const Version version(1, 123);
  std::vector<std::string> shards;
  std::ifstream spec(spec_path);
  std::string shard, layout, bytes_path;
  while (spec >> shard && std::getline(spec >> std::ws, layout) && std::getline(spec, bytes_path)) {
    const auto bytes = slurp(bytes_path);
    writer.write({manifest_for(shard, version, layout == "-" ? "" : layout, bytes), bytes.data(), nullptr});
    shards.push_back(shard);
  }
  writer.commit(version, 2, shards);
}

}  // namespace
}  // namespace ckpt::persist::test

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  try {
    ckpt::persist::test::write(argv[1], argv[2]);
  } catch (const std::exception& failure) {
    std::cerr << failure.what() << '\n';
    return 1;
  }
}
