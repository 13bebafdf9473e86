// LocalFileSystem is the FileSystem for a mounted path. It uses io_uring if the kernel allows it, and threads
// otherwise.
#pragma once

#include <deque>

#include "persist/file_system.hpp"
#include "persist/operation_queue.hpp"

namespace ckpt::persist {

class LocalFileSystem : public FileSystem {
 public:
  // automatic: io_uring or threads. threads: always threads.
  enum class Engine { automatic, threads };

  // `root` is an absolute path.
  LocalFileSystem(std::string root, const FileSystemOptions& options, Engine engine = Engine::automatic);
  ~LocalFileSystem() override;

  const FileSystemOptions& options() const override { return options_; }
  std::string label(const std::string& path) const override { return path.empty() ? root_ : root_ + "/" + path; }
  std::shared_ptr<std::byte> make_buffer(std::size_t size_bytes) override {
    return transfers_->make_buffer(size_bytes);
  }
  std::unique_ptr<File> create(const std::string& path, std::uint64_t expected_bytes) override;
  std::unique_ptr<File> open(const std::string& path) override;
  std::unique_ptr<File> open_shared(const std::string& path, std::uint64_t expected_bytes) override;
  void rename(const std::string& from, const std::string& to) override;
  void link(const std::string& from, const std::string& to) override;
  void remove(const std::string& path) override;
  void remove_directory(const std::string& path) override;
  void make_directory(const std::string& path) override;
  void sync_directory(const std::string& path) override;
  std::vector<DirectoryEntry> list(const std::string& path) override;
  std::optional<std::uint64_t> file_size(const std::string& path) override;
  std::optional<std::int64_t> modified_s(const std::string& path) override;
  std::uint64_t free_bytes() override;

 private:
  friend class LocalFile;

  std::string absolute(const std::string& path) const { return label(path); }
  std::unique_ptr<File> open_to_write(const std::string& path, int flags, std::uint64_t expected_bytes);
  std::shared_ptr<UniqueFd> open_fd(const std::string& path, int flags);
  std::shared_ptr<UniqueFd> open_direct(const std::string& path, int flags);

  // Looks up the size of a file, and when it was last written. Returns null if there is no such file.
  OperationPtr look_at(const std::string& path);
  // Runs an operation and waits for its end. Does not check whether it succeeded. Throws if it takes longer than the
  // option timeout_ms. `doing` is the beginning of the message.
  OperationPtr attempt(Operation operation, const std::string& doing);
  // Like attempt(), but throws if the operation failed.
  OperationPtr run(Operation operation, const std::string& doing);
  OperationPtr run(Operation::Kind kind, const std::string& path, const std::string& doing);
  void submit(OperationPtr operation, const std::string& doing);
  // Passes an operation that has ended to the File that started it.
  static void hand_over(OperationPtr operation);
  // Calls hand_over() for each operation of `queue` that ends, until `arrived` returns true. Throws StorageError if
  // that takes longer than the option timeout_ms.
  void await(OperationQueue& queue, const std::function<bool()>& arrived, const std::string& doing);
  OperationQueue& queue_of(Operation::Kind kind);

  const std::string root_;
  const FileSystemOptions options_;
  std::unique_ptr<OperationQueue> transfers_;
  std::unique_ptr<OperationQueue> helpers_;  // a thread for the operations that io_uring cannot do
};

}  // namespace ckpt::persist
