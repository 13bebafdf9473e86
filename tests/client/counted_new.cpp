// Counts what each thread of this program allocates. A file of its own: inlined into others, compilers warn of
// mismatched pairs.

#include <cstdint>
#include <cstdlib>
#include <new>

static thread_local std::uint64_t allocations = 0;

std::uint64_t allocation_count() { return allocations; }

void* operator new(std::size_t size) {
  ++allocations;
  if (void* memory = std::malloc(size)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
