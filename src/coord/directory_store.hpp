// DirectoryStore is a coordination store in a directory that all nodes mount. Each revision of a record is a file
// (revision_files.hpp).
//
// Whoever can read the files can join the job. So directories have mode 0700 and files 0600, and the store refuses a
// directory that belongs to another user or is writable for everybody. A call may wait for the file system, but never
// for another process.
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
  // Makes `directory` if it does not exist. `hooks` are for tests.
  explicit DirectoryStore(std::string directory, RevisionHooks hooks = {});

  std::optional<Entry> get(const std::string& key) override;
  std::optional<std::uint64_t> put_if(const std::string& key, const std::string& value,
                                      std::uint64_t expected) override;
  std::vector<Entry> list(const std::string& prefix) override;
  std::vector<std::string> keys(const std::string& prefix) override;
  void remove(const std::string& key) override;
  // Returns all records except damaged ones, sorted by key.
  std::vector<Entry> undamaged();
  // Removes all records if they are still those in `seen`, an earlier result of undamaged(). Returns whether it removed
  // them. If a writer changes a record meanwhile, either all records stay or the writer's call fails.
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
  const std::uint64_t writer_;  // random; names this object's drafts
  std::atomic<std::uint64_t> drafts_{0};
};

}  // namespace ckpt::coord
