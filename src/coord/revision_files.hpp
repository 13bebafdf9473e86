// Compare-and-swap among the files of one directory, by link(2) alone: no locks, which some network file systems keep
// per machine (NFS with nolock or local_lock, Lustre with localflock, BeeGFS).
//
// Files of the record "incarnation":
//   incarnation@17            revision 17. It is complete from the moment it has this name, and never changes
//   incarnation@0             marks that revisions were removed; empty. It stays
//   .incarnation@18.<id>.new  a draft of revision 18; <id> is unique
//   incarnation               the record as earlier versions of this store wrote it; the revision is in its first line
// The revision with the largest number is the record.
//
// How revision n+1 is written (put):
//   1. Read the record; it must have revision n.
//   2. Write the draft of n+1 and sync it.
//   3. List the directory again. Revision n must still be the newest.
//   4. link(draft, "incarnation@<n+1>"). Only one writer can make that name; whoever makes it has won.
//   5. Sync the directory. It must still have the name by which it was opened, else somebody is removing the job's
//      records, and nobody knows whether this one was seen.
//   6. Sweep as the winner of M = n+1: list the directory; make incarnation@0; unlink all drafts of revisions up to M;
//   then
//      unlink the revisions below M, the lowest first.
//
// Why a removed revision is never made again, however long a writer pauses between 3 and 4. Suppose writer W links r
// after r had been removed. Consider all sweeps that removed r or anything newer before W's link. A sweep that listed
// the directory after W's draft was there saw that draft and unlinked it before it removed anything: W's link would
// have failed with ENOENT. So each of those sweeps began to list before W's draft existed, and its M, which existed
// even earlier, was there before step 3 of W began. The largest such M was removed by none of them, so W's step 3 saw
// it. M is larger than r, so W gave up in step 3. This needs no more of readdir() than POSIX promises: an entry that is
// there from before the listing until after it is listed.
//
// Why a reader gets the newest revision. It lists the directory, opens the newest revision n, finds that n+1 does not
// exist, and then finds that n still exists. Had n+1 been made before and removed since, the sweep that removed it
// would have removed n first. A listing that finds no revision at all, while writers replace one by another, finds
// incarnation@0: the reader lists again.
//
// Crashes: a draft without its writer is unlinked by the sweep of its revision; revisions that a sweep left are removed
// by the next one. At each moment the newest revision is complete. NFS may say that a link failed which it made:
// whether the new name has the draft's inode decides. All steps use one open directory, so that a writer that slept
// while the job's records were removed and made anew cannot touch the new ones.
//
// Safe to use from several threads and processes. Throws Failure.
#pragma once

#include <dirent.h>

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/unique_fd.hpp"
#include "coord/store.hpp"

namespace ckpt::coord {

// What tests put in the place of system calls, and where they stop a writer.
struct RevisionHooks {
  enum class Step { read, drafted, looked, placed, synced, listed, cleared, swept, compared, moved };
  std::function<void(Step)> reached = {};
  std::function<int(int at, const char* from, const char* to)> link = {};  // as link(2)
};

class RevisionFiles {
 public:
  struct Files {                         // of one record
    bool plain = false, marked = false;  // as an older version left it; incarnation@0
    std::set<std::uint64_t> revisions;
    std::vector<std::pair<std::uint64_t, std::string>> drafts;  // revision, file name
    bool is_record() const { return plain || !revisions.empty(); }
    std::uint64_t newest() const { return revisions.empty() ? 0 : *revisions.rbegin(); }  // by its name
    void take(const std::string& name, const std::string& file);
  };
  // Records by name, and the names of directories below this one.
  struct Content {
    std::map<std::string, Files> records;
    std::vector<std::string> directories;
  };

  // Nothing where the directory does not exist.
  static std::optional<RevisionFiles> open(const std::string& path, const RevisionHooks* hooks);

  Content content() const;
  Files look(const std::string& name) const;
  // `files`: as they were listed; at the end, as they were when the record was read.
  std::optional<Entry> read(const std::string& name, const std::string& key, Files& files) const;
  // `writer`: differs for all writers, and from one call to the next.
  std::optional<std::uint64_t> put(const std::string& name, const std::string& key, const std::string& value,
                                   std::uint64_t expected, const std::string& writer);
  void remove(const std::string& name);

 private:
  RevisionFiles(std::string path, UniqueFd fd, const RevisionHooks* hooks);

  void each_file(const std::function<void(const std::string& file, bool is_directory)>& take) const;
  UniqueFd reopened() const;
  bool is_directory(const dirent& entry) const;
  bool exists(const std::string& file) const;
  bool unlink(const std::string& file) const;
  bool place(const std::string& draft, int draft_fd, const std::string& target) const;
  bool is_same(int draft_fd, const std::string& target) const;
  void sweep(const std::string& name, std::uint64_t won) const;
  void reached(RevisionHooks::Step step) const {
    if (hooks_ != nullptr && hooks_->reached) hooks_->reached(step);
  }
  std::string path_of(const std::string& file) const { return path_ + (path_.ends_with('/') ? "" : "/") + file; }

  std::string path_;
  UniqueFd fd_;
  const RevisionHooks* hooks_;
};

}  // namespace ckpt::coord
