// Detects that a process is a forked child. A child inherits an engine's memory, but not its threads and mappings.
#pragma once

#include <sys/mman.h>

#include "base/error.hpp"

namespace ckpt::client {

class ForkGuard {
 public:
  ForkGuard() {
    void* page = ::mmap(nullptr, page_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    // The kernel gives a child this page full of zeros, so the check costs a load and no system call.
    if (page == MAP_FAILED || ::madvise(page, page_bytes, MADV_WIPEONFORK) != 0)
      throw_errno(CKPT_ERR_SYSTEM, "cannot map a page that forked children see empty");
    page_ = static_cast<volatile char*>(page);
    *page_ = 1;
  }
  ~ForkGuard() { ::munmap(const_cast<char*>(page_), page_bytes); }
  ForkGuard(const ForkGuard&) = delete;
  ForkGuard& operator=(const ForkGuard&) = delete;

  bool in_forked_child() const { return *page_ == 0; }

 private:
  static constexpr std::size_t page_bytes = 4096;
  volatile char* page_ = nullptr;
};

}  // namespace ckpt::client
