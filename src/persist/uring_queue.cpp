#include <fcntl.h>
#include <liburing.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <unordered_map>

#include "persist/operation_queue.hpp"

namespace ckpt::persist {
namespace {

constexpr std::array needed_operations = {IORING_OP_OPENAT,   IORING_OP_READ,      IORING_OP_WRITE,
                                          IORING_OP_FSYNC,    IORING_OP_FALLOCATE, IORING_OP_RENAMEAT,
                                          IORING_OP_UNLINKAT, IORING_OP_MKDIRAT,   IORING_OP_STATX};

bool has_all_operations(io_uring& ring) {
  io_uring_probe* probe = io_uring_get_probe_ring(&ring);
  if (probe == nullptr) return false;
  const bool all = std::all_of(needed_operations.begin(), needed_operations.end(),
                               [&](int code) { return io_uring_opcode_supported(probe, code) != 0; });
  io_uring_free_probe(probe);
  return all;
}

constexpr std::size_t fixed_max_bytes = std::size_t{1} << 30;  // the kernel's limit
constexpr auto call_off_time = std::chrono::milliseconds(50);

// An operation under way, with the memory that the kernel writes to.
struct InFlight {
  OperationPtr operation;
  struct statx found {};
};

// Memory that is registered with the ring, as buffer 0. The kernel has pinned it.
struct FixedBuffer {
  std::shared_ptr<std::byte> memory;
  std::size_t size_bytes = 0;

  bool holds(const Operation& operation) const {
    const auto begin = reinterpret_cast<std::uintptr_t>(memory.get()),
               at = reinterpret_cast<std::uintptr_t>(operation.data);
    return memory && at >= begin && at + operation.size_bytes <= begin + size_bytes;
  }
};

void prepare(io_uring_sqe* entry, InFlight& in_flight, const FixedBuffer& fixed) {
  Operation& operation = *in_flight.operation;
  const int fd = operation.file ? operation.file->get() : -1;
  const char* path = operation.path.c_str();
  const auto size = static_cast<unsigned>(operation.size_bytes);
  using Kind = Operation::Kind;
  switch (operation.kind) {
    case Kind::open:
      io_uring_prep_openat(entry, AT_FDCWD, path, operation.flags, 0666);
      break;
    case Kind::read:
      if (fixed.holds(operation)) {
        io_uring_prep_read_fixed(entry, fd, operation.data, size, operation.offset, 0);
      } else {
        io_uring_prep_read(entry, fd, operation.data, size, operation.offset);
      }
      break;
    case Kind::write:
      io_uring_prep_write(entry, fd, operation.data, size, operation.offset);
      break;
    case Kind::sync:
      io_uring_prep_fsync(entry, fd, 0);
      break;
    case Kind::allocate:
      io_uring_prep_fallocate(entry, fd, 0, 0, static_cast<off_t>(operation.offset));
      break;
    case Kind::rename:
      io_uring_prep_renameat(entry, AT_FDCWD, path, AT_FDCWD, operation.new_path.c_str(), 0);
      break;
    case Kind::remove:
      io_uring_prep_unlinkat(entry, AT_FDCWD, path, 0);
      break;
    case Kind::remove_directory:
      io_uring_prep_unlinkat(entry, AT_FDCWD, path, AT_REMOVEDIR);
      break;
    case Kind::make_directory:
      io_uring_prep_mkdirat(entry, AT_FDCWD, path, 0777);
      break;
    case Kind::stat:
      io_uring_prep_statx(entry, AT_FDCWD, path, 0, STATX_SIZE | STATX_MTIME, &in_flight.found);
      break;
    case Kind::link:
    case Kind::list:
    case Kind::free_space:
    case Kind::close:
      io_uring_prep_nop(entry);
      break;
  }
}

class UringQueue : public OperationQueue {
 public:
  explicit UringQueue(const io_uring& ring) : ring_(ring) {}

  // An operation that cannot be cancelled is never freed, because the kernel may still use its memory.
  ~UringQueue() override {
    call_off();
    for (auto& [address, in_flight] : in_flight_) {
      (void)address;
      (void)in_flight.release();
    }
    io_uring_queue_exit(&ring_);
  }
  UringQueue(const UringQueue&) = delete;
  UringQueue& operator=(const UringQueue&) = delete;

  void submit(OperationPtr operation) override {
    auto in_flight = std::make_unique<InFlight>();
    in_flight->operation = std::move(operation);
    io_uring_sqe* entry = io_uring_get_sqe(&ring_);
    if (entry == nullptr) {  // cannot happen, because each entry goes to the kernel at once
      in_flight->operation->result = -EBUSY;
      refused_.push_back(std::move(in_flight->operation));
      return;
    }
    prepare(entry, *in_flight, fixed_);
    // With this flag a kernel thread runs the operation. Otherwise submitting it might wait for the storage.
    if (needs_thread(in_flight->operation->kind)) entry->flags |= IOSQE_ASYNC;
    InFlight* const address = in_flight.get();
    io_uring_sqe_set_data(entry, address);
    in_flight_.emplace(address, std::move(in_flight));
    io_uring_submit(&ring_);
  }

  OperationPtr wait(Clock::time_point until) override {
    if (!refused_.empty()) {
      OperationPtr operation = std::move(refused_.back());
      refused_.pop_back();
      operation->ended = true;
      return operation;
    }
    io_uring_cqe* completion = nullptr;
    if (io_uring_peek_cqe(&ring_, &completion) != 0) {
      const auto left = std::chrono::duration_cast<std::chrono::nanoseconds>(until - Clock::now()).count();
      if (left <= 0) return nullptr;
      __kernel_timespec timeout{left / 1'000'000'000, left % 1'000'000'000};
      if (io_uring_wait_cqe_timeout(&ring_, &completion, &timeout) != 0) return nullptr;
    }
    auto* const address = static_cast<InFlight*>(io_uring_cqe_get_data(completion));
    const int result = completion->res;
    io_uring_cqe_seen(&ring_, completion);
    return end(address, result);
  }

  // Returns the registered buffer, enlarged if needed. Returns other memory if that buffer is in use, if the size
  // exceeds what can be registered, or if the kernel refuses to pin so much memory.
  std::shared_ptr<std::byte> make_buffer(std::size_t size_bytes) override {
    if (fixed_.memory.use_count() > 1 || size_bytes > fixed_max_bytes) return make_aligned_buffer(size_bytes);
    if (fixed_.size_bytes < size_bytes) {
      if (fixed_.memory) io_uring_unregister_buffers(&ring_);
      fixed_ = {make_aligned_buffer(size_bytes), size_bytes};
      const iovec area{fixed_.memory.get(), size_bytes};
      // Fails if this process may not pin more memory.
      if (io_uring_register_buffers(&ring_, &area, 1) != 0) {
        fixed_ = {};
        return make_aligned_buffer(size_bytes);
      }
    }
    return fixed_.memory;
  }

  std::size_t unfinished() const override { return in_flight_.size() + refused_.size(); }

 private:
  static bool needs_thread(Operation::Kind kind) {
    return kind != Operation::Kind::read && kind != Operation::Kind::write;
  }

  void call_off() {
    for (const auto& [address, in_flight] : in_flight_) {
      (void)in_flight;
      if (io_uring_sqe* entry = io_uring_get_sqe(&ring_)) {
        io_uring_prep_cancel(entry, address, 0);
        io_uring_sqe_set_data(entry, nullptr);
      }
    }
    io_uring_submit(&ring_);
    const auto until = Clock::now() + call_off_time;
    while (!in_flight_.empty() && Clock::now() < until) (void)wait(until);
  }

  OperationPtr end(InFlight* address, int result) {
    const auto found = in_flight_.find(address);
    if (found == in_flight_.end()) return nullptr;  // the result of a cancellation
    OperationPtr operation = std::move(address->operation);
    set_result(*operation, result);
    operation->found_bytes = address->found.stx_size;
    operation->found_modified_s = address->found.stx_mtime.tv_sec;
    operation->ended = true;
    in_flight_.erase(found);
    return operation;
  }

  io_uring ring_;
  FixedBuffer fixed_;
  std::unordered_map<InFlight*, std::unique_ptr<InFlight>> in_flight_;
  std::vector<OperationPtr> refused_;
};

}  // namespace

std::unique_ptr<OperationQueue> make_uring_queue(unsigned depth) {
  io_uring ring{};
  if (io_uring_queue_init(std::max(depth, 8u), &ring, 0) != 0) return nullptr;
  if (!has_all_operations(ring)) {
    io_uring_queue_exit(&ring);
    return nullptr;
  }
  return std::make_unique<UringQueue>(ring);
}

}  // namespace ckpt::persist
