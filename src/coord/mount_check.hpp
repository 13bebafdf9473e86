// Checks whether a directory can be the coordination store. Compare-and-swap must work in it, and the other machines of
// the job must see it.
#pragma once

#include <string>

#include "coord/revision_files.hpp"

namespace ckpt::coord {

// Makes a scratch directory in `directory`, tries compare-and-swap there, and removes the scratch directory. Returns a
// sentence that says what does not work there, or "" if all works. `hooks` are for tests. Hangs while the file system
// hangs.
std::string what_fails_in(const std::string& directory, const RevisionHooks& hooks = {});

// Returns "" if other machines may see the file system of `directory`. Otherwise returns its type, such as "ext4".
// Hangs while the file system hangs.
std::string local_file_system(const std::string& directory);

// Returns local_file_system() of `coordination`, the value of the option of that name, if it is a directory. Returns ""
// for etcd, and if the file system does not answer within 200 ms.
std::string local_store(const std::string& coordination);

}  // namespace ckpt::coord
