// Checks whether a directory can be the coordination store. Compare-and-swap must work in it, and the other machines of
// the job must see it.
#pragma once

#include <string>

#include "coord/revision_files.hpp"

namespace ckpt::coord {

// Tries compare-and-swap in a scratch directory in `directory`, which it removes afterwards. Returns a sentence that
// says what does not work there, or "" if all works. `hooks` are for tests. Hangs while the file system hangs.
std::string what_fails_in(const std::string& directory, const RevisionHooks& hooks = {});

// Returns the type of the file system of `directory`, such as "ext4", if no other machine can see that file system.
// Returns "" if another machine may see it. Hangs while the file system hangs.
std::string local_file_system(const std::string& directory);

// local_file_system() of the directory that the option `coordination` names. Returns "" for etcd. Also returns "" if
// the file system does not answer within 200 ms.
std::string local_store(const std::string& coordination);

}  // namespace ckpt::coord
