// OperationQueue runs file operations for LocalFileSystem, so that the calling thread can wait for them with a
// deadline. UringQueue runs them in the kernel by io_uring. ThreadQueue runs them on threads that make the system
// calls.
//
// Only one thread may use a queue. An operation keeps all that it needs until it has ended: descriptor, paths, and the
// owner of the memory. If the queue is destroyed before that, these are never freed, because storage may still write to
// the memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.hpp"
#include "base/unique_fd.hpp"
#include "persist/file_system.hpp"

namespace ckpt::persist {

struct Operation {
  enum class Kind {
    open,
    read,
    write,
    sync,
    allocate,
    rename,
    link,
    remove,
    remove_directory,
    make_directory,
    stat,
    list,
    free_space,
    close
  };

  Kind kind = Kind::sync;
  std::shared_ptr<UniqueFd> file;  // for read, write, sync, allocate, close; of open: the result
  std::string path;                // for the other operations
  std::string new_path;            // rename, link
  int flags = 0;                   // open
  std::uint64_t offset = 0;        // read, write; allocate: the size
  std::byte* data = nullptr;       // read, write
  std::size_t size_bytes = 0;
  std::shared_ptr<const void> owner;  // of data
  std::uint64_t tag = 0;
  std::shared_ptr<void> waiter;  // for the use of the submitter

  // Set once it has ended:
  bool ended = false;
  std::int64_t result = 0;              // as of a system call, or -errno; free_space: bytes
  std::uint64_t found_bytes = 0;        // stat
  std::int64_t found_modified_s = 0;    // stat
  std::vector<DirectoryEntry> entries;  // list
};
using OperationPtr = std::shared_ptr<Operation>;

// For queues: records how an operation ended.
void set_result(Operation& operation, std::int64_t result);

class OperationQueue {
 public:
  virtual ~OperationQueue() = default;
  // Never waits for storage.
  virtual void submit(OperationPtr operation) = 0;
  // The next operation that ended; null if none ends before `until`.
  virtual OperationPtr wait(Clock::time_point until) = 0;
  // A buffer that suits the storage's transfers, aligned or registered. It stays valid after the queue's end.
  virtual std::shared_ptr<std::byte> make_buffer(std::size_t size_bytes) { return make_aligned_buffer(size_bytes); }
  // Number of operations submitted and not yet returned by wait().
  virtual std::size_t unfinished() const = 0;
};

// Null if the kernel refuses io_uring or lacks an operation. The queue cannot do list and free_space, which io_uring
// lacks, nor link, which only recent kernels have.
std::unique_ptr<OperationQueue> make_uring_queue(unsigned depth);
std::unique_ptr<OperationQueue> make_thread_queue(unsigned threads);

}  // namespace ckpt::persist
