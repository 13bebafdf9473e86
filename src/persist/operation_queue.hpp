// OperationQueue runs file operations for LocalFileSystem, so that the calling thread can wait for them with a
// deadline. UringQueue runs them in the kernel by io_uring. ThreadQueue runs them on threads that make the system
// calls.
//
// Only one thread may use a queue. The queue holds an Operation until it has ended, and with it the descriptor, the
// paths, and the owner of the memory. These live on while an operation hangs, even if the queue is destroyed meanwhile:
// storage may still write to the memory.
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
  std::string new_path;               // for rename and link: the new name
  int flags = 0;                      // for open: as open(2) takes them
  std::uint64_t offset = 0;           // for read and write; for allocate: how many bytes to reserve
  std::byte* data = nullptr;          // for read and write
  std::size_t size_bytes = 0;         // for read and write
  std::shared_ptr<const void> owner;  // keeps the memory at `data`
  std::uint64_t tag = 0;              // for the submitter; the queue does not use it
  std::shared_ptr<void> waiter;       // for the submitter, too: takes the Completion of a File's transfer; else null

  // Set when the operation has ended:
  bool ended = false;
  std::int64_t result = 0;              // what the system call returns, or -errno; free_space: free bytes
  std::uint64_t found_bytes = 0;        // for stat: the size
  std::int64_t found_modified_s = 0;    // for stat: when the file was last written, in seconds since 1970
  std::vector<DirectoryEntry> entries;  // for list
};
using OperationPtr = std::shared_ptr<Operation>;

// For queues: sets operation.result from the result of a system call, or from -errno.
void set_result(Operation& operation, std::int64_t result);

class OperationQueue {
 public:
  virtual ~OperationQueue() = default;
  // Starts an operation. Never waits for storage.
  virtual void submit(OperationPtr operation) = 0;
  // Returns the next operation that has ended; null if none ends before `until`.
  virtual OperationPtr wait(Clock::time_point until) = 0;
  // Returns aligned memory for transfers. It may be registered with the kernel, so that transfers are cheaper. It may
  // outlive the queue.
  virtual std::shared_ptr<std::byte> make_buffer(std::size_t size_bytes) { return make_aligned_buffer(size_bytes); }
  // Returns the number of operations that were submitted and that wait() has not returned yet.
  virtual std::size_t unfinished() const = 0;
};

// Makes a UringQueue. Returns null if the kernel refuses io_uring or lacks an operation that the queue needs. Do not
// submit link, list, close or free_space to it: io_uring lacks some of them, and older kernels lack others.
std::unique_ptr<OperationQueue> make_uring_queue(unsigned depth);
std::unique_ptr<OperationQueue> make_thread_queue(unsigned threads);

}  // namespace ckpt::persist
