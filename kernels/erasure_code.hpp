// ErasureCode says which coefficients encode p parity pieces from k data pieces, and which decode lost pieces. Any p of
// the k + p pieces may be lost. kernels/coder.hpp applies the coefficients to bytes.
//
// A stripe is k data pieces with the p parity pieces encoded from them. Its pieces have positions: data at 0 .. k-1,
// then parity rows 0 .. p-1 at k .. k+p-1. A parity row is a linear combination of the data over GF(2^8). The
// coefficients are a Cauchy matrix, with its columns scaled so that the first row is all ones:
//
//   coefficient(row, column) = (4 + column) / ((4 + column) xor row)
//
// So the first parity row is plain XOR. A coefficient depends on its row and column alone, not on k and p. Every square
// submatrix of a Cauchy matrix is invertible, scaled or not. That is why the code survives any p losses.
//
// All objects here are plain values, which threads may share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <vector>

namespace ckpt::kernels {

inline constexpr std::size_t max_parity_rows = 4;
inline constexpr std::size_t max_stripe_pieces = 64;  // data and parity pieces together

// Thrown if too few pieces are left to decode the lost ones.
struct BeyondTolerance : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// A matrix of coefficients: it makes `rows` outputs from `columns` sources.
struct Matrix {
  std::size_t rows = 0;
  std::size_t columns = 0;
  std::vector<std::uint8_t> coefficients = {};  // row by row

  std::uint8_t at(std::size_t row, std::size_t column) const { return coefficients[row * columns + column]; }
  std::uint8_t& at(std::size_t row, std::size_t column) { return coefficients[row * columns + column]; }
  bool operator==(const Matrix&) const = default;
};

class ErasureCode {
 public:
  // `data` is k, `parity` is p. Throws std::invalid_argument unless data >= 1, 1 <= parity <= 4 and data + parity
  // <= 64.
  ErasureCode(std::size_t data, std::size_t parity);

  std::size_t data() const { return data_; }
  std::size_t parity() const { return parity_; }
  std::size_t pieces() const { return data_ + parity_; }

  // Returns the coefficient by which the formula above multiplies data piece `column` for parity row `row`.
  static std::uint8_t coefficient(std::size_t row, std::size_t column);

  // Returns the matrix that makes all parity rows from all data pieces.
  Matrix encoder() const;

  // Returns the matrix that makes the pieces at the positions `wanted` (data or parity) from the pieces at the
  // positions `sources`. `sources` are data() different positions, in the order in which the sources are later given to
  // a Coder. O(k^3): call it once for each set of lost pieces, not for each chunk. Throws BeyondTolerance if there are
  // fewer sources than data(), and std::invalid_argument if there are more, or if a source repeats or a position does
  // not exist.
  Matrix decoder(std::span<const std::size_t> sources, std::span<const std::size_t> wanted) const;

 private:
  Matrix generator_rows(std::span<const std::size_t> positions) const;

  std::size_t data_;
  std::size_t parity_;
};

}  // namespace ckpt::kernels
