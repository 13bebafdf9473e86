// Coder encodes parity and decodes lost pieces, on the CPU. It applies a matrix of kernels/erasure_code.hpp to bytes,
// and in the same pass computes the leaf digests of what it writes. If all coefficients are one, this is plain XOR.
//
// A source may be shorter than the outputs; zeros follow it then. Any length and any alignment will do. combine()
// stores outputs that are 64-byte aligned past the caches, and fences these stores before it returns. Outputs that grow
// source by source stay in the caches, so work on chunks that fit there. It is faster to wait for the chunks of all
// sources and to combine them in one call.
//
// Digests are those of kernels/digest.hpp, and leaf 0 begins at the first byte of the call. To work in chunks or on
// several threads, cut at multiples of leaf_size_bytes, and advance all pointers; those of digests by leaves.
//
// A Coder never changes, so threads may share it. It allocates only when it is made, and keeps no pointer after a call.
// Outputs overlap neither each other nor a source. There is one exception: an output of combine() may have exactly the
// address of a source. It then replaces that source, which cannot be digested in the same call.
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
