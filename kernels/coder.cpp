#include "kernels/coder.hpp"

#include <isa-l/erasure_code.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <stdexcept>
#include <string>

#include "kernels/leaf_hasher.hpp"

namespace ckpt::kernels {

namespace {

// Small enough that the tiles of all sources stay in the second cache, and of a few sources in the first.
constexpr std::size_t tile_size_bytes = 4096;
static_assert(leaf_size_bytes % tile_size_bytes == 0 && tile_size_bytes % stripe_size_bytes == 0);

alignas(64) constexpr std::byte zeros[tile_size_bytes] = {};

unsigned char* isal_bytes(const std::byte* data) {  // ISA-L reads through pointers that are not const
  return const_cast<unsigned char*>(reinterpret_cast<const unsigned char*>(data));
}

// The digests of one piece's leaves, tile by tile in order.
class LeafDigester {
 public:
  void feed(const StripeLoops& loops, const std::byte* piece, std::size_t length_bytes, std::size_t offset,
            std::size_t size_bytes, std::uint64_t* digests) {
    const std::size_t leaf = offset / leaf_size_bytes, begin = offset % leaf_size_bytes;
    const std::size_t leaf_bytes = leaf_length(length_bytes, leaf);
    const std::byte* data = piece + leaf * leaf_size_bytes;
    if (leaf_bytes <= short_leaf_max_bytes) {
      digests[leaf] = short_leaf_digest(data, leaf_bytes);
      return;
    }
    const std::size_t first = begin / stripe_size_bytes;
    const std::size_t last = std::min((begin + size_bytes) / stripe_size_bytes, whole_stripes(leaf_bytes));
    loops.digest(hasher_.accumulators, first, data + begin, last - first);
    if (begin + size_bytes < leaf_bytes) return;
    digests[leaf] = hasher_.finish(data + leaf_bytes - stripe_size_bytes, leaf_bytes);
    hasher_ = LeafHasher{};
  }

  // As feed(), while the tile's bytes are copied into the piece from where they were made.
  void feed_copying(const StripeLoops& loops, const std::byte* tile, std::byte* piece, std::size_t length_bytes,
                    std::size_t offset, std::size_t size_bytes, std::uint64_t* digests) {
    std::byte* to = piece + offset;
    const std::size_t leaf_bytes = leaf_length(length_bytes, offset / leaf_size_bytes);
    const std::size_t begin = offset % leaf_size_bytes;
    const bool aligned = reinterpret_cast<std::uintptr_t>(to) % stripe_size_bytes == 0;
    if (!aligned || leaf_bytes <= short_leaf_max_bytes) {
      std::memcpy(to, tile, size_bytes);
      if (digests != nullptr) feed(loops, piece, length_bytes, offset, size_bytes, digests);
      return;
    }
    const std::size_t first = begin / stripe_size_bytes;
    const std::size_t last = std::min((begin + size_bytes) / stripe_size_bytes, whole_stripes(leaf_bytes));
    const std::size_t streamed = (last - first) * stripe_size_bytes;
    loops.digest_and_copy(hasher_.accumulators, first, tile, tile, to, last - first);
    std::memcpy(to + streamed, tile + streamed, size_bytes - streamed);
    if (begin + size_bytes < leaf_bytes) return;
    const std::byte* leaf_end = to + size_bytes;
    if (digests != nullptr) {
      digests[offset / leaf_size_bytes] = hasher_.finish(leaf_end - stripe_size_bytes, leaf_bytes);
    }
    hasher_ = LeafHasher{};
  }

 private:
  LeafHasher hasher_;
};

void prefetch_tile(const std::byte* data) {
  for (std::size_t at = 0; at < tile_size_bytes; at += stripe_size_bytes) __builtin_prefetch(data + at);
}

}  // namespace

Coder::Coder(Matrix matrix) : matrix_(std::move(matrix)) {
  if (rows() < 1 || rows() > max_parity_rows || columns() < 1 || columns() > max_stripe_pieces ||
      matrix_.coefficients.size() != rows() * columns()) {
    throw std::invalid_argument("a coder has 1 to " + std::to_string(max_parity_rows) + " rows and 1 to " +
                                std::to_string(max_stripe_pieces) + " columns, not " + std::to_string(rows()) +
                                " and " + std::to_string(columns()));
  }
  const auto& coefficients = matrix_.coefficients;
  if (rows() == 1 && std::all_of(coefficients.begin(), coefficients.end(), [](auto c) { return c == 1; })) return;
  tables_.resize(32 * coefficients.size());
  ec_init_tables(static_cast<int>(columns()), static_cast<int>(rows()), matrix_.coefficients.data(), tables_.data());
}

namespace {

// Makes one tile of all outputs. Sources that end inside it cut it into runs; those that have ended are zeros.
class TileMaker {
 public:
  TileMaker(const Matrix& matrix, const std::vector<unsigned char>& tables, std::span<const Source> sources,
            const StripeLoops& loops)
      : matrix_(matrix), tables_(tables), sources_(sources), loops_(loops) {}

  void make(std::size_t offset, std::size_t size_bytes, std::byte* const* tiles) {
    std::size_t run = 0;
    for (std::size_t done = 0; done < size_bytes; done += run) {
      const std::size_t at = offset + done;
      run = size_bytes - done;
      std::size_t living = 0;
      for (std::size_t column = 0; column < sources_.size(); ++column) {
        const Source& source = sources_[column];
        if (source.size_bytes > at) {
          inputs_[tables_.empty() ? living : column] = source.data + at;
          run = std::min(run, source.size_bytes - at);
          ++living;
        } else if (!tables_.empty()) {
          inputs_[column] = zeros;
        }
      }
      if (tables_.empty()) {
        loops_.exclusive_or(inputs_.data(), living, tiles[0] + done, run);
      } else {
        multiply(tiles, done, run);
      }
    }
  }

 private:
  void multiply(std::byte* const* tiles, std::size_t done, std::size_t run) {
    std::array<unsigned char*, max_stripe_pieces> from;
    std::array<unsigned char*, max_parity_rows> to;
    for (std::size_t column = 0; column < matrix_.columns; ++column) from[column] = isal_bytes(inputs_[column]);
    for (std::size_t row = 0; row < matrix_.rows; ++row) to[row] = isal_bytes(tiles[row] + done);
    ec_encode_data(static_cast<int>(run), static_cast<int>(matrix_.columns), static_cast<int>(matrix_.rows),
                   const_cast<unsigned char*>(tables_.data()), from.data(), to.data());
  }

  const Matrix& matrix_;
  const std::vector<unsigned char>& tables_;
  std::span<const Source> sources_;
  const StripeLoops& loops_;
  std::array<const std::byte*, max_stripe_pieces> inputs_;
};

}  // namespace

void Coder::combine(std::span<const Source> sources, std::span<const Output> outputs, std::size_t length_bytes,
                    std::span<std::uint64_t* const> source_digests, Isa isa) const {
  const StripeLoops& loops = stripe_loops(isa);
  alignas(64) std::byte memory[max_parity_rows][tile_size_bytes];
  std::array<std::byte*, max_parity_rows> tiles;
  for (std::size_t row = 0; row < rows(); ++row) tiles[row] = memory[row];
  std::array<LeafDigester, max_parity_rows> made;
  std::array<LeafDigester, max_stripe_pieces> read;
  TileMaker maker(matrix_, tables_, sources, loops);

  std::size_t size = 0;
  for (std::size_t offset = 0; offset < length_bytes; offset += size) {
    size = std::min(tile_size_bytes, length_bytes - offset);
    for (std::size_t column = 0; column < source_digests.size(); ++column) {
      const std::size_t length = std::min(length_bytes, sources[column].size_bytes);
      if (source_digests[column] == nullptr || offset >= length) continue;
      read[column].feed(loops, sources[column].data, length, offset, std::min(size, length - offset),
                        source_digests[column]);
    }
    if (!is_xor()) {
      for (const Source& source : sources) prefetch_tile(source.data + offset + tile_size_bytes);
    }
    maker.make(offset, size, tiles.data());
    for (std::size_t row = 0; row < rows(); ++row) {
      made[row].feed_copying(loops, tiles[row], outputs[row].data, length_bytes, offset, size, outputs[row].digests);
    }
  }
  streaming_fence();
}

void Coder::take(Before before, std::size_t column, const Source& source, std::span<const Output> outputs,
                 std::size_t length_bytes, Isa isa) const {
  const StripeLoops& loops = stripe_loops(isa);
  std::array<LeafDigester, max_parity_rows> made;
  std::size_t size = 0;
  for (std::size_t offset = 0; offset < length_bytes; offset += size) {
    size = std::min(tile_size_bytes, length_bytes - offset);
    const std::size_t given = offset < source.size_bytes ? std::min(size, source.size_bytes - offset) : 0;
    std::array<unsigned char*, max_parity_rows> to;
    for (std::size_t row = 0; row < rows(); ++row) {
      to[row] = isal_bytes(outputs[row].data + offset);
      if (before == Before::nothing) std::memset(to[row], 0, size);
    }
    if (given > 0 && is_xor()) {
      const std::array<const std::byte*, 2> both = {outputs[0].data + offset, source.data + offset};
      loops.exclusive_or(both.data(), both.size(), outputs[0].data + offset, given);
    } else if (given > 0) {
      ec_encode_data_update(static_cast<int>(given), static_cast<int>(columns()), static_cast<int>(rows()),
                            static_cast<int>(column), const_cast<unsigned char*>(tables_.data()),
                            isal_bytes(source.data + offset), to.data());
    }
    for (std::size_t row = 0; row < rows(); ++row) {
      const auto& [data, digests] = outputs[row];
      if (digests != nullptr) made[row].feed(loops, data, length_bytes, offset, size, digests);
    }
  }
}

void Coder::start(std::size_t column, const Source& source, std::span<const Output> outputs, std::size_t length_bytes,
                  Isa isa) const {
  take(Before::nothing, column, source, outputs, length_bytes, isa);
}

void Coder::add(std::size_t column, const Source& source, std::span<const Output> outputs, std::size_t length_bytes,
                Isa isa) const {
  take(Before::sum, column, source, outputs, length_bytes, isa);
}

}  // namespace ckpt::kernels
