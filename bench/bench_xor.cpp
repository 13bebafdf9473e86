// Compares our erasure coding with what one would call instead: xor_gen or ec_encode_data of ISA-L, and then XXH3 of
// every leaf, by the fastest XXH3 for this processor (our own). Both sides run in one thread of one process, with the
// same buffers, which are not in the caches. Rates count the bytes of the sources.
//
// Our side always computes digests. In *_cpu, the other side computes parity without digests.
#include <isa-l/erasure_code.h>
#include <isa-l/raid.h>
#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "bench/comparison.hpp"
#include "kernels/coder.hpp"

namespace {

using namespace ckpt::kernels;
using ckpt::bench::compare;

constexpr std::size_t piece_bytes = std::size_t{64} << 20;

std::byte* memory(std::size_t size_bytes, unsigned seed) {
  void* mapped = mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (mapped == MAP_FAILED) std::abort();
  auto* words = static_cast<std::uint64_t*>(mapped);
  for (std::size_t i = 0; i < size_bytes / 8; ++i) words[i] = (i + seed) * 0x9E3779B97F4A7C15U;
  return static_cast<std::byte*>(mapped);
}

class Stripe {
 public:
  Stripe(std::size_t data, std::size_t parity) : data_(data), parity_(parity), digests_(data + 2 * parity) {
    for (std::size_t i = 0; i < data + 2 * parity; ++i) {
      pieces_.push_back(memory(piece_bytes, static_cast<unsigned>(i)));
      digests_[i].resize(leaf_count(piece_bytes));
    }
    for (std::size_t i = 0; i < data; ++i) {
      sources_.push_back({pieces_[i], piece_bytes});
      source_digests_.push_back(digests_[i].data());
      from_.push_back(reinterpret_cast<unsigned char*>(pieces_[i]));
    }
    for (std::size_t row = 0; row < parity; ++row) {
      outputs_.push_back({pieces_[data + row], digests_[data + row].data()});
      to_.push_back(reinterpret_cast<unsigned char*>(pieces_[data + parity + row]));
    }
  }
  ~Stripe() {
    for (std::byte* piece : pieces_) munmap(piece, piece_bytes);
  }
  Stripe(const Stripe&) = delete;
  Stripe& operator=(const Stripe&) = delete;

  void ours(const Coder& coder, bool with_sources) {
    const std::span<std::uint64_t* const> digests = source_digests_;
    coder.combine(sources_, outputs_, piece_bytes, with_sources ? digests : digests.first(0));
  }
  // Works as if chunks came from several nodes: adds the chunk of each source to the parity chunk when it comes, and
  // computes digests with the last one.
  void ours_added(const Coder& coder) {
    constexpr std::size_t chunk_bytes = 16 * leaf_size_bytes;
    for (std::size_t at = 0; at < piece_bytes; at += chunk_bytes) {
      std::vector<Output> undigested, digested;
      for (const auto& [data, digests] : outputs_) {
        undigested.push_back({data + at, nullptr});
        digested.push_back({data + at, digests + at / leaf_size_bytes});
      }
      for (std::size_t i = 0; i < data_; ++i) {
        const Source chunk{sources_[i].data + at, chunk_bytes};
        const auto& rows = i + 1 < data_ ? undigested : digested;
        if (i == 0) {
          coder.start(i, chunk, rows, chunk_bytes);
        } else {
          coder.add(i, chunk, rows, chunk_bytes);
        }
      }
    }
  }
  void isal_xor() {
    std::vector<void*> pointers(from_.begin(), from_.end());
    pointers.push_back(to_[0]);
    if (xor_gen(static_cast<int>(pointers.size()), static_cast<int>(piece_bytes), pointers.data()) != 0) std::abort();
  }
  void isal_encode(unsigned char* tables) {
    ec_encode_data(static_cast<int>(piece_bytes), static_cast<int>(data_), static_cast<int>(parity_), tables,
                   from_.data(), to_.data());
  }
  void digest_parity() {
    for (std::size_t row = 0; row < parity_; ++row) {
      digest_leaves(to_[row], piece_bytes, digests_[data_ + parity_ + row].data());
    }
  }
  void digest_sources() {
    for (std::size_t i = 0; i < data_; ++i) digest_leaves(from_[i], piece_bytes, digests_[i].data());
  }
  // Checks that both sides made the same parity.
  void check() const {
    for (std::size_t row = 0; row < parity_; ++row) {
      if (std::memcmp(outputs_[row].data, to_[row], piece_bytes) != 0) {
        std::fprintf(stderr, "bench_xor: parity row %zu differs from ISA-L's\n", row);
        std::exit(1);
      }
    }
  }

 private:
  std::size_t data_;
  std::size_t parity_;
  std::vector<std::byte*> pieces_;
  std::vector<std::vector<std::uint64_t>> digests_;
  std::vector<Source> sources_;
  std::vector<Output> outputs_;
  std::vector<std::uint64_t*> source_digests_;
  std::vector<unsigned char*> from_;
  std::vector<unsigned char*> to_;
};

// xor_fused: verifies the sources and digests the parity in the same pass. xor_fused_parity: only digests the parity.
// xor_added: digests the parity of sources that come one after the other in chunks.
void compare_xor(std::size_t data, int rounds) {
  const Coder coder(ErasureCode(data, 1).encoder());
  Stripe stripe(data, 1);
  const auto isal_parity = [&] {
    stripe.isal_xor();
    stripe.digest_parity();
  };
  const auto isal_all = [&] {
    isal_parity();
    stripe.digest_sources();
  };
  const std::string suffix = "_k" + std::to_string(data);
  compare(
      "xor_fused" + suffix, data * piece_bytes, rounds, [&] { stripe.ours(coder, true); }, isal_all);
  compare(
      "xor_fused_parity" + suffix, data * piece_bytes, rounds, [&] { stripe.ours(coder, false); }, isal_parity);
  compare(
      "xor_added" + suffix, data * piece_bytes, rounds, [&] { stripe.ours_added(coder); }, isal_parity);
  compare(
      "xor_cpu" + suffix, data * piece_bytes, rounds, [&] { stripe.ours(coder, false); }, [&] { stripe.isal_xor(); });
  stripe.check();
}

void compare_rs(std::size_t data, std::size_t parity, int rounds) {
  const ErasureCode code(data, parity);
  const Coder coder(code.encoder());
  std::vector<unsigned char> tables(32 * data * parity);
  Matrix matrix = code.encoder();
  ec_init_tables(static_cast<int>(data), static_cast<int>(parity), matrix.coefficients.data(), tables.data());
  Stripe stripe(data, parity);
  const auto isal = [&] { stripe.isal_encode(tables.data()); };
  const auto isal_parity = [&] {
    isal();
    stripe.digest_parity();
  };
  const auto isal_all = [&] {
    isal_parity();
    stripe.digest_sources();
  };
  const std::string suffix = "_k" + std::to_string(data) + "_p" + std::to_string(parity);
  compare(
      "rs_fused" + suffix, data * piece_bytes, rounds, [&] { stripe.ours(coder, true); }, isal_all);
  compare(
      "rs_added" + suffix, data * piece_bytes, rounds, [&] { stripe.ours_added(coder); }, isal_parity);
  compare(
      "rs_cpu" + suffix, data * piece_bytes, rounds, [&] { stripe.ours(coder, false); }, isal);
  stripe.check();
}

}  // namespace

int main(int argc, char** argv) {
  ckpt::bench::initialize(&argc, argv);
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 15;
  for (const std::size_t data : {3, 7}) compare_xor(data, rounds);
  for (const std::size_t data : {3, 7}) compare_rs(data, 2, rounds);
}
