#include "takeover.hpp"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <thread>
#include <utility>

namespace ckpt::chaos {
namespace {

constexpr auto deadline = std::chrono::seconds(25);
constexpr auto look_every = std::chrono::milliseconds(2);

}  // namespace

Takeover::Takeover(ckpt_engine* engine, const nlohmann::ordered_json& stored, std::string folder,
                   std::function<void(const char*)> enter)
    : engine_(engine),
      stored_(stored),
      prefix_(std::move(folder) + "/" + stored["incarnation"].dump() + "-" + stored["iteration"].dump() + "-"),
      enter_(std::move(enter)) {}

const char* Takeover::Shard::find(const std::string& tensor, std::size_t size_bytes) const {
  const auto found = layout.find(tensor);
  if (found == layout.end()) throw std::runtime_error("a stored shard lacks the tensor " + tensor);
  const std::size_t begin = (*found)["data_offsets"][0], end = (*found)["data_offsets"][1];
  if (end - begin != size_bytes || end > bytes.size()) throw std::runtime_error("another size of tensor " + tensor);
  return bytes.data() + begin;
}

std::uint64_t Takeover::Shard::number(std::size_t at) const {
  std::uint64_t value = 0;
  std::memcpy(&value, find("cut", 2 * sizeof value) + at * sizeof value, sizeof value);
  return value;
}

std::string Takeover::file_of(std::uint64_t rank) const { return prefix_ + std::to_string(rank); }

// All at once: nobody reads a part of it.
void Takeover::put(const Shard& shard) const {
  const std::string path = file_of(shard.number(0)), layout = shard.layout.dump();
  const std::string before = path + "." + std::to_string(getpid());
  std::ofstream file(before, std::ios::binary);
  file << layout << '\n';
  file.write(shard.bytes.data(), static_cast<std::streamsize>(shard.bytes.size()));
  file.close();
  if (!file) throw std::runtime_error("cannot write " + before);
  std::filesystem::rename(before, path);
}

Takeover::Shard Takeover::get(std::uint64_t rank) const {
  const auto end = std::chrono::steady_clock::now() + deadline;
  while (!std::filesystem::exists(file_of(rank))) {
    if (std::chrono::steady_clock::now() > end)
      throw std::runtime_error("nobody has taken over the shard of rank " + std::to_string(rank) + " in time");
    std::this_thread::sleep_for(look_every);
  }
  std::ifstream file(file_of(rank), std::ios::binary);
  std::string line;
  std::getline(file, line);
  Shard shard{nlohmann::json::parse(line), {}};
  shard.bytes.assign(std::istreambuf_iterator<char>(file), {});
  return shard;
}

void Takeover::load() {
  enter_("load");
  for (const auto& [name, layout] : stored_["taken"].items()) {
    Shard shard{layout, {}};
    std::size_t size = 0;
    for (const auto& [tensor, entry] : layout.items()) size = std::max<std::size_t>(size, entry["data_offsets"][1]);
    shard.bytes.resize(size);
    if (ckpt_load_taken(engine_, name.c_str(), shard.bytes.data(), size) != CKPT_OK)
      throw std::runtime_error(ckpt_last_error());
    if (shard.layout.contains("cut")) put(shard);
    if (private_.bytes.empty()) private_ = std::move(shard);  // the first one is a private shard
  }
}

void Takeover::fill(std::vector<Tensor>& model, const Optimizer& optimizer, std::uint64_t rank,
                    std::uint64_t world_size) {
  enter_("exchange");
  std::vector<Shard> shards = {get(0)};
  const std::uint64_t then = shards.front().number(1);
  for (std::uint64_t other = 1; other < then; ++other) shards.push_back(get(other));
  for (Tensor& tensor : model) {
    const std::uint64_t elements = optimizer.whole_elements(tensor.name);
    if (tensor.kind == Tensor::Kind::trained) {
      fill(tensor, elements, range_of(elements, rank, world_size), shards);
    } else if (tensor.kind == Tensor::Kind::content && !tensor.bytes.empty()) {
      const Shard& shard = tensor.capture == CKPT_SYNCHRONOUS ? private_ : shards.back();
      std::memcpy(tensor.bytes.data(), shard.find(tensor.name, tensor.bytes.size()), tensor.bytes.size());
    }
  }
}

// Elements that no shard has stay as they are, and are found to be wrong.
void Takeover::fill(Tensor& tensor, std::uint64_t elements, const Range& here, const std::vector<Shard>& shards) const {
  for (const Shard& shard : shards) {
    const Range there = range_of(elements, shard.number(0), shard.number(1));
    const Range both = {std::max(here.begin, there.begin), std::min(here.end, there.end)};
    if (both.begin >= both.end) continue;
    const char* const from = shard.find(tensor.name, there.size() * sizeof(float));
    std::memcpy(tensor.bytes.data() + (both.begin - here.begin) * sizeof(float),
                from + (both.begin - there.begin) * sizeof(float), both.size() * sizeof(float));
  }
}

}  // namespace ckpt::chaos
