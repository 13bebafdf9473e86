#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include <cerrno>
#include <condition_variable>
#include <cstdio>
#include <deque>
#include <mutex>
#include <thread>

#include "base/thread.hpp"
#include "persist/operation_queue.hpp"

namespace ckpt::persist {
namespace {

std::int64_t result_of(std::int64_t returned) { return returned < 0 ? -errno : returned; }

std::int64_t list(Operation& operation) {
  DIR* directory = ::opendir(operation.path.c_str());
  if (directory == nullptr) return -errno;
  errno = 0;
  while (const dirent* entry = ::readdir(directory)) {  // NOLINT(concurrency-mt-unsafe): a stream of its own
    const std::string name = entry->d_name;
    if (name == "." || name == "..") continue;
    bool is_directory = entry->d_type == DT_DIR;
    if (struct stat found{}; entry->d_type == DT_UNKNOWN)
      is_directory =
          ::fstatat(::dirfd(directory), entry->d_name, &found, AT_SYMLINK_NOFOLLOW) == 0 && S_ISDIR(found.st_mode);
    operation.entries.push_back({name, is_directory});
    errno = 0;
  }
  const int error = errno;
  ::closedir(directory);
  return -error;
}

std::int64_t stat_file(Operation& operation) {
  struct stat found {};
  if (::stat(operation.path.c_str(), &found) != 0) return -errno;
  operation.found_bytes = static_cast<std::uint64_t>(found.st_size);
  operation.found_modified_s = found.st_mtim.tv_sec;
  return 0;
}

std::int64_t free_space(const Operation& operation) {
  struct statvfs found {};
  if (::statvfs(operation.path.c_str(), &found) != 0) return -errno;
  return static_cast<std::int64_t>(found.f_bavail * found.f_frsize);
}

std::int64_t perform(Operation& operation) {
  const int fd = operation.file ? operation.file->get() : -1;
  const char* path = operation.path.c_str();
  const auto offset = static_cast<off_t>(operation.offset);
  using Kind = Operation::Kind;
  switch (operation.kind) {
    case Kind::open:
      return result_of(::open(path, operation.flags, 0666));
    case Kind::read:
      return result_of(::pread(fd, operation.data, operation.size_bytes, offset));
    case Kind::write:
      return result_of(::pwrite(fd, operation.data, operation.size_bytes, offset));
    case Kind::sync:
      return result_of(::fsync(fd));
    case Kind::allocate:
      return result_of(::fallocate(fd, 0, 0, offset));
    case Kind::rename:
      return result_of(::rename(path, operation.new_path.c_str()));
    case Kind::link:
      return result_of(::link(path, operation.new_path.c_str()));
    case Kind::remove:
      return result_of(::unlink(path));
    case Kind::remove_directory:
      return result_of(::rmdir(path));
    case Kind::make_directory:
      return result_of(::mkdir(path, 0777));
    case Kind::stat:
      return stat_file(operation);
    case Kind::list:
      return list(operation);
    case Kind::free_space:
      return free_space(operation);
    case Kind::close:
      operation.file.reset();
      return 0;
  }
  return -EINVAL;
}

// State that the queue and its threads share. It lives until the last thread has ended, perhaps long after the queue.
struct Shared {
  std::mutex mutex;
  std::condition_variable submitted, ended;
  std::deque<OperationPtr> waiting, done;
  bool ending = false;
};

void work(const std::shared_ptr<Shared>& shared) {
  std::unique_lock lock(shared->mutex);
  for (;;) {
    shared->submitted.wait(lock, [&] { return shared->ending || !shared->waiting.empty(); });
    if (shared->waiting.empty()) return;
    OperationPtr operation = std::move(shared->waiting.front());
    shared->waiting.pop_front();
    lock.unlock();
    std::int64_t result = 0;
    do result = perform(*operation);
    while (result == -EINTR);
    set_result(*operation, result);
    lock.lock();
    shared->done.push_back(std::move(operation));
    shared->ended.notify_one();
  }
}

class ThreadQueue : public OperationQueue {
 public:
  explicit ThreadQueue(unsigned threads) {
    for (unsigned i = 0; i < threads; ++i)
      threads_.push_back(start_thread("ckpt-storage", [shared = shared_] { work(shared); }));
  }

  // If an operation has not ended, its thread may hang in a system call. So the destructor does not wait for it.
  ~ThreadQueue() override {
    bool idle = false;
    {
      const std::lock_guard lock(shared_->mutex);
      shared_->ending = true;
      idle = unfinished_ == shared_->done.size();
    }
    shared_->submitted.notify_all();
    for (std::thread& thread : threads_) {
      if (idle) {
        thread.join();
      } else {
        thread.detach();
      }
    }
  }
  ThreadQueue(const ThreadQueue&) = delete;
  ThreadQueue& operator=(const ThreadQueue&) = delete;

  void submit(OperationPtr operation) override {
    ++unfinished_;
    {
      const std::lock_guard lock(shared_->mutex);
      shared_->waiting.push_back(std::move(operation));
    }
    shared_->submitted.notify_one();
  }

  OperationPtr wait(Clock::time_point until) override {
    std::unique_lock lock(shared_->mutex);
    if (!shared_->ended.wait_until(lock, until, [&] { return !shared_->done.empty(); })) return nullptr;
    OperationPtr operation = std::move(shared_->done.front());
    shared_->done.pop_front();
    --unfinished_;
    operation->ended = true;
    return operation;
  }

  std::size_t unfinished() const override { return unfinished_; }

 private:
  std::shared_ptr<Shared> shared_ = std::make_shared<Shared>();
  std::vector<std::thread> threads_;
  std::size_t unfinished_ = 0;
};

}  // namespace

void set_result(Operation& operation, std::int64_t result) {
  operation.result = result;
  if (operation.kind == Operation::Kind::open && result >= 0)
    operation.file = std::make_shared<UniqueFd>(static_cast<int>(result));
}

std::unique_ptr<OperationQueue> make_thread_queue(unsigned threads) { return std::make_unique<ThreadQueue>(threads); }

}  // namespace ckpt::persist
