// Counts the bytes that work on the GPU of the test double of libcuda.so.1 reads and writes.
//
// Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "control.h"
#include "memory.hpp"

namespace cuda_double {

// The ranges that one copy or one launch reads and writes. A byte that several threads read counts once: the GPU's
// caches serve the others.
struct Footprint {
  struct Range {
    const void* data;
    std::uint64_t size_bytes;
  };
  std::vector<Range> reads, writes;
};

class Traffic {
 public:
  // Call it when the work is done. `name` says what kind of work it was.
  void add(const Memory& memory, const std::string& name, const Footprint& footprint);
  // The sums of kind number `index` since the start. Returns false if there are fewer kinds.
  bool at(std::size_t index, ckpt_double_traffic* sums) const;

 private:
  mutable std::mutex mutex_;
  std::map<std::string, ckpt_double_traffic> sums_;
};

}  // namespace cuda_double
