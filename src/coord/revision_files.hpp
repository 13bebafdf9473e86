// RevisionFiles changes the records of DirectoryStore by compare-and-swap. Each revision of a record is a file in one
// directory, and link(2) decides who wins. It uses no locks: some network file systems keep locks per machine (NFS with
// nolock or local_lock, Lustre with localflock, BeeGFS).
//
// Files of the record "incarnation":
//   incarnation@17            revision 17. It is complete from the moment it has this name, and never changes
//   incarnation@0             an empty file that stays: revisions were removed, so a reader that finds none lists again
//   .incarnation@18.<id>.new  a draft of revision 18; <id> is unique
//   incarnation               the record as written by earlier versions of this store; its first line has the revision
// The revision with the largest number is the record.
//
// How revision n+1 is written (put):
//   1. Read the record. It must have revision n.
//   2. Write the draft of n+1 and sync it.
//   3. List the directory again. Revision n must still be the newest.
//   4. link(draft, "incarnation@<n+1>"). Only one writer can make that name. Whoever makes it has won.
//   5. Sync the directory. The directory must still have the name by which it was opened. Otherwise somebody is
//      removing the job's records, and may or may not have removed the new one, too.
//   6. Sweep. The sweep of revision M, which is n+1 here, is: list the directory; make incarnation@0; unlink all drafts
//      of revisions up to M; then unlink the revisions below M, the lowest first.
//
// Why a removed revision is never made again, however long a writer pauses between 3 and 4. Suppose writer W links r
// after r was removed. Consider all sweeps that removed r or anything newer before W's link. A sweep that listed the
// directory after W's draft existed saw the draft. It unlinked the draft before it removed anything, so W's link would
// have failed with ENOENT. Therefore each of those sweeps began to list before W's draft existed. Take the sweep with
// the largest M. Revision M existed before its sweep began, and so before step 3 of W. No sweep had removed M by then,
// because only a sweep of a larger revision does. So W saw M in step 3. M is larger than r, so W gave up in step 3: a
// contradiction. This needs no more of readdir() than POSIX promises: an entry that
// exists from before the listing until after it is listed.
//
// Why a reader gets the newest revision. It lists the directory, opens the newest revision n, finds that n+1 does not
// exist, and then finds that n still exists. Had n+1 been made before and removed since, the sweep that removed it
// would have removed n first. A listing may find no revision at all while writers replace one by another. It then finds
// incarnation@0, and the reader lists again.
//
// Crashes: if a writer dies, the sweep of the same or a later revision unlinks the draft that it left. If a sweep dies,
// the next one removes the revisions that it left. At each moment the newest revision is complete. NFS may say that a
// link failed although it was made: the inode of the new name decides whether it is the draft. All steps use one open
// directory. A writer that slept while the job's records were removed and made again therefore cannot touch the new
// ones.
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

// Lets tests replace a system call, and halt a writer at a step.
struct RevisionHooks {
  enum class Step { read, drafted, looked, placed, synced, listed, cleared, swept, compared, moved };
  std::function<void(Step)> reached = {};
  std::function<int(int at, const char* from, const char* to)> link = {};  // as link(2)
};

class RevisionFiles {
 public:
  struct Files {                         // the files of one record
    bool plain = false, marked = false;  // the file of an older version; incarnation@0
    std::set<std::uint64_t> revisions;
    std::vector<std::pair<std::uint64_t, std::string>> drafts;  // revision, file name
    bool is_record() const { return plain || !revisions.empty(); }
    // The largest revision in a file name.
    std::uint64_t newest() const { return revisions.empty() ? 0 : *revisions.rbegin(); }
    void take(const std::string& name, const std::string& file);
  };
  // The records in a directory by name, and the names of the directories in it.
  struct Content {
    std::map<std::string, Files> records;
    std::vector<std::string> directories;
  };

  // Nothing if the directory does not exist.
  static std::optional<RevisionFiles> open(const std::string& path, const RevisionHooks* hooks);

  Content content() const;
  Files look(const std::string& name) const;
  // `files`: in, as they were listed; out, as they were when the record was read.
  std::optional<Entry> read(const std::string& name, const std::string& key, Files& files) const;
  // `writer` is different for every writer and every call.
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
