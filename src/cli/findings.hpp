// Finding is the result of one check by `ckptctl doctor`. storage_findings() makes the checks of storage.
#pragma once

#include <string>
#include <vector>

#include "cli/storage/storage.hpp"

namespace ckpt::cli {

enum class Health { good, warning, bad };

struct Finding {
  Health health;
  std::string subject;  // what was checked, e.g. "shared memory"
  std::string text;     // what was found and, unless it is good, what to do
};

// Checks storage: writes and reads a small file there, and checks the checkpoints of the scope's job. If the scope
// names no job, checks the checkpoints of all jobs.
std::vector<Finding> storage_findings(const StorageScope& scope);

}  // namespace ckpt::cli
