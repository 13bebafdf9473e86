// Checks whether a directory can be a coordination store, for `ckptctl doctor` and for warnings. It must support
// compare-and-swap, and other machines must see it.
#pragma once

#include <string>

#include "coord/revision_files.hpp"

namespace ckpt::coord {

// Says in a sentence what the file system of `directory` cannot do; "" if it can do all that is needed. Makes a scratch
// directory there and removes it. May hang if the file system hangs.
std::string what_fails_in(const std::string& directory, const RevisionHooks& hooks = {});

// The file system of `directory`, e.g. "ext4", if no other machine can see it; "" if another machine may. May hang if
// the file system hangs.
std::string local_file_system(const std::string& directory);

// Does this check for a coordination store. "" for etcd, and if the answer takes longer than a moment.
std::string local_store(const std::string& coordination);

}  // namespace ckpt::coord
