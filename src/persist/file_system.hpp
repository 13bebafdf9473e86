// The few operations of a file system that the tier needs, with a deadline on each: a directory tree on a mounted path,
// or on an NFS server that nothing mounts (open_file_system()).
//
// Paths are relative to the root that the file system was opened on; parts are joined by '/'. Everything fails with
// StorageError, whose sentence names the operation and the path, and no call waits longer than the option timeout_ms:
// what the storage still does afterwards it does to memory and descriptors that are kept for it, so that the caller can
// go on, or leave. Once the option `stop` is requested, calls fail within 100 ms.
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

// As an errno of StorageError: the file system's own root is not there.
inline constexpr int location_is_missing = ENODEV;

class StorageError : public Failure {
 public:
  // `doing` says what was tried, e.g. "cannot sync /mnt/job/step-00000001"; the text of `error` is appended.
  StorageError(int error, const std::string& doing);
  int error() const { return error_; }  // as errno; ETIMEDOUT: the deadline passed, ECANCELED: stopped
  // It does not answer, its location is not there, or the call was called off: nothing is known of any path.
  bool is_about_storage() const;
  // The path is missing, or not what it should be. Of neither kind: what is there is kept from us, and may be whole.
  bool is_about_replication() const;

 private:
  int error_;
};

struct FileSystemOptions {
  std::int64_t timeout_ms = 30'000;                // for one operation; for transfers: until one of those started ends
  unsigned queue_depth = 16;                       // transfers in flight
  std::size_t block_bytes = std::size_t{1} << 20;  // of a transfer, a multiple of 64 KiB
  bool direct = true;                              // past the page cache, where the file system takes that
  std::stop_token stop = {};
};

// How long a call waits between two looks at the option `stop`.
inline constexpr std::chrono::milliseconds stop_slice{50};

// Offset, size and memory of a transfer that are multiples of this go past the page cache.
inline constexpr std::size_t direct_alignment_bytes = 4096;

struct Completion {
  std::uint64_t tag = 0;
  int error = 0;               // as errno; 0: done
  std::size_t size_bytes = 0;  // fewer than asked for: the file's end, or start the rest again
};

// Memory that transfers past the page cache can use.
std::shared_ptr<std::byte> make_aligned_buffer(std::size_t size_bytes);

// An open file. Transfers are started and complete in any order; at most queue_depth are in flight.
class File {
 public:
  virtual ~File() = default;

  virtual std::uint64_t size_bytes() = 0;
  // `owner` is kept until the storage is done with the memory, even if nobody waits for it any more.
  virtual void start_write(std::uint64_t tag, std::uint64_t offset, const std::byte* data, std::size_t size_bytes,
                           std::shared_ptr<const void> owner) = 0;
  virtual void start_read(std::uint64_t tag, std::uint64_t offset, std::byte* data, std::size_t size_bytes,
                          std::shared_ptr<void> owner) = 0;
  // The next transfer that ends.
  virtual Completion wait() = 0;
  // What was written is on the medium afterwards.
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

  // Aligned memory that transfers may be cheaper with than with other memory.
  virtual std::shared_ptr<std::byte> make_buffer(std::size_t size_bytes) { return make_aligned_buffer(size_bytes); }

  // A new, empty file; EEXIST where there is one. `expected_bytes` are reserved where the file system can.
  virtual std::unique_ptr<File> create(const std::string& path, std::uint64_t expected_bytes) = 0;
  virtual std::unique_ptr<File> open(const std::string& path) = 0;
  // To write to, beside others who write elsewhere in it: made where there is none, and never cut short.
  virtual std::unique_ptr<File> open_shared(const std::string& path, std::uint64_t expected_bytes) = 0;
  // Puts a file in place of another, at once for everybody; durable after sync_directory().
  virtual void rename(const std::string& from, const std::string& to) = 0;
  // A second name for a file; EEXIST where somebody has it. Durable likewise.
  virtual void link(const std::string& from, const std::string& to) = 0;
  virtual void remove(const std::string& path) = 0;
  virtual void remove_directory(const std::string& path) = 0;
  // In one that exists. Fine where there is one already.
  virtual void make_directory(const std::string& path) = 0;
  virtual void sync_directory(const std::string& path) = 0;
  virtual std::vector<DirectoryEntry> list(const std::string& path) = 0;
  // Size of a file; nothing where there is none.
  virtual std::optional<std::uint64_t> file_size(const std::string& path) = 0;
  // When a file was last written, in seconds since 1970; nothing where there is none, or nobody can tell.
  virtual std::optional<std::int64_t> modified_s(const std::string&) { return std::nullopt; }
  virtual std::uint64_t free_bytes() = 0;
};

// `location`: an absolute path, or nfs://server/export/path[?option=value...]. Throws Failure (CKPT_ERR_INVALID) for
// anything else. Touches nothing yet.
std::unique_ptr<FileSystem> open_file_system(const std::string& location, const FileSystemOptions& options);

// Throws StorageError where the location itself is not there. Nobody makes it: in the place of a mount that is missing,
// everything would go to another disk.
void require_location(FileSystem& files);

using FileSystemFactory = std::function<std::unique_ptr<FileSystem>(const FileSystemOptions&)>;

}  // namespace ckpt::persist
