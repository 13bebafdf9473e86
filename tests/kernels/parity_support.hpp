// Helpers for tests of the erasure code: a slow, simple reference, and buffers that end at a page that must not be
// touched.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <random>
#include <stdexcept>
#include <vector>

#include "kernels/coder.hpp"
#include "random_bytes.hpp"

namespace ckpt::kernels {

// Multiplication as one learns it: shift, add, reduce by x^8 + x^4 + x^3 + x^2 + 1.
inline std::uint8_t slow_multiply(unsigned a, unsigned b) {
  unsigned product = 0;
  for (unsigned bit = 0; bit < 8; ++bit) {
    if (b >> bit & 1) product ^= a << bit;
  }
  for (unsigned bit = 14; bit >= 8; --bit) {
    if (product >> bit & 1) product ^= 0x11DU << (bit - 8);
  }
  return static_cast<std::uint8_t>(product);
}

using Bytes = std::vector<std::byte>;

// One output of `length_bytes`, byte by byte; sources that are shorter count as if zeros followed.
inline Bytes slow_row(const Matrix& matrix, std::size_t row, const std::vector<Bytes>& sources,
                      std::size_t length_bytes) {
  Bytes sum(length_bytes);
  for (std::size_t column = 0; column < sources.size(); ++column) {
    for (std::size_t i = 0; i < std::min(length_bytes, sources[column].size()); ++i) {
      sum[i] ^=
          static_cast<std::byte>(slow_multiply(matrix.at(row, column), std::to_integer<unsigned>(sources[column][i])));
    }
  }
  return sum;
}

// A buffer whose last byte is the last before a page that must not be touched. It may begin at any alignment.
class Fenced {
 public:
  explicit Fenced(std::size_t size_bytes) : size_bytes_(size_bytes) {
    const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    mapped_bytes_ = (size_bytes + page - 1) / page * page + 2 * page;
    void* memory = mmap(nullptr, mapped_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw std::runtime_error("mmap failed");
    memory_ = static_cast<std::byte*>(memory);
    data_ = memory_ + mapped_bytes_ - page - size_bytes;
    if (mprotect(memory_ + mapped_bytes_ - page, page, PROT_NONE) != 0) throw std::runtime_error("mprotect failed");
  }
  explicit Fenced(const Bytes& bytes) : Fenced(bytes.size()) {
    if (!bytes.empty()) std::memcpy(data_, bytes.data(), bytes.size());
  }
  Fenced(Fenced&& other) noexcept
      : size_bytes_(other.size_bytes_), mapped_bytes_(other.mapped_bytes_), memory_(other.memory_), data_(other.data_) {
    other.memory_ = nullptr;
  }
  Fenced(const Fenced&) = delete;
  Fenced& operator=(const Fenced&) = delete;
  Fenced& operator=(Fenced&&) = delete;
  ~Fenced() {
    if (memory_ != nullptr) munmap(memory_, mapped_bytes_);
  }

  std::byte* data() const { return data_; }
  Source source() const { return {data_, size_bytes_}; }
  Bytes bytes() const { return {data_, data_ + size_bytes_}; }

 private:
  std::size_t size_bytes_;
  std::size_t mapped_bytes_ = 0;
  std::byte* memory_ = nullptr;
  std::byte* data_ = nullptr;
};

inline std::vector<std::uint64_t> digests_of(const Bytes& bytes) {
  std::vector<std::uint64_t> digests(leaf_count(bytes.size()));
  digest_leaves(bytes.data(), bytes.size(), digests.data(), Isa::portable);
  return digests;
}

}  // namespace ckpt::kernels
