// Prints a table of what each protection costs and gives: the bytes stored and sent, the probability that no shard is
// lost with k of 48 nodes, and the time that one thread of a node takes per GiB.
//
//   encode  Copies: to copy and digest the received bytes. Parity: to verify the sources, and to compute parity and its
//           digests. Per GiB of the node's shard.
//   decode  Copies: to copy and verify. Parity: to verify the sources, and to decode as many pieces as may be lost. Per
//           GiB of lost pieces.
//
// Buffers are not in the caches. All sides run in one process. The table has the form that docs/protection.md shows.
#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "bench/comparison.hpp"
#include "kernels/coder.hpp"
#include "placement/protection.hpp"

namespace {

using namespace ckpt::kernels;
using ckpt::placement::Protection;

constexpr std::size_t piece_bytes = std::size_t{64} << 20;
constexpr std::uint32_t nodes = 48;
constexpr std::size_t most_pieces = 9;

struct Piece {
  std::byte* data;
  std::vector<std::uint64_t> digests;
};

std::vector<Piece> make_pieces() {
  std::vector<Piece> pieces;
  for (std::size_t i = 0; i < most_pieces; ++i) {
    void* memory =
        mmap(nullptr, piece_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (memory == MAP_FAILED) std::abort();
    std::memset(memory, static_cast<int>(i + 1), piece_bytes);
    pieces.push_back({static_cast<std::byte*>(memory), std::vector<std::uint64_t>(leaf_count(piece_bytes))});
  }
  return pieces;
}

// Verifies `sources` pieces and makes parity rows of them.
void combine(const Coder& coder, std::vector<Piece>& pieces) {
  std::vector<Source> sources;
  std::vector<std::uint64_t*> digests;
  std::vector<Output> outputs;
  for (std::size_t i = 0; i < coder.columns(); ++i) {
    sources.push_back({pieces[i].data, piece_bytes});
    digests.push_back(pieces[i].digests.data());
  }
  for (std::size_t row = 0; row < coder.rows(); ++row) {
    Piece& piece = pieces[coder.columns() + row];
    outputs.push_back({piece.data, piece.digests.data()});
  }
  coder.combine(sources, outputs, piece_bytes, digests);
}

void copy(std::vector<Piece>& pieces) {
  const std::vector<Source> sources{{pieces[0].data, piece_bytes}};
  const auto offsets = segment_offsets(std::span<const Source>(sources));
  gather_leaves(sources, offsets, pieces[1].data, 0, leaf_count(piece_bytes), pieces[1].digests.data());
}

Coder encoder_of(const Protection& protection) {
  return Coder(ErasureCode(protection.members - protection.rows, protection.rows).encoder());
}

// Decodes as many data pieces as may be lost, from the other data pieces and all parity.
Coder decoder_of(const Protection& protection) {
  const std::size_t parity = protection.rows, data = protection.members - parity;
  std::vector<std::size_t> sources, wanted;
  for (std::size_t position = 0; position < data + parity; ++position) {
    (position < parity ? wanted : sources).push_back(position);
  }
  return Coder(ErasureCode(data, parity).decoder(sources, wanted));
}

// One measured cell of the table. Its work handles `gib` GiB of what the column counts.
struct Cell {
  std::function<void()> work;
  double gib;
  double ms_per_gib = 0;
};

// Measures all cells together.
void measure_cells(std::vector<Cell>& encode, std::vector<Cell>& decode, const std::vector<Protection>& protections,
                   int rounds) {
  std::vector<ckpt::bench::Side> sides;
  for (std::size_t i = 0; i < protections.size(); ++i) {
    sides.push_back(ckpt::bench::timed("encode/" + name(protections[i]), 0, encode[i].work));
    sides.push_back(ckpt::bench::timed("decode/" + name(protections[i]), 0, decode[i].work));
  }
  const auto found = ckpt::bench::measure("protection", sides, rounds);
  for (std::size_t i = 0; i < protections.size(); ++i) {
    encode[i].ms_per_gib = 1e3 * found[2 * i].seconds / encode[i].gib;
    decode[i].ms_per_gib = 1e3 * found[2 * i + 1].seconds / decode[i].gib;
  }
}

std::string odds(const Protection& protection, std::uint32_t lost) {
  char text[32];
  std::snprintf(text, sizeof text, "%.2f %%", 100 * recoverable(protection, nodes, lost));
  return text;
}

}  // namespace

int main(int argc, char** argv) {
  ckpt::bench::initialize(&argc, argv);
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 15;
  std::vector<Piece> pieces = make_pieces();
  const std::vector<Protection> protections = {Protection::of_copies(2), Protection::of_copies(3),
                                               Protection::of_parity(4, 1), Protection::of_parity(8, 1),
                                               Protection::of_parity(8, 2)};
  const double piece_gib = static_cast<double>(piece_bytes) / (1 << 30);
  std::vector<Cell> encode, decode;
  for (const Protection& protection : protections) {
    if (!protection.has_parity()) {
      // A node receives and stores one copy fewer than there are.
      encode.push_back({[&] { copy(pieces); }, piece_gib / (protection.copies - 1)});
      decode.push_back({[&] { copy(pieces); }, piece_gib});
    } else {
      const Coder encoder = encoder_of(protection), decoder = decoder_of(protection);
      encode.push_back(
          {[&, encoder] { combine(encoder, pieces); }, piece_gib * static_cast<double>(encoder.columns())});
      decode.push_back({[&, decoder] { combine(decoder, pieces); }, piece_gib * static_cast<double>(decoder.rows())});
    }
  }
  measure_cells(encode, decode, protections, rounds);
  std::puts("| protection | stored besides | sent | k = 1 | k = 2 | k = 3 | k = 4 | encode | decode |");
  std::puts("|---|---|---|---|---|---|---|---|---|");
  for (std::size_t i = 0; i < protections.size(); ++i) {
    const Protection& protection = protections[i];
    std::printf("| %s | %.0f %% | %.0f %% |", name(protection).c_str(), 100 * extra_stored(protection),
                100 * sent(protection));
    for (std::uint32_t lost = 1; lost <= 4; ++lost) std::printf(" %s |", odds(protection, lost).c_str());
    std::printf(" %.0f ms/GiB | %.0f ms/GiB |\n", encode[i].ms_per_gib, decode[i].ms_per_gib);
  }
  // Compares copies(2) with xor(8), which sends as many bytes and stores far fewer.
  const double copy_ms = encode[0].ms_per_gib, xor8_ms = encode[3].ms_per_gib;
  ckpt::bench::print_ratio({.name = "encode_xor8_vs_copy",
                            .value = copy_ms / xor8_ms,
                            .ours = xor8_ms,
                            .theirs = copy_ms,
                            .unit = "ms/GiB"});
}
