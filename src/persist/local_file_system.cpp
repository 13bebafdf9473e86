#include "persist/local_file_system.hpp"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>

namespace ckpt::persist {
namespace {

using Kind = Operation::Kind;

constexpr unsigned threads_max = 16;

bool is_aligned(std::uint64_t value) { return value % direct_alignment_bytes == 0; }

}  // namespace

// An open file with up to two descriptors. The direct one bypasses the page cache and takes aligned transfers, if the
// file system supports this. The plain one always exists and takes all other transfers, such as the end of a file.
class LocalFile : public File {
 public:
  LocalFile(LocalFileSystem& files, std::string path, std::shared_ptr<UniqueFd> plain, std::shared_ptr<UniqueFd> direct)
      : files_(files), path_(std::move(path)), plain_(std::move(plain)), direct_(std::move(direct)) {}

  // Closing a file may wait for the storage, because a network file system writes data back then. So another thread
  // closes it.
  ~LocalFile() override {
    for (auto* fd : {&direct_, &plain_}) {
      if (!*fd) continue;
      auto closing = std::make_shared<Operation>();
      closing->kind = Kind::close;
      closing->file = std::move(*fd);
      files_.helpers_->submit(std::move(closing));
    }
  }
  LocalFile(const LocalFile&) = delete;
  LocalFile& operator=(const LocalFile&) = delete;

  std::uint64_t size_bytes() override {
    const auto size = files_.file_size(path_);
    if (!size) throw StorageError(ENOENT, "cannot find " + files_.label(path_));
    return *size;
  }

  void start_write(std::uint64_t tag, std::uint64_t offset, const std::byte* data, std::size_t size_bytes,
                   std::shared_ptr<const void> owner) override {
    start(Kind::write, tag, offset, const_cast<std::byte*>(data), size_bytes, std::move(owner));
  }
  void start_read(std::uint64_t tag, std::uint64_t offset, std::byte* data, std::size_t size_bytes,
                  std::shared_ptr<void> owner) override {
    start(Kind::read, tag, offset, data, size_bytes, std::move(owner));
  }

  Completion wait() override {
    for (;;) {
      files_.await(
          *files_.transfers_, [this] { return !ended_->empty(); }, doing());
      const OperationPtr operation = std::move(ended_->front());
      ended_->pop_front();
      if (operation->result == -EINVAL && operation->file != plain_) {
        // Some file systems open a file with O_DIRECT and then refuse a transfer. Go on with the plain descriptor.
        direct_.reset();
        start(operation->kind, operation->tag, operation->offset, operation->data, operation->size_bytes,
              operation->owner);
        continue;
      }
      if (operation->result < 0) return {operation->tag, static_cast<int>(-operation->result), 0};
      return {operation->tag, 0, static_cast<std::size_t>(operation->result)};
    }
  }

  void sync() override {
    Operation operation;
    operation.kind = Kind::sync;
    operation.file = plain_;
    files_.run(std::move(operation), "cannot sync " + files_.label(path_));
  }

 private:
  friend class LocalFileSystem;
  using Ended = std::deque<OperationPtr>;

  std::string doing() const { return "cannot read or write " + files_.label(path_); }

  void start(Kind kind, std::uint64_t tag, std::uint64_t offset, std::byte* data, std::size_t size_bytes,
             std::shared_ptr<const void> owner) {
    auto operation = std::make_shared<Operation>();
    operation->kind = kind;
    operation->tag = tag;
    operation->offset = offset;
    operation->data = data;
    operation->size_bytes = size_bytes;
    operation->owner = std::move(owner);
    operation->waiter = ended_;
    const bool aligned =
        is_aligned(offset) && is_aligned(size_bytes) && is_aligned(reinterpret_cast<std::uintptr_t>(data));
    operation->file = aligned && direct_ ? direct_ : plain_;
    files_.submit(std::move(operation), doing());
  }

  LocalFileSystem& files_;
  const std::string path_;
  std::shared_ptr<UniqueFd> plain_;
  std::shared_ptr<UniqueFd> direct_;  // null: the file system does not support O_DIRECT
  std::shared_ptr<Ended> ended_ = std::make_shared<Ended>();
};

LocalFileSystem::LocalFileSystem(std::string root, const FileSystemOptions& options, Engine engine)
    : root_(std::move(root)), options_(options), helpers_(make_thread_queue(1)) {
  // Twice the depth, so that operations of one file that never end do not block another file.
  if (engine == Engine::automatic) transfers_ = make_uring_queue(2 * options.queue_depth);
  if (!transfers_) transfers_ = make_thread_queue(std::clamp(options.queue_depth, 1u, threads_max));
}

LocalFileSystem::~LocalFileSystem() = default;

OperationQueue& LocalFileSystem::queue_of(Kind kind) {
  return kind == Kind::list || kind == Kind::free_space || kind == Kind::link ? *helpers_ : *transfers_;
}

void LocalFileSystem::submit(OperationPtr operation, const std::string& doing) {
  if (options_.stop.stop_requested()) throw StorageError(ECANCELED, doing);
  while (helpers_->wait(Clock::time_point::min())) {
  }  // drop the results of operations that closed files
  OperationQueue& queue = queue_of(operation->kind);
  const auto has_room = [&] { return queue.unfinished() <= 2 * std::size_t{options_.queue_depth} + 8; };
  await(queue, has_room, doing + " while earlier operations do not end");
  queue.submit(std::move(operation));
}

void LocalFileSystem::await(OperationQueue& queue, const std::function<bool()>& arrived, const std::string& doing) {
  const Deadline deadline = Deadline::in_ms(options_.timeout_ms);
  while (!arrived()) {
    if (options_.stop.stop_requested()) throw StorageError(ECANCELED, doing);
    if (deadline.passed()) throw StorageError(ETIMEDOUT, doing);
    OperationPtr operation = queue.wait(std::min(deadline.at(), Clock::now() + stop_slice));
    if (operation) hand_over(std::move(operation));
  }
}

// `waiter` is the list of results that the operation's file shares. If the file is closed, this function holds the last
// reference and releases the operation.
void LocalFileSystem::hand_over(OperationPtr operation) {
  if (!operation->waiter) return;
  const auto ended = std::static_pointer_cast<LocalFile::Ended>(std::move(operation->waiter));
  ended->push_back(std::move(operation));
}

OperationPtr LocalFileSystem::attempt(Operation operation, const std::string& doing) {
  auto shared = std::make_shared<Operation>(std::move(operation));
  submit(shared, doing);
  await(
      queue_of(shared->kind), [&] { return shared->ended; }, doing);
  return shared;
}

OperationPtr LocalFileSystem::run(Operation operation, const std::string& doing) {
  OperationPtr ended = attempt(std::move(operation), doing);
  if (ended->result < 0) throw StorageError(static_cast<int>(-ended->result), doing);
  return ended;
}

OperationPtr LocalFileSystem::run(Kind kind, const std::string& path, const std::string& doing) {
  Operation operation;
  operation.kind = kind;
  operation.path = absolute(path);
  return run(std::move(operation), doing + " " + label(path));
}

std::shared_ptr<UniqueFd> LocalFileSystem::open_fd(const std::string& path, int flags) {
  Operation operation;
  operation.kind = Kind::open;
  operation.path = absolute(path);
  operation.flags = flags | O_CLOEXEC;
  return run(std::move(operation), "cannot open " + label(path))->file;
}

// Opens a descriptor with O_DIRECT. Returns null if the file system does not support it.
std::shared_ptr<UniqueFd> LocalFileSystem::open_direct(const std::string& path, int flags) {
  if (!options_.direct) return nullptr;
  Operation operation;
  operation.kind = Kind::open;
  operation.path = absolute(path);
  operation.flags = flags | O_CLOEXEC | O_DIRECT;
  return attempt(std::move(operation), "cannot open " + label(path))->file;
}

std::unique_ptr<File> LocalFileSystem::create(const std::string& path, std::uint64_t expected_bytes) {
  return open_to_write(path, O_CREAT | O_EXCL, expected_bytes);
}

std::unique_ptr<File> LocalFileSystem::open_shared(const std::string& path, std::uint64_t expected_bytes) {
  return open_to_write(path, O_CREAT, expected_bytes);
}

std::unique_ptr<File> LocalFileSystem::open_to_write(const std::string& path, int flags, std::uint64_t expected_bytes) {
  auto plain = open_fd(path, O_RDWR | flags);
  if (expected_bytes != 0) {
    Operation operation;
    operation.kind = Kind::allocate;
    operation.file = plain;
    operation.offset = expected_bytes;
    const std::string doing = "cannot reserve " + std::to_string(expected_bytes) + " bytes for " + label(path);
    const OperationPtr reserved = attempt(std::move(operation), doing);
    if (reserved->result < 0 && reserved->result != -EOPNOTSUPP && reserved->result != -ENOSYS)
      throw StorageError(static_cast<int>(-reserved->result), doing);
  }
  auto direct = open_direct(path, O_RDWR);
  return std::make_unique<LocalFile>(*this, path, std::move(plain), std::move(direct));
}

std::unique_ptr<File> LocalFileSystem::open(const std::string& path) {
  auto plain = open_fd(path, O_RDONLY);
  auto direct = open_direct(path, O_RDONLY);
  return std::make_unique<LocalFile>(*this, path, std::move(plain), std::move(direct));
}

void LocalFileSystem::rename(const std::string& from, const std::string& to) {
  Operation operation;
  operation.kind = Kind::rename;
  operation.path = absolute(from);
  operation.new_path = absolute(to);
  run(std::move(operation), "cannot rename " + label(from) + " to " + label(to));
}

void LocalFileSystem::link(const std::string& from, const std::string& to) {
  Operation operation;
  operation.kind = Kind::link;
  operation.path = absolute(from);
  operation.new_path = absolute(to);
  run(std::move(operation), "cannot link " + label(from) + " to " + label(to));
}

void LocalFileSystem::remove(const std::string& path) { run(Kind::remove, path, "cannot remove"); }

void LocalFileSystem::remove_directory(const std::string& path) {
  run(Kind::remove_directory, path, "cannot remove the directory");
}

void LocalFileSystem::make_directory(const std::string& path) {
  Operation operation;
  operation.kind = Kind::make_directory;
  operation.path = absolute(path);
  const std::string doing = "cannot make the directory " + label(path);
  const OperationPtr made = attempt(std::move(operation), doing);
  if (made->result < 0 && made->result != -EEXIST) throw StorageError(static_cast<int>(-made->result), doing);
}

void LocalFileSystem::sync_directory(const std::string& path) {
  const auto directory = open_fd(path, O_RDONLY | O_DIRECTORY);
  Operation operation;
  operation.kind = Kind::sync;
  operation.file = directory;
  const std::string doing = "cannot sync the directory " + label(path);
  const OperationPtr synced = attempt(std::move(operation), doing);
  // Some network file systems answer EINVAL. They need no sync, because their server makes a change in a directory
  // durable before the call returns.
  if (synced->result < 0 && synced->result != -EINVAL) throw StorageError(static_cast<int>(-synced->result), doing);
}

std::vector<DirectoryEntry> LocalFileSystem::list(const std::string& path) {
  return std::move(run(Kind::list, path, "cannot list")->entries);
}

OperationPtr LocalFileSystem::look_at(const std::string& path) {
  Operation operation;
  operation.kind = Kind::stat;
  operation.path = absolute(path);
  const std::string doing = "cannot stat " + label(path);
  OperationPtr found = attempt(std::move(operation), doing);
  if (found->result == -ENOENT) return nullptr;
  if (found->result < 0) throw StorageError(static_cast<int>(-found->result), doing);
  return found;
}

std::optional<std::uint64_t> LocalFileSystem::file_size(const std::string& path) {
  const OperationPtr found = look_at(path);
  return found ? std::optional(found->found_bytes) : std::nullopt;
}

std::optional<std::int64_t> LocalFileSystem::modified_s(const std::string& path) {
  const OperationPtr found = look_at(path);
  return found ? std::optional(found->found_modified_s) : std::nullopt;
}

std::uint64_t LocalFileSystem::free_bytes() {
  return static_cast<std::uint64_t>(run(Kind::free_space, "", "cannot find out the free space of")->result);
}

}  // namespace ckpt::persist
