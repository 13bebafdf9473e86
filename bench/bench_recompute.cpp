// What a holder's processor does for one AdamW step of a shard, if it repeats the step: update and digest parameters
// and moments, in one pass. Theirs is what it does for a copy that it received: verify all leaves of the same bytes.
// One thread's processor time, the same memory, larger than the caches. Rates count the bytes of the piece: 12 for each
// parameter.
//
// recompute_step is ours / theirs in time: above 1 if repeating the step takes longer. A node with a copy repeats the
// step into other memory (recompute_step_other_memory), because it keeps the previous checkpoint. bench/recompute.py
// runs this, too.
#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "bench/comparison.hpp"
#include "kernels/copy_digest.hpp"
#include "kernels/optimizer.hpp"

namespace {

using namespace ckpt::kernels;

constexpr std::size_t elements = std::size_t{8} << 20;
constexpr std::size_t tensor_bytes = elements * sizeof(float);
constexpr std::size_t piece_bytes = 3 * tensor_bytes;

std::byte* memory(std::size_t size_bytes) {
  void* mapped = mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (mapped == MAP_FAILED) std::abort();
  return static_cast<std::byte*>(mapped);
}

void fill(float* values, unsigned seed, float scale) {
  std::uint32_t state = seed;
  for (std::size_t i = 0; i < elements; ++i) {
    state = state * 1664525U + 1013904223U;
    values[i] = scale * static_cast<float>(state >> 8) / 0x1000000;
  }
}

// Parameters, first and second moments, one after the other in one piece.
class Shard {
 public:
  Shard()
      : piece_(memory(piece_bytes)),
        previous_(memory(piece_bytes)),
        gradient_(memory(tensor_bytes)),
        halves_(elements) {
    for (unsigned i = 0; i < 3; ++i) fill(tensor(previous_, i), i, 0.01F);
    fill(tensor(gradient_, 0), 4, 0.1F);
    for (std::size_t i = 0; i < elements; ++i) {
      halves_[i] = {static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(tensor(gradient_, 0)[i]) >> 16)};
    }
    digests_.resize(leaf_count(piece_bytes));
    for (std::size_t i = 0; i < piece_bytes; i += tensor_bytes) std::copy_n(previous_ + i, tensor_bytes, piece_ + i);
    digest_leaves(piece_, piece_bytes, digests_.data());
  }
  Shard(const Shard&) = delete;
  Shard& operator=(const Shard&) = delete;
  ~Shard() {
    munmap(piece_, piece_bytes);
    munmap(previous_, piece_bytes);
    munmap(gradient_, tensor_bytes);
  }

  // In place, or from the previous piece into this one.
  void recompute(bool in_place, const Gradient& gradient) {
    const AdamStep step = adam_step({.weight_decay = 0.01, .decoupled_weight_decay = true}, 100,
                                    {TorchForm::unfused, TorchCapability::avx2});
    AdamState state;
    StateTensor* const tensors[] = {&state.parameter, &state.first_moment, &state.second_moment};
    for (std::size_t i = 0; i < 3; ++i) {
      *tensors[i] = {tensor(in_place ? piece_ : previous_, i), tensor(piece_, i), digests_.data(), i * tensor_bytes,
                     piece_bytes};
    }
    update(step, state, gradient);
  }
  Gradient gradient() const { return std::span<const float>(tensor(gradient_, 0), elements); }
  Gradient halves() const { return std::span<const Bfloat16>(halves_); }
  void verify() {
    if (verify_leaves(piece_, piece_bytes, 0, digests_.size(), digests_.data())) {
      std::fprintf(stderr, "bench_recompute: the digests are not those of the piece\n");
      std::exit(1);
    }
  }

 private:
  static float* tensor(std::byte* piece, std::size_t number) {
    return reinterpret_cast<float*>(piece + number * tensor_bytes);
  }

  std::byte* piece_;
  std::byte* previous_;
  std::byte* gradient_;
  std::vector<Bfloat16> halves_;
  std::vector<std::uint64_t> digests_;
};

// The processor time of this thread, which other processes do not prolong.
double processor_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

ckpt::bench::Side side(std::string name, std::function<void()> work) {
  return {std::move(name), piece_bytes, [work = std::move(work)](benchmark::UserCounters&) {
            const double start = processor_seconds();
            work();
            return processor_seconds() - start;
          }};
}

}  // namespace

int main(int argc, char** argv) {
  ckpt::bench::initialize(&argc, argv);
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 15;
  Shard shard;
  const auto measured =
      ckpt::bench::measure("recompute",
                           {side("verify a copy", [&] { shard.verify(); }),
                            side("in place", [&] { shard.recompute(true, shard.gradient()); }),
                            side("bfloat16 gradient", [&] { shard.recompute(true, shard.halves()); }),
                            side("into other memory", [&] { shard.recompute(false, shard.gradient()); })},
                           rounds);
  const char* const names[] = {"", "recompute_step", "recompute_step_bfloat16", "recompute_step_other_memory"};
  for (std::size_t i = 1; i < measured.size(); ++i) {
    ckpt::bench::print_ratio({names[i], measured[i].seconds / measured[0].seconds, 1e3 * measured[i].seconds,
                              1e3 * measured[0].seconds, "ms", "verify"});
  }
}
