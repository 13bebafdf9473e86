// RevisionFiles changes the records of DirectoryStore by compare-and-swap. Each revision of a record is a file in one
// directory, and link(2) decides which writer wins. It uses no locks, because on some network file systems a lock holds
// only on one machine (NFS with nolock or local_lock, Lustre with localflock, BeeGFS).
//
// Files of the record "incarnation":
//   incarnation@17            revision 17. It is complete from the moment it has this name, and never changes
//   incarnation@0             an empty file that stays. It says that revisions were removed: a reader that finds no
//                             revision must list again
//   .incarnation@18.<id>.new  a draft of revision 18; <id> is unique
//   incarnation               the record as earlier versions of this store wrote it; its first line has the revision
// The revision with the largest number is the record's present value.
//
// How revision n+1 is written (put):
//   1. Read the record. It must have revision n.
//   2. Write the draft of n+1 and sync it.
//   3. List the directory again. Revision n must still be the newest.
//   4. link(draft, "incarnation@<n+1>"). Only one writer can make that name. Whoever makes it has won.
//   5. Sync the directory. The directory must still have the name by which it was opened. Otherwise put() throws
//      Failure: somebody is removing the job's records, and may or may not have removed the new one, too.
//   6. Sweep. The sweep of revision M, which is n+1 here, is: list the directory; make incarnation@0; unlink all drafts
//      of revisions up to M; then unlink the revisions below M, the lowest first.
//
// Why a removed revision is never made again, however long a writer pauses between 3 and 4. Suppose writer W links r
// after r was removed. Consider all sweeps that removed r or anything newer before W's link. A sweep that listed the
// directory after W's draft existed saw the draft. It unlinked the draft before it removed anything, so W's link would
// have failed with ENOENT. Therefore each of those sweeps began to list before W's draft existed. Take the sweep with
// the largest M. Revision M existed before its sweep began, and so before step 3 of W. No sweep had removed M by then,
// because only a sweep of a larger revision does. So W saw M in step 3. M is larger than r, so W gave up in step 3: a
// contradiction. The proof relies only on what POSIX promises of readdir(): a listing contains an entry that exists
// before it begins and still exists when it ends.
//
// Why a reader gets the newest revision. It lists the directory, opens the newest revision n, finds that n+1 does not
// exist, and then finds that n still exists. Had n+1 been made before and removed since, the sweep that removed it
// would have removed n first. A listing may find no revision at all while writers replace one by another. It then finds
// incarnation@0, and the reader lists again.
//
// Crashes. If a writer dies, the sweep of the same or a later revision unlinks its draft. If a writer dies in a sweep,
// the next sweep removes the revisions that are left. At each moment the newest revision is complete. NFS may report
// that link() failed although it made the name. So the writer compares inodes: if the new name has the draft's inode,
// the writer has won. All steps use one open directory. So a writer that slept while the job's records were removed and
// made again cannot change the new ones.
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

// Hooks with which tests replace link(2), and stop a writer after a step. Steps of put(): read, drafted, looked,
// placed, synced. Steps of the sweep: listed, cleared (drafts are unlinked), swept (a revision is unlinked). Steps of
// DirectoryStore::remove_all(): compared, moved.
struct RevisionHooks {
  enum class Step { read, drafted, looked, placed, synced, listed, cleared, swept, compared, moved };
  std::function<void(Step)> reached = {};
  std::function<int(int at, const char* from, const char* to)> link = {};  // as link(2)
};

class RevisionFiles {
 public:
  struct Files {                         // the files of one record
    bool plain = false, marked = false;  // the file that earlier versions wrote exists; NAME@0 exists
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

  // Opens the directory `path`. Returns nothing if it does not exist. `hooks` may be null; if not, they must outlive
  // the result.
  static std::optional<RevisionFiles> open(const std::string& path, const RevisionHooks* hooks);

  Content content() const;
  Files look(const std::string& name) const;
  // Reads the newest revision of the record `name`; nothing if there is none. `key` is for the returned Entry. The
  // caller passes the result of look() in `files`. On return, `files` has the record's files at the moment of reading.
  std::optional<Entry> read(const std::string& name, const std::string& key, Files& files) const;
  // Writes revision `expected` + 1 if `expected` is the record's revision (0: there is no record). Returns the new
  // revision, or nothing if the record has another revision. `writer` must be different for every writer and every
  // call.
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
