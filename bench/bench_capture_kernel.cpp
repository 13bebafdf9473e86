// Compares the kernels that copy and digest in one pass (gather_leaves(), scatter_leaves()) with memcpy of the same
// bytes. Tensors are on the heap, and the piece is in shared memory. All memory is touched before. Both sides run in
// one process, with the same number of threads.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "bench/comparison.hpp"
#include "kernels/copy_digest.hpp"

namespace {

using namespace ckpt::kernels;

constexpr std::size_t mebibyte = std::size_t{1} << 20;

// The sizes of GPT-2's parameters in float32, repeated until there are `total_bytes`.
std::vector<std::size_t> gpt2_sizes(std::size_t total_bytes) {
  constexpr std::size_t width = 768;
  std::vector<std::size_t> model;
  for (int layer = 0; layer < 12; ++layer) {
    for (std::size_t elements : {width, width, width * 3 * width, 3 * width, width * width, width, width, width,
                                 width * 4 * width, 4 * width, 4 * width * width, width}) {
      model.push_back(4 * elements);
    }
  }
  model.insert(model.end(), {4 * width, 4 * width, 4 * 1024 * width, 4 * 50257 * width});
  std::vector<std::size_t> sizes;
  for (std::size_t i = 0, left = total_bytes; left > 0; ++i) {
    sizes.push_back(std::min(left, model[i % model.size()]));
    left -= sizes.back();
  }
  return sizes;
}

struct Free {
  void operator()(std::byte* memory) const { std::free(memory); }
};

struct State {
  std::vector<std::unique_ptr<std::byte, Free>> tensors;
  std::vector<Source> sources;
  std::vector<Target> targets;
  std::vector<std::size_t> offsets;

  State(const std::vector<std::size_t>& sizes, std::size_t misaligned_by_bytes) {
    for (std::size_t size : sizes) {
      auto* memory = static_cast<std::byte*>(std::aligned_alloc(64, (size + misaligned_by_bytes + 127) / 64 * 64));
      for (std::size_t i = 0; i < size; ++i) memory[i + misaligned_by_bytes] = static_cast<std::byte>(i * 31 >> 5);
      tensors.emplace_back(memory);
      sources.push_back({memory + misaligned_by_bytes, size});
      targets.push_back({memory + misaligned_by_bytes, size});
    }
    offsets = segment_offsets(std::span<const Source>(sources));
  }
};

std::byte* shared_memory(std::size_t size_bytes) {
  const int fd = memfd_create("bench", 0);
  if (fd < 0 || ftruncate(fd, static_cast<off_t>(size_bytes)) != 0) std::abort();
  void* memory = mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
  close(fd);
  if (memory == MAP_FAILED) std::abort();
  std::memset(memory, 1, size_bytes);
  return static_cast<std::byte*>(memory);
}

// Runs work(first_leaf, last_leaf) over equal shares of the leaves, one per thread.
void on_threads(std::size_t threads, std::size_t leaves, const std::function<void(std::size_t, std::size_t)>& work) {
  std::vector<std::thread> others;
  for (std::size_t t = 1; t < threads; ++t) {
    others.emplace_back(work, leaves * t / threads, leaves * (t + 1) / threads);
  }
  work(0, leaves / threads);
  for (std::thread& thread : others) thread.join();
}

// Copies the bytes of the leaves [first, last) by memcpy, tensor by tensor.
void plain_copy(const State& state, std::byte* packed, bool gather, std::size_t first, std::size_t last) {
  const std::size_t begin = first * leaf_size_bytes;
  const std::size_t end = std::min(last * leaf_size_bytes, state.offsets.back());
  for (std::size_t i = 0; i < state.sources.size(); ++i) {
    const std::size_t from = std::max(begin, state.offsets[i]);
    const std::size_t to = std::min(end, state.offsets[i + 1]);
    if (from >= to) continue;
    std::byte* tensor = state.targets[i].data + (from - state.offsets[i]);
    std::memcpy(gather ? packed + from : tensor, gather ? tensor : packed + from, to - from);
  }
}

struct Case {
  std::string name;
  bool gather;
  std::size_t threads;
};

void compare_case(const Case& what, const State& state, std::byte* packed, int rounds, Isa isa) {
  const std::size_t length = state.offsets.back();
  const std::size_t leaves = leaf_count(length);
  std::vector<std::uint64_t> digests(leaves);
  const auto ours = [&](std::size_t first, std::size_t last) {
    if (what.gather) {
      gather_leaves(state.sources, state.offsets, packed, first, last, digests.data(), isa);
    } else if (scatter_leaves(state.targets, state.offsets, packed, first, last, digests.data(), isa)) {
      std::abort();
    }
  };
  const auto theirs = [&](std::size_t first, std::size_t last) { plain_copy(state, packed, what.gather, first, last); };
  gather_leaves(state.sources, state.offsets, packed, 0, leaves, digests.data(), isa);
  ckpt::bench::compare(
      what.name, length, rounds, [&] { on_threads(what.threads, leaves, ours); },
      [&] { on_threads(what.threads, leaves, theirs); });
}

}  // namespace

int main(int argc, char** argv) {
  ckpt::bench::initialize(&argc, argv);
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 15;
  const std::string only = argc > 2 ? argv[2] : "";
  for (std::size_t size_mib : {256, 1024}) {
    const std::size_t length = size_mib * mebibyte;
    std::byte* packed = shared_memory(length);
    for (const std::string shape : {"gpt2", "one", "misaligned"}) {
      const State state(shape == "one" ? std::vector<std::size_t>{length} : gpt2_sizes(length),
                        shape == "misaligned" ? 4 : 0);
      for (std::size_t threads : {1, 2}) {
        for (bool gather : {true, false}) {
          const std::string name = std::string(gather ? "gather" : "scatter") + "_" + shape + "_" +
                                   std::to_string(size_mib) + "mib_" + std::to_string(threads);
          if (name.find(only) != std::string::npos)
            compare_case({name, gather, threads}, state, packed, rounds, best_isa());
        }
      }
    }
    munmap(packed, length);
  }
}
