// Writes a checkpoint as agents do, for tests/process/test_storage_format.py, which reads it with the tools of others:
//   persist_sample LOCATION SPEC [ITERATION]
// SPEC is a file: one line "<shard>[/<parts>] <layout text>" per shard, each followed by a line with the path of its
// bytes. A shard of several parts is written part by part, as the nodes do that captured them.
#include <cstring>
#include <filesystem>
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

void write(const std::string& location, const std::string& spec_path, std::int64_t iteration) {
  std::filesystem::create_directories(location);
  const auto files = open_file_system(location, {});
  CheckpointWriter writer = writer_on(*files);
  const CheckpointId checkpoint(1, iteration);
  std::vector<std::string> shards;
  std::ifstream spec(spec_path);
  std::string shard, layout, bytes_path;
  while (spec >> shard && std::getline(spec >> std::ws, layout) && std::getline(spec, bytes_path)) {
    const std::size_t slash = shard.find('/');
    const auto parts = slash == shard.npos ? 1u : static_cast<std::uint32_t>(std::stoul(shard.substr(slash + 1)));
    shard.resize(std::min(slash, shard.size()));
    Sample whole;
    whole.bytes = slurp(bytes_path);
    whole.piece = {manifest_for(shard, checkpoint, layout == "-" ? "" : layout, whole.bytes), whole.bytes.data(),
                   nullptr};
    for (std::uint32_t i = parts; i > 0; --i) {
      const Piece piece = parts == 1 ? whole.piece : part_of(whole, i - 1, parts);
      writer.write(piece);
      shards.push_back(piece.manifest->shard);
    }
  }
  writer.commit(checkpoint, 2, shards);
}

}  // namespace
}  // namespace ckpt::persist::test

int main(int argc, char** argv) {
  if (argc != 3 && argc != 4) return 2;
  try {
    ckpt::persist::test::write(argv[1], argv[2], argc == 4 ? std::stoll(argv[3]) : 123);
  } catch (const std::exception& failure) {
    std::cerr << failure.what() << '\n';
    return 1;
  }
}
