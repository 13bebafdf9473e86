// The engines of this process that are open, by instance. The agent gives the rank of an engine to another one of the
// same process only when it is not among them: an open engine may still write.
#pragma once

#include <cstdint>
#include <vector>

namespace ckpt::engine {

// One open engine, for as long as this object lives. Any thread.
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

}  // namespace ckpt::engine
