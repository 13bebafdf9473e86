// Operations on files that end some time, carried out elsewhere: in the kernel by io_uring (UringQueue), or by threads
// that make the system calls (ThreadQueue). Whoever waits for them waits no longer than it wants.
//
// A queue belongs to one thread. An operation that was submitted keeps everything it needs (descriptor, paths, memory's
// owner) until it has ended. A queue destroyed before that gives them up for good: a leak, since the storage may still
// come back and write.
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
  std::shared_ptr<UniqueFd> file;  // read, write, sync, allocate, close; open: the outcome
  std::string path;                // the others
  std::string new_path;            // rename, link
  int flags = 0;                   // open
  std::uint64_t offset = 0;        // read, write; allocate: the size
  std::byte* data = nullptr;       // read, write
  std::size_t size_bytes = 0;
  std::shared_ptr<const void> owner;  // of data
  std::uint64_t tag = 0;
  std::shared_ptr<void> waiter;  // for whoever submitted it

  // Once it has ended:
  bool ended = false;
  std::int64_t result = 0;              // as a system call's, with -errno; free_space: bytes
  std::uint64_t found_bytes = 0;        // stat
  std::int64_t found_modified_s = 0;    // stat
  std::vector<DirectoryEntry> entries;  // list
};
using OperationPtr = std::shared_ptr<Operation>;

// For queues: puts down how an operation ended.
void set_result(Operation& operation, std::int64_t result);

class OperationQueue {
 public:
  virtual ~OperationQueue() = default;
  // Never blocks on the storage.
  virtual void submit(OperationPtr operation) = 0;
  // The next operation that has ended; null where none does until then.
  virtual OperationPtr wait(Clock::time_point until) = 0;
  // Memory from which and to which transfers may be cheaper than elsewhere; it outlives the queue.
  virtual std::shared_ptr<std::byte> make_buffer(std::size_t size_bytes) { return make_aligned_buffer(size_bytes); }
  // Submitted, and not yet handed out by wait().
  virtual std::size_t unfinished() const = 0;
};

// Null where the kernel refuses io_uring or lacks an operation. It takes neither list nor free_space, which io_uring
// does not have, nor link, which it has only of late.
std::unique_ptr<OperationQueue> make_uring_queue(unsigned depth);
std::unique_ptr<OperationQueue> make_thread_queue(unsigned threads);

}  // namespace ckpt::persist
