#include "client/open_engines.hpp"

#include <mutex>
#include <set>

namespace ckpt::client {
namespace {

struct Instances {
  std::mutex mutex;
  std::set<std::uint64_t> open;
};

// Never destroyed: engines in static storage are closed after it would have been.
Instances& instances() {
  static auto* const all = new Instances;
  return *all;
}

}  // namespace

OpenEngine::OpenEngine(std::uint64_t instance) : instance_(instance) {
  const std::lock_guard lock(instances().mutex);
  instances().open.insert(instance_);
}

OpenEngine::~OpenEngine() {
  const std::lock_guard lock(instances().mutex);
  instances().open.erase(instance_);
}

std::vector<std::uint64_t> open_engines() {
  const std::lock_guard lock(instances().mutex);
  return {instances().open.begin(), instances().open.end()};
}

}  // namespace ckpt::client
