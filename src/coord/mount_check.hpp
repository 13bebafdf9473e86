// Checks whether a directory can be the coordination store. Compare-and-swap must work in it, and the other machines of
// the job must see it.
#pragma once

#include <string>

#include "coord/revision_files.hpp"

namespace ckpt::coord {

// Returns a sentence that says what the coordination store needs and the file system of `directory` cannot do. Returns
// "" if nothing is missing. Makes a scratch directory there and removes it. Hangs while the file system hangs.
std::string what_fails_in(const std::string& directory, const RevisionHooks& hooks = {});

// Returns the type of the file system of `directory`, such as "ext4", if no other machine can see that file system.
// Returns "" if another machine may see it. Hangs while the file system hangs.
std::string local_file_system(const std::string& directory);

// local_file_system() of the directory that the option `coordination` names. Returns "" for etcd, and if the file
// system does not answer within a moment.
std::string local_store(const std::string& coordination);

}  // namespace ckpt::coord
