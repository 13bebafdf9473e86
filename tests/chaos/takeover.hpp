// Takeover brings the state of another number of ranks into this rank's tensors: it loads the shards that the rank
// takes over, puts them into a folder that all ranks of this start share, and reads the ranges that the rank lacks
// there. So the folder stands for the messages of a process group.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "ckptengine/ckptengine.h"
#include "optimizer.hpp"
#include "tensors.hpp"

namespace ckpt::chaos {

class Takeover {
 public:
  // `stored`: what ckpt_stored_layout() says. `enter` is called with the name of each stage that begins.
  Takeover(ckpt_engine* engine, const nlohmann::ordered_json& stored, std::string folder,
           std::function<void(const char*)> enter);

  // Throws std::runtime_error: a call of the engine fails, or another rank does not deliver in time.
  void load();
  void fill(std::vector<Tensor>& model, const Optimizer& optimizer, std::uint64_t rank, std::uint64_t world_size);

 private:
  struct Shard {
    nlohmann::json layout;
    std::vector<char> bytes;
    // Returns where the tensor's bytes begin. Throws if the shard lacks the tensor, or has another size of it.
    const char* find(const std::string& tensor, std::size_t size_bytes) const;
    std::uint64_t number(std::size_t at) const;  // of its cut: 0: the rank that captured it, 1: of how many
  };
  std::string file_of(std::uint64_t rank) const;
  void put(const Shard& shard) const;
  Shard get(std::uint64_t rank) const;
  void fill(Tensor& tensor, std::uint64_t elements, const Range& here, const std::vector<Shard>& shards) const;

  ckpt_engine* engine_;
  const nlohmann::ordered_json& stored_;
  std::string prefix_;  // of this checkpoint's files
  std::function<void(const char*)> enter_;
  Shard private_;
};

}  // namespace ckpt::chaos
