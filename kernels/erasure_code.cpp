#include "kernels/erasure_code.hpp"

#include <algorithm>
#include <array>
#include <string>

#include "kernels/gf256.hpp"

namespace ckpt::kernels {

namespace {

constexpr std::size_t first_column = max_parity_rows;  // x of the Cauchy matrix are the rows 0 .. 3, y the columns + 4

Matrix identity(std::size_t size) {
  Matrix matrix{.rows = size, .columns = size, .coefficients = std::vector<std::uint8_t>(size * size)};
  for (std::size_t i = 0; i < size; ++i) matrix.at(i, i) = 1;
  return matrix;
}

void scale_row(Matrix& matrix, std::size_t row, std::uint8_t factor) {
  for (std::size_t column = 0; column < matrix.columns; ++column) {
    matrix.at(row, column) = gf256::multiply(matrix.at(row, column), factor);
  }
}

void add_row(Matrix& matrix, std::size_t to, std::size_t from, std::uint8_t factor) {
  for (std::size_t column = 0; column < matrix.columns; ++column) {
    matrix.at(to, column) ^= gf256::multiply(matrix.at(from, column), factor);
  }
}

void swap_rows(Matrix& matrix, std::size_t a, std::size_t b) {
  for (std::size_t column = 0; column < matrix.columns; ++column) std::swap(matrix.at(a, column), matrix.at(b, column));
}

// Inverts by Gauss and Jordan. Any data() rows of the generator are independent, so there is always a pivot.
Matrix inverted(Matrix matrix) {
  Matrix result = identity(matrix.rows);
  for (std::size_t column = 0; column < matrix.columns; ++column) {
    std::size_t pivot = column;
    while (matrix.at(pivot, column) == 0) ++pivot;
    swap_rows(matrix, pivot, column);
    swap_rows(result, pivot, column);
    const std::uint8_t factor = gf256::inverse(matrix.at(column, column));
    scale_row(matrix, column, factor);
    scale_row(result, column, factor);
    for (std::size_t row = 0; row < matrix.rows; ++row) {
      const std::uint8_t multiple = matrix.at(row, column);
      if (row == column || multiple == 0) continue;
      add_row(matrix, row, column, multiple);
      add_row(result, row, column, multiple);
    }
  }
  return result;
}

Matrix product(const Matrix& left, const Matrix& right) {
  Matrix result{.rows = left.rows,
                .columns = right.columns,
                .coefficients = std::vector<std::uint8_t>(left.rows * right.columns)};
  for (std::size_t row = 0; row < left.rows; ++row) {
    for (std::size_t i = 0; i < left.columns; ++i) {
      for (std::size_t column = 0; column < right.columns; ++column) {
        result.at(row, column) ^= gf256::multiply(left.at(row, i), right.at(i, column));
      }
    }
  }
  return result;
}

}  // namespace

ErasureCode::ErasureCode(std::size_t data, std::size_t parity) : data_(data), parity_(parity) {
  if (data < 1 || parity < 1 || parity > max_parity_rows || data > max_stripe_pieces - parity) {
    throw std::invalid_argument("no erasure code has " + std::to_string(data) + " data and " + std::to_string(parity) +
                                " parity pieces: it needs at least one of each, at most " +
                                std::to_string(max_parity_rows) + " parity pieces, and at most " +
                                std::to_string(max_stripe_pieces) + " in all");
  }
}

std::uint8_t ErasureCode::coefficient(std::size_t row, std::size_t column) {
  const std::size_t y = first_column + column;
  return gf256::divide(static_cast<std::uint8_t>(y), static_cast<std::uint8_t>(y ^ row));
}

// Returns the generator's rows for these positions. The rows of data pieces are rows of the identity.
Matrix ErasureCode::generator_rows(std::span<const std::size_t> positions) const {
  Matrix rows{
      .rows = positions.size(), .columns = data_, .coefficients = std::vector<std::uint8_t>(positions.size() * data_)};
  for (std::size_t row = 0; row < positions.size(); ++row) {
    const std::size_t position = positions[row];
    if (position < data_) {
      rows.at(row, position) = 1;
    } else {
      for (std::size_t column = 0; column < data_; ++column) {
        rows.at(row, column) = coefficient(position - data_, column);
      }
    }
  }
  return rows;
}

Matrix ErasureCode::encoder() const {
  std::array<std::size_t, max_parity_rows> positions{};
  for (std::size_t row = 0; row < parity_; ++row) positions[row] = data_ + row;
  return generator_rows(std::span(positions).first(parity_));
}

Matrix ErasureCode::decoder(std::span<const std::size_t> sources, std::span<const std::size_t> wanted) const {
  std::array<bool, max_stripe_pieces> given{};
  for (const auto positions : {sources, wanted}) {
    if (std::any_of(positions.begin(), positions.end(), [&](std::size_t position) { return position >= pieces(); })) {
      throw std::invalid_argument("a wanted piece or a source has no position in a stripe of " +
                                  std::to_string(pieces()) + " pieces: positions are numbered from 0");
    }
  }
  for (const std::size_t position : sources) {
    if (given[position]) {
      throw std::invalid_argument("piece " + std::to_string(position) +
                                  " of a stripe is a source twice: name each source once");
    }
    given[position] = true;
  }
  if (sources.size() < data_) {
    throw BeyondTolerance("a stripe of " + std::to_string(data_) + " data and " + std::to_string(parity_) +
                          " parity pieces cannot be decoded from " + std::to_string(sources.size()) +
                          " pieces: take the lost pieces from another tier");
  }
  if (sources.size() > data_) {
    throw std::invalid_argument("a stripe is decoded from exactly " + std::to_string(data_) + " pieces: leave out " +
                                std::to_string(sources.size() - data_));
  }
  return product(generator_rows(wanted), inverted(generator_rows(sources)));
}

}  // namespace ckpt::kernels
