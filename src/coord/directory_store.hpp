// The store as a directory that all nodes mount. Each revision of a record is a file; revision_files.hpp says how they
// are changed.
//
// A directory of another user, or one that everybody can write into, is refused. Directories are 0700 and files 0600:
// who can read them can join the job. Nothing here waits for another process; what waits is the file system.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>

#include "coord/revision_files.hpp"
#include "coord/store.hpp"

namespace ckpt::coord {

class DirectoryStore : public Store {
 public:
  // Makes `directory` where it does not exist.
  explicit DirectoryStore(std::string directory, RevisionHooks hooks = {});

  std::optional<Entry> get(const std::string& key) override;
  std::optional<std::uint64_t> put_if(const std::string& key, const std::string& value,
                                      std::uint64_t expected) override;
  std::vector<Entry> list(const std::string& prefix) override;
  std::vector<std::string> keys(const std::string& prefix) override;
  void remove(const std::string& key) override;
  // All records but those that are damaged.
  std::vector<Entry> undamaged();
  // Removes all records if they still are `seen`, which undamaged() told before; whether it did. A record that is
  // written meanwhile is either found and kept with all others, or its writer fails.
  bool remove_all(const std::vector<Entry>& seen);

 private:
  struct Place {
    std::string directory, name;
  };
  Place place_of(const std::string& key) const;
  std::string path_of(const std::string& key) const;
  void reached(RevisionHooks::Step step) const;
  std::string next_draft();
  using TakeRecord = std::function<void(const RevisionFiles&, const std::string& name, const std::string& key,
                                        RevisionFiles::Files& listed)>;
  void each_record(const std::string& prefix, const TakeRecord& take) const;

  const std::string directory_;
  const RevisionHooks hooks_;
  const std::uint64_t writer_;  // random
  std::atomic<std::uint64_t> drafts_{0};
};

}  // namespace ckpt::coord
