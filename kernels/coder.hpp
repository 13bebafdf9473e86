// Erasure coding of bytes: a Coder applies a matrix of kernels/erasure_code.hpp, be it for encoding or decoding, and
// makes the leaf digests of what it writes in the same pass. Where all coefficients are one it is plain XOR.
//
// A source may be shorter than the outputs: it counts as if zeros followed. Lengths and alignments are free. combine()
// streams outputs that are 64-byte aligned past the caches, and fences them before it returns. Sums that grow source by
// source stay in the caches: work on chunks that fit, or better wait for the chunks of all sources and combine them.
//
// Digests are those of kernels/digest.hpp with leaf 0 at the first byte of the call. To work in chunks, or on several
// threads, cut at multiples of leaf_size_bytes and move all pointers along, those of digests by leaves.
//
// A Coder is immutable and safe to share; it allocates when it is made and never again. Sources and outputs are
// borrowed for the call. Outputs overlap neither each other nor a source; but an output of combine() may be exactly a
// source, at the same address: that source is then replaced, and cannot be digested in the same call.
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

// What a coder writes: the bytes, and the digests of their leaves where `digests` is not null.
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

  // outputs[r] = the sum over all columns c of coefficient (r, c) * sources[c], for length_bytes.
  //
  // With `source_digests`, one pointer for each source, sources are digested as well while they are in the cache: where
  // the pointer is not null, their leaf_count(size) digests are written to it, for the caller to compare before what
  // was made of them is used. Bytes of a source beyond length_bytes are ignored.
  void combine(std::span<const Source> sources, std::span<const Output> outputs, std::size_t length_bytes,
               std::span<std::uint64_t* const> source_digests = {}, Isa isa = best_isa()) const;

  // The same, source by source, in any order: outputs[r] = coefficient (r, column) * source ...
  void start(std::size_t column, const Source& source, std::span<const Output> outputs, std::size_t length_bytes,
             Isa isa = best_isa()) const;
  // ... and outputs[r] += coefficient (r, column) * source. Ask for digests with the last source.
  void add(std::size_t column, const Source& source, std::span<const Output> outputs, std::size_t length_bytes,
           Isa isa = best_isa()) const;

 private:
  Matrix matrix_;
  std::vector<Factor> factors_;  // of the matrix, row by row
  bool is_xor_;
};

}  // namespace ckpt::kernels
