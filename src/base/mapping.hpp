// Mapping owns a shared memory mapping of a file, such as a file of the arena.
//
// A child of fork() does not inherit the mapping. Otherwise a forked worker could still write to its trainer's slots
// after the trainer has ended, when the slots belong to another process.
#pragma once

#include <cstddef>
#include <string>
#include <utility>

namespace ckpt {

class Mapping {
 public:
  enum class Access { read, write };

  Mapping() = default;
  // Maps the first `size_bytes` bytes of the file `fd`, which must be at least that long. `fd` may be closed
  // afterwards. `what` names the file in messages. Throws Failure (CKPT_ERR_SYSTEM).
  Mapping(int fd, std::size_t size_bytes, Access access, const std::string& what);
  Mapping(Mapping&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_bytes_(std::exchange(other.size_bytes_, 0)) {}
  Mapping& operator=(Mapping&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_bytes_, other.size_bytes_);
    return *this;
  }
  ~Mapping();

  std::byte* data() const { return data_; }
  std::size_t size_bytes() const { return size_bytes_; }

  // Makes the kernel provide all pages of a range now, on up to `threads` threads, so that later accesses cause no page
  // faults. Does not change the contents. Returns when all threads are done.
  void populate(std::size_t first_byte, std::size_t size_bytes, unsigned threads) const;

 private:
  std::byte* data_ = nullptr;
  std::size_t size_bytes_ = 0;
};

}  // namespace ckpt
