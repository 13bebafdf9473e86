// Coder is erasure coding of bytes. It applies a matrix of kernels/erasure_code.hpp, for encoding or decoding, and
// computes the leaf digests of what it writes in the same pass. If all coefficients are one, it is plain XOR.
//
// A source may be shorter than the outputs; it counts as if zeros followed. Any length and alignment will do. combine()
// streams outputs that are 64-byte aligned past the caches, and fences them before it returns. Sums that grow source by
// source stay in the caches. So work on chunks that fit there. Better still, wait for the chunks of all sources and
// combine them.
//
// Digests are those of kernels/digest.hpp, with leaf 0 at the first byte of the call. To work in chunks or on several
// threads, cut at multiples of leaf_size_bytes and advance all pointers, those of digests by leaves.
//
// A Coder is immutable and safe to share. It allocates only when it is made. Sources and outputs are borrowed for the
// call. Outputs overlap neither each other nor a source, with one exception: an output of combine() may be exactly a
// source, at the same address. It then replaces that source, which cannot be digested in the same call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/combine_loops.hpp"
#include "kernels/copy_digest.hpp"
#include "kernels/erasure_code.hpp"
#include "kernels/isa.hpp"

namespace ckpt::kernels {

// Where a coder writes: the bytes, and the digests of their leaves unless `digests` is null.
struct Output {
  std::byte* data;
  std::uint64_t* digests;
};

class Coder {
 public:
  // Throws std::invalid_argument unless 1 <= rows <= max_parity_rows and 1 <= columns <= max_stripe_pieces.
  explicit Coder(Matrix matrix);

  std::size_t rows() const { return matrix_.rows; }
  std::size_t columns() const { return matrix_.columns; }
  const Matrix& matrix() const { return matrix_; }
  bool is_xor() const { return is_xor_; }

  // Writes outputs[r] = the sum over all columns c of coefficient (r, c) * sources[c], for length_bytes.
  //
  // `source_digests`, if given, has one pointer for each source. Where it is not null, the source is digested as well,
  // while it is in the cache, and its leaf_count(size) digests are written there. The caller compares them before it
  // uses the outputs. Bytes of a source beyond length_bytes are ignored.
  void combine(std::span<const Source> sources, std::span<const Output> outputs, std::size_t length_bytes,
               std::span<std::uint64_t* const> source_digests = {}, Isa isa = best_isa()) const;

  // Begins the same source by source, in any order: sets outputs[r] = coefficient (r, column) * source.
  void start(std::size_t column, const Source& source, std::span<const Output> outputs, std::size_t length_bytes,
             Isa isa = best_isa()) const;
  // Adds a source: outputs[r] += coefficient (r, column) * source. Ask for digests with the last source.
  void add(std::size_t column, const Source& source, std::span<const Output> outputs, std::size_t length_bytes,
           Isa isa = best_isa()) const;

 private:
  Matrix matrix_;
  std::vector<Factor> factors_;  // of the matrix, row by row
  bool is_xor_;
};

}  // namespace ckpt::kernels
