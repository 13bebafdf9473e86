// The open engines of this process, by instance. The agent gives an engine's rank to another engine of the same process
// only if the first is not among them, since an open engine may still write.
#pragma once

#include <cstdint>
#include <vector>

namespace ckpt::client {

// Registers one open engine as long as this object lives. Any thread.
class OpenEngine {
 public:
  explicit OpenEngine(std::uint64_t instance);
  ~OpenEngine();
  OpenEngine(const OpenEngine&) = delete;
  OpenEngine& operator=(const OpenEngine&) = delete;

  std::uint64_t instance() const { return instance_; }

 private:
  const std::uint64_t instance_;
};

std::vector<std::uint64_t> open_engines();

}  // namespace ckpt::client
