// Coder encodes parity and decodes lost pieces, on the CPU. It applies a matrix of kernels/erasure_code.hpp to bytes,
// and in the same pass computes the leaf digests of what it writes. With one row of ones, this is plain XOR.
//
// Here a source is a range of bytes that the matrix is applied to. A source that is shorter than the outputs counts as
// if zeros followed it. Any length and any alignment will do. combine() stores outputs that are 64-byte aligned past
// the caches, and fences these stores before it returns. The outputs of start() and add() stay in the caches, so call
// these with chunks that fit there. It is faster to wait for the chunks of all sources and to call combine() once.
//
// Digests are those of kernels/digest.hpp. In each call, leaf 0 is the first leaf_size_bytes bytes of a source or
// output. To work in chunks or on several threads, cut at multiples of leaf_size_bytes. For the next chunk, advance the
// pointers to bytes by the length of the chunk, and the pointers to digests by its number of leaves.
//
// A Coder never changes, so threads may share it. It allocates only when it is made, and keeps no pointer after a call.
// Outputs must overlap neither each other nor a source, with one exception: an output of combine() may have exactly the
// address of a source. The output then replaces that source, and the call cannot digest the source.
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

// One output of a Coder: where it writes the bytes, and where their digests.
struct Output {
  std::byte* data;
  std::uint64_t* digests;  // one for each leaf of the output; null: no digests are computed
};

class Coder {
 public:
  // Makes a Coder that applies `matrix`. Throws std::invalid_argument unless 1 <= rows <= max_parity_rows and 1 <=
  // columns <= max_stripe_pieces.
  explicit Coder(Matrix matrix);

  std::size_t rows() const { return matrix_.rows; }
  std::size_t columns() const { return matrix_.columns; }
  const Matrix& matrix() const { return matrix_; }
  bool is_xor() const { return is_xor_; }

  // Sets outputs[r] to the sum over all columns c of coefficient (r, c) * sources[c]. `length_bytes` is the length of
  // each output. Bytes of a source beyond it are ignored.
  //
  // `source_digests` is empty or has one pointer for each source. If a pointer is not null, combine() also digests the
  // source, while it is in the cache, and writes the source's leaf_count(size) digests to this pointer. The caller
  // compares these digests with the expected ones before it uses the outputs.
  void combine(std::span<const Source> sources, std::span<const Output> outputs, std::size_t length_bytes,
               std::span<std::uint64_t* const> source_digests = {}, Isa isa = best_isa()) const;

  // start() with one source, and then add() with each other source, give the same outputs as combine(). The order of
  // the sources does not matter. start() sets outputs[r] to coefficient (r, column) * source.
  void start(std::size_t column, const Source& source, std::span<const Output> outputs, std::size_t length_bytes,
             Isa isa = best_isa()) const;
  // Adds coefficient (r, column) * source to outputs[r]. Ask for digests only in the call with the last source.
  void add(std::size_t column, const Source& source, std::span<const Output> outputs, std::size_t length_bytes,
           Isa isa = best_isa()) const;

 private:
  Matrix matrix_;
  std::vector<Factor> factors_;  // one for each coefficient of the matrix, row by row
  bool is_xor_;
};

}  // namespace ckpt::kernels
