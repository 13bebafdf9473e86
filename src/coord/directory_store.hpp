// The store as a directory that all nodes mount: one file per key.
//
// A record is written to a temporary file, synced, and, under an exclusive lock of the file `.lock`, renamed over the
// old one; readers need no lock. At whatever instant a writer dies, a reader finds the old record or the new one. The
// record's first line holds its revision, length and digest, so that a damaged file is noticed:
//   ckptengine record 1 <revision> <length in bytes> <XXH3 of value and revision, hex>
// A directory of another user, or one that everybody can write into, is refused. Directories are 0700 and files 0600:
// who can read them can join the job.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "base/clock.hpp"
#include "base/unique_fd.hpp"
#include "coord/store.hpp"

namespace ckpt::coord {

class DirectoryStore : public Store {
 public:
  // Makes `directory` where it does not exist. `timeout_ms`: longest wait for another writer's lock.
  explicit DirectoryStore(std::string directory, std::int64_t timeout_ms = 5000);

  std::optional<Entry> get(const std::string& key) override;
  std::optional<std::uint64_t> put_if(const std::string& key, const std::string& value,
                                      std::uint64_t expected) override;
  std::vector<Entry> list(const std::string& prefix) override;
  std::vector<std::string> keys(const std::string& prefix) override;
  void remove(const std::string& key) override;
  // All records but those that are damaged.
  std::vector<Entry> undamaged() const;

 private:
  std::vector<std::string> keys_below(const std::string& prefix) const;
  std::string path_of(const std::string& key) const;
  UniqueFd lock_file(const char* name, Deadline deadline) const;
  UniqueFd lock(Deadline deadline) const;
  std::string drafts_suffix();

  std::string directory_;
  std::int64_t timeout_ms_;
  const std::uint64_t writer_;  // random
  std::atomic<std::uint64_t> drafts_{0};
};

}  // namespace ckpt::coord
