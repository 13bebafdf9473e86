// NfsFileSystem is the FileSystem for an NFS server that is not mounted. It uses libnfs, so the kernel needs no NFS
// client.
//
// It speaks NFS version 3, because file handles of version 3 survive a restart of the server. The directory in the URL
// must exist. The server makes a change in a directory durable before it replies, so sync_directory() does nothing.
#pragma once

#include "persist/file_system.hpp"
#include "persist/nfs_connection.hpp"

struct nfs_stat_64;

namespace ckpt::persist {

class NfsFileSystem : public FileSystem {
 public:
  NfsFileSystem(const std::string& url, const FileSystemOptions& options);

  const FileSystemOptions& options() const override { return options_; }
  std::string label(const std::string& path) const override;
  std::unique_ptr<File> create(const std::string& path, std::uint64_t expected_bytes) override;
  std::unique_ptr<File> open(const std::string& path) override;
  std::unique_ptr<File> open_shared(const std::string& path, std::uint64_t expected_bytes) override;
  void rename(const std::string& from, const std::string& to) override;
  void link(const std::string& from, const std::string& to) override;
  void remove(const std::string& path) override;
  void remove_directory(const std::string& path) override;
  void make_directory(const std::string& path) override;
  void sync_directory(const std::string&) override {}
  std::vector<DirectoryEntry> list(const std::string& path) override;
  std::optional<std::uint64_t> file_size(const std::string& path) override;
  std::optional<std::int64_t> modified_s(const std::string& path) override;
  std::uint64_t free_bytes() override;

 private:
  std::unique_ptr<File> take_file(const std::string& path, const NfsConnection::Begin& begin, const std::string& doing);
  // Passes the attributes of a file or directory to `take`. Returns false if the path does not exist.
  bool look_at(const std::string& path, const std::function<void(const nfs_stat_64&)>& take);
  // Makes one call and waits for it. Throws StorageError if the call fails.
  void run(const NfsConnection::Begin& begin, const std::function<void(void*)>& take, const std::string& doing);

  const FileSystemOptions options_;
  const std::string root_;  // the URL without its options
  NfsConnection connection_;
};

}  // namespace ckpt::persist
