// OperationQueue runs file operations for LocalFileSystem, so that the calling thread can wait for them with a
// deadline. UringQueue runs them in the kernel by io_uring. ThreadQueue runs them on threads that make the system
// calls.
//
// Only one thread may use a queue. The queue holds an Operation until it has ended, and with it the descriptor, the
// paths, and the owner of the memory. If the queue is destroyed earlier, an operation that still hangs keeps them,
// because storage may still write to the memory.
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
  std::shared_ptr<UniqueFd> file;     // for read, write, sync, allocate and close; open sets it
  std::string path;                   // for the other operations
  std::string new_path;               // rename, link
  int flags = 0;                      // open
  std::uint64_t offset = 0;           // read, write; allocate: the size
  std::byte* data = nullptr;          // read, write
  std::size_t size_bytes = 0;         // read, write
  std::shared_ptr<const void> owner;  // keeps the memory at `data`
  std::uint64_t tag = 0;              // for the submitter; the queue does not use it
  std::shared_ptr<void> waiter;       // for the submitter, too

  // Set when the operation has ended:
  bool ended = false;
  std::int64_t result = 0;              // what the system call returns, or -errno; free_space: free bytes
  std::uint64_t found_bytes = 0;        // stat
  std::int64_t found_modified_s = 0;    // stat
  std::vector<DirectoryEntry> entries;  // list
};
using OperationPtr = std::shared_ptr<Operation>;

// For queues: sets operation.result from the result of a system call, or from -errno.
void set_result(Operation& operation, std::int64_t result);

class OperationQueue {
 public:
  virtual ~OperationQueue() = default;
  // Never waits for storage.
  virtual void submit(OperationPtr operation) = 0;
  // Returns the next operation that has ended; null if none ends before `until`.
  virtual OperationPtr wait(Clock::time_point until) = 0;
  // Aligned memory for transfers; may be registered with the kernel, which makes them cheaper. It may outlive the
  // queue.
  virtual std::shared_ptr<std::byte> make_buffer(std::size_t size_bytes) { return make_aligned_buffer(size_bytes); }
  // Number of operations submitted and not yet returned by wait().
  virtual std::size_t unfinished() const = 0;
};

// Returns null if the kernel refuses io_uring or lacks one of its operations. The queue does not do link, list, close
// and free_space: io_uring lacks some of them, and older kernels lack others.
std::unique_ptr<OperationQueue> make_uring_queue(unsigned depth);
std::unique_ptr<OperationQueue> make_thread_queue(unsigned threads);

}  // namespace ckpt::persist
