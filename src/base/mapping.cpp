#include "base/mapping.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <thread>
#include <vector>

#include "base/error.hpp"

namespace ckpt {
namespace {

constexpr std::size_t chunk_bytes = std::size_t{64} << 20;
constexpr std::size_t page_bytes = 4096;
#ifndef MADV_POPULATE_WRITE
constexpr int MADV_POPULATE_WRITE = 23;
#endif

void populate_chunk(std::byte* begin, std::size_t size_bytes) {
  if (::madvise(begin, size_bytes, MADV_POPULATE_WRITE) == 0) return;
  // Kernels before 5.14 do not know this advice. Then read each page. Afterwards the page exists, and the first write
  // to it only marks it as dirty.
  for (std::size_t offset = 0; offset < size_bytes; offset += page_bytes)
    static_cast<void>(*static_cast<volatile std::byte*>(begin + offset));
}

}  // namespace

Mapping::Mapping(int fd, std::size_t size_bytes, Access access, const std::string& what) : size_bytes_(size_bytes) {
  const int protection = access == Access::write ? PROT_READ | PROT_WRITE : PROT_READ;
  void* address = ::mmap(nullptr, size_bytes, protection, MAP_SHARED, fd, 0);
  if (address == MAP_FAILED) throw_errno(CKPT_ERR_SYSTEM, "cannot map " + what);
  data_ = static_cast<std::byte*>(address);
  ::madvise(address, size_bytes, MADV_DONTFORK);
}

Mapping::~Mapping() {
  if (data_ != nullptr) ::munmap(data_, size_bytes_);
}

void Mapping::populate(std::size_t first_byte, std::size_t size_bytes, unsigned threads) const {
  std::atomic<std::size_t> next{0};
  const auto work = [&] {
    for (std::size_t begin = next.fetch_add(chunk_bytes); begin < size_bytes; begin = next.fetch_add(chunk_bytes))
      populate_chunk(data_ + first_byte + begin, std::min(chunk_bytes, size_bytes - begin));
  };
  const std::size_t chunks = (size_bytes + chunk_bytes - 1) / chunk_bytes;
  std::vector<std::jthread> helpers;
  for (std::size_t i = 1; i < std::min<std::size_t>(threads, chunks); ++i) helpers.emplace_back(work);
  work();
}

}  // namespace ckpt
