// What `ckptctl doctor` finds.
#pragma once

#include <string>
#include <vector>

#include "cli/storage.hpp"

namespace ckpt::cli {

enum class Health { good, warning, bad };

struct Finding {
  Health health;
  std::string subject;
  std::string text;
};

// Of the persistent tier: writes and reads a small file there, and looks at the checkpoints of the scope's job, or of
// all.
std::vector<Finding> storage_findings(const StorageScope& scope);

}  // namespace ckpt::cli
