// FileSystem offers the few file operations that the storage tier needs, each with a deadline. The files are on a
// mounted path, or on an NFS server that is not mounted (open_file_system()).
//
// Paths are relative to the root that the file system was opened on; '/' joins their parts. Every failure is a
// StorageError, whose sentence names the operation and the path. No call waits longer than the option timeout_ms.
// Storage may still carry out a call that has timed out. So the file system keeps that call's memory and descriptors,
// and the caller may go on or exit. Once a stop is requested through the option `stop`, calls fail within 100 ms.
//
// A FileSystem and its files belong to one thread, so each thread opens its own. Files must not outlive their file
// system.
#pragma once

#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "base/error.hpp"

namespace ckpt::persist {

// The errno that StorageError::error() returns if the root of the file system is missing.
inline constexpr int location_is_missing = ENODEV;

class StorageError : public Failure {
 public:
  // `error` is an errno. `doing` says what failed, e.g. "cannot sync /mnt/job/step-00000001". The message is `doing`
  // and the text of `error`.
  StorageError(int error, const std::string& doing);
  int error() const { return error_; }  // an errno; ETIMEDOUT: the deadline passed; ECANCELED: `stop` was requested
  // True if storage does not answer, if its root is missing, or if the call was cancelled. The failure then says
  // nothing about the path.
  bool is_about_storage() const;
  // True if the path is missing, or is a directory in place of a file or the other way round. If this and
  // is_about_storage() are both false, storage does not let us read the file, and the file may be complete.
  bool is_about_path() const;

 private:
  int error_;
};

struct FileSystemOptions {
  std::int64_t timeout_ms = 30'000;                // longest wait for an operation, or for the next transfer that ends
  unsigned queue_depth = 16;                       // most transfers in flight
  std::size_t block_bytes = std::size_t{1} << 20;  // size of a transfer, a multiple of 64 KiB
  bool direct = true;                              // bypass the page cache if the file system can
  std::stop_token stop = {};
};

// How long a call waits between two checks of the option `stop`.
inline constexpr std::chrono::milliseconds stop_slice{50};

// Transfers bypass the page cache if their offset, size and memory are multiples of this.
inline constexpr std::size_t direct_alignment_bytes = 4096;

// How a transfer ended. A transfer that moved fewer bytes than requested is no error: either the file ends there, or
// the caller must start another transfer for the rest.
struct Completion {
  std::uint64_t tag = 0;       // the tag that start_write() or start_read() was given
  int error = 0;               // an errno; 0: none
  std::size_t size_bytes = 0;  // bytes transferred
};

// Memory for transfers that bypass the page cache: its address is a multiple of direct_alignment_bytes.
std::shared_ptr<std::byte> make_aligned_buffer(std::size_t size_bytes);

// An open file. Transfers may end in another order than they were started in. The caller must not have more than
// queue_depth under way.
class File {
 public:
  virtual ~File() = default;

  virtual std::uint64_t size_bytes() = 0;
  // Start a transfer and return at once. `tag` is any number: the caller recognizes the transfer's Completion by it.
  // The file system holds `owner` until storage no longer uses the memory at `data`, even if nobody waits for the
  // transfer any more.
  virtual void start_write(std::uint64_t tag, std::uint64_t offset, const std::byte* data, std::size_t size_bytes,
                           std::shared_ptr<const void> owner) = 0;
  virtual void start_read(std::uint64_t tag, std::uint64_t offset, std::byte* data, std::size_t size_bytes,
                          std::shared_ptr<void> owner) = 0;
  // Waits until a transfer has ended, and returns its Completion. Throws StorageError if none ends within timeout_ms.
  virtual Completion wait() = 0;
  // Returns when everything written to the file is on the medium.
  virtual void sync() = 0;
};

struct DirectoryEntry {
  std::string name;
  bool is_directory = false;
};

class FileSystem {
 public:
  virtual ~FileSystem() = default;

  virtual const FileSystemOptions& options() const = 0;
  // Returns the root followed by `path`, for messages.
  virtual std::string label(const std::string& path) const = 0;

  // Returns memory aligned to direct_alignment_bytes. Transfers to and from it may be cheaper than with other memory.
  virtual std::shared_ptr<std::byte> make_buffer(std::size_t size_bytes) { return make_aligned_buffer(size_bytes); }

  // Makes a new, empty file. Throws StorageError (EEXIST) if the path exists. Reserves `expected_bytes` for the file if
  // the file system can.
  virtual std::unique_ptr<File> create(const std::string& path, std::uint64_t expected_bytes) = 0;
  virtual std::unique_ptr<File> open(const std::string& path) = 0;
  // Opens a file that other nodes write to as well, in other ranges. Makes the file if there is none. Never truncates
  // it.
  virtual std::unique_ptr<File> open_shared(const std::string& path, std::uint64_t expected_bytes) = 0;
  // Renames `from` to `to`. Replaces a file `to` atomically: a reader opens either the old file or the new one. Durable
  // after sync_directory().
  virtual void rename(const std::string& from, const std::string& to) = 0;
  // Gives the file `from` a second name. Throws StorageError (EEXIST) if the name exists. Durable after
  // sync_directory().
  virtual void link(const std::string& from, const std::string& to) = 0;
  virtual void remove(const std::string& path) = 0;
  virtual void remove_directory(const std::string& path) = 0;
  // Makes a directory, unless it exists. Its parent must exist. Durable after sync_directory() of the parent.
  virtual void make_directory(const std::string& path) = 0;
  // Makes all changes of names in the directory durable.
  virtual void sync_directory(const std::string& path) = 0;
  // The entries of a directory, in any order, without "." and "..".
  virtual std::vector<DirectoryEntry> list(const std::string& path) = 0;
  // The size of a file or directory; nothing if the path does not exist.
  virtual std::optional<std::uint64_t> file_size(const std::string& path) = 0;
  // When a file was last written, in seconds since 1970. Nothing if there is no such file or the time is unknown.
  virtual std::optional<std::int64_t> modified_s(const std::string&) { return std::nullopt; }
  virtual std::uint64_t free_bytes() = 0;
};

// `location` is an absolute path, or nfs://server/export/path[?option=value...]. Throws Failure (CKPT_ERR_INVALID) for
// anything else. Does not access the storage yet.
std::unique_ptr<FileSystem> open_file_system(const std::string& location, const FileSystemOptions& options);

// Checks that the root of the file system exists. Throws StorageError if it is missing. Nothing in the project creates
// the root: if the storage is not mounted, checkpoints would go to another disk.
void require_location(FileSystem& files);

using FileSystemFactory = std::function<std::unique_ptr<FileSystem>(const FileSystemOptions&)>;

}  // namespace ckpt::persist
