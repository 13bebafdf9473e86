// FileSystem offers the few file operations that the storage tier needs, each with a deadline. The files are on a
// mounted path, or on an NFS server that is not mounted (open_file_system()).
//
// Paths are relative to the root that the file system was opened on; '/' joins their parts. Every failure is a
// StorageError, whose sentence names the operation and the path. No call waits longer than the option timeout_ms.
// Storage may still carry out a call that has timed out. So the call's memory and descriptors are kept. The caller can
// go on or exit. Once the option `stop` is requested, calls fail within 100 ms.
//
// A FileSystem and its files belong to one thread; open one per thread. Files must not outlive it.
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

// The errno of a StorageError that says that the file system's own root is missing.
inline constexpr int location_is_missing = ENODEV;

class StorageError : public Failure {
 public:
  // `doing` says what was tried, e.g. "cannot sync /mnt/job/step-00000001". The text of `error` is appended.
  StorageError(int error, const std::string& doing);
  int error() const { return error_; }  // an errno; ETIMEDOUT: the deadline passed, ECANCELED: stopped
  // True if storage does not answer, its location is missing, or the call was cancelled: nothing is known of any path.
  bool is_about_storage() const;
  // True if the path is missing or of the wrong kind. If this and is_about_storage() are false, storage does not let us
  // read the file, which may be complete.
  bool is_about_path() const;

 private:
  int error_;
};

struct FileSystemOptions {
  std::int64_t timeout_ms = 30'000;                // for one operation; for transfers: until one of those started ends
  unsigned queue_depth = 16;                       // transfers in flight
  std::size_t block_bytes = std::size_t{1} << 20;  // size of a transfer, a multiple of 64 KiB
  bool direct = true;                              // bypass the page cache if the file system can
  std::stop_token stop = {};
};

// How long a call waits between two checks of the option `stop`.
inline constexpr std::chrono::milliseconds stop_slice{50};

// Transfers bypass the page cache if their offset, size and memory are multiples of this.
inline constexpr std::size_t direct_alignment_bytes = 4096;

struct Completion {
  std::uint64_t tag = 0;
  int error = 0;               // an errno; 0: done
  std::size_t size_bytes = 0;  // fewer than requested: either the file has ended, or start the rest again
};

// Memory for transfers that bypass the page cache.
std::shared_ptr<std::byte> make_aligned_buffer(std::size_t size_bytes);

// An open file. Reads and writes are started and completed in any order. At most queue_depth are under way.
class File {
 public:
  virtual ~File() = default;

  virtual std::uint64_t size_bytes() = 0;
  // `owner` is held until storage is done with the memory, even if nobody waits for the transfer any more.
  virtual void start_write(std::uint64_t tag, std::uint64_t offset, const std::byte* data, std::size_t size_bytes,
                           std::shared_ptr<const void> owner) = 0;
  virtual void start_read(std::uint64_t tag, std::uint64_t offset, std::byte* data, std::size_t size_bytes,
                          std::shared_ptr<void> owner) = 0;
  // Waits for the next transfer to end.
  virtual Completion wait() = 0;
  // When it returns, everything written is on the medium.
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
  // For messages: the root and the path.
  virtual std::string label(const std::string& path) const = 0;

  // Aligned memory with which transfers may be cheaper than with other memory.
  virtual std::shared_ptr<std::byte> make_buffer(std::size_t size_bytes) { return make_aligned_buffer(size_bytes); }

  // Makes a new, empty file; EEXIST if there is one. Reserves `expected_bytes` if the file system can.
  virtual std::unique_ptr<File> create(const std::string& path, std::uint64_t expected_bytes) = 0;
  virtual std::unique_ptr<File> open(const std::string& path) = 0;
  // Opens a file that others write to as well, in other ranges. Makes it if there is none, and never truncates it.
  virtual std::unique_ptr<File> open_shared(const std::string& path, std::uint64_t expected_bytes) = 0;
  // Replaces a file by another, at once for all readers. Durable after sync_directory().
  virtual void rename(const std::string& from, const std::string& to) = 0;
  // Gives a file a second name; EEXIST if the name exists. Durable after sync_directory().
  virtual void link(const std::string& from, const std::string& to) = 0;
  virtual void remove(const std::string& path) = 0;
  virtual void remove_directory(const std::string& path) = 0;
  // The parent must exist. Does nothing if the directory exists.
  virtual void make_directory(const std::string& path) = 0;
  virtual void sync_directory(const std::string& path) = 0;
  virtual std::vector<DirectoryEntry> list(const std::string& path) = 0;
  // Size of a file; nothing if there is none.
  virtual std::optional<std::uint64_t> file_size(const std::string& path) = 0;
  // When a file was last written, in seconds since 1970. Nothing if there is no such file or the time is unknown.
  virtual std::optional<std::int64_t> modified_s(const std::string&) { return std::nullopt; }
  virtual std::uint64_t free_bytes() = 0;
};

// `location`: an absolute path, or nfs://server/export/path[?option=value...]. Throws Failure (CKPT_ERR_INVALID) for
// anything else. Touches nothing yet.
std::unique_ptr<FileSystem> open_file_system(const std::string& location, const FileSystemOptions& options);

// Throws StorageError if the location itself is missing. It is never created: if a mount were missing, everything would
// go to another disk.
void require_location(FileSystem& files);

using FileSystemFactory = std::function<std::unique_ptr<FileSystem>(const FileSystemOptions&)>;

}  // namespace ckpt::persist
