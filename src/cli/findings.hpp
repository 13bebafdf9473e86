// Finding is one result of a check by `ckptctl doctor`. storage_findings() makes its checks of storage.
#pragma once

#include <string>
#include <vector>

#include "cli/storage/storage.hpp"

namespace ckpt::cli {

enum class Health { good, warning, bad };

struct Finding {
  Health health;
  std::string subject;
  std::string text;
};

// Checks storage: writes and reads a small file there, and checks the checkpoints of the scope's job, or of all jobs.
std::vector<Finding> storage_findings(const StorageScope& scope);

}  // namespace ckpt::cli
