// Counts by generating functions. Each cell has a polynomial, whose coefficient of x^k counts the sets of k lost nodes
// that the cell survives. The polynomial of several cells is the product of theirs. A ring is a transfer matrix,
// written as a recurrence. All numbers are whole. They fit into 64 bits for at most 64 nodes, because C(64, 32) < 2^64.
#include <algorithm>

#include "placement/odds/survival.hpp"

namespace ckpt::placement {
namespace {

using Polynomial = std::vector<std::uint64_t>;  // [number of lost nodes]

// Computes sum += factor * x^shift * term, and keeps sum's length.
void add_shifted(Polynomial& sum, const Polynomial& term, std::size_t shift, std::uint64_t factor) {
  for (std::size_t i = 0; i < term.size() && i + shift < sum.size(); ++i) sum[i + shift] += factor * term[i];
}

Polynomial product(const Polynomial& a, const Polynomial& b) {
  Polynomial result(a.size() + b.size() - 1, 0);
  for (std::size_t i = 0; i < b.size(); ++i) add_shifted(result, a, i, b[i]);
  return result;
}

Polynomial all_sets(std::uint32_t nodes) {
  Polynomial sets{1};
  for (std::uint32_t i = 0; i < nodes; ++i) sets = product(sets, {1, 1});
  return sets;
}

Polynomial all_but_the_whole(std::uint32_t nodes) {
  Polynomial sets = all_sets(nodes);
  sets[nodes] = 0;
  return sets;
}

// linear[j]: the polynomial of j positions in a row, of which the last one is alive and no `window` lost ones are next
// to each other. In a ring, the gap that contains position 0 consists of g-1 lost nodes and the live node after them,
// so it can lie in g ways.
Polynomial ring_survivors(std::uint32_t size, std::uint32_t window) {
  std::vector<Polynomial> linear(size + 1, Polynomial(size + 1, 0));
  linear[0][0] = 1;
  for (std::uint32_t j = 1; j <= size; ++j) {
    for (std::uint32_t gap = 1; gap <= std::min(window, j); ++gap) add_shifted(linear[j], linear[j - gap], gap - 1, 1);
  }
  Polynomial survivors(size + 1, 0);
  for (std::uint32_t gap = 1; gap <= std::min(window, size); ++gap) {
    add_shifted(survivors, linear[size - gap], gap - 1, gap);
  }
  return survivors;
}

// A pair of sets survives if a node in the overlap is left, or if the overlap is lost and each side has a node left.
Polynomial pair_survivors(std::uint32_t size, std::uint32_t window) {
  const std::uint32_t side = size - window;
  const std::uint32_t overlap = window - side;
  Polynomial survivors = product(all_but_the_whole(overlap), all_sets(2 * side));
  survivors.resize(size + 1, 0);
  const Polynomial both = product(all_but_the_whole(side), all_but_the_whole(side));
  add_shifted(survivors, both, overlap, 1);
  return survivors;
}

Polynomial cell_survivors(const Cell& cell) {
  if (cell.shape == Shape::ring) return ring_survivors(cell.size, cell.window);
  if (cell.shape == Shape::pair) return pair_survivors(cell.size, cell.window);
  Polynomial survivors = all_sets(cell.size);
  survivors.resize(cell.window);
  return survivors;
}

}  // namespace

Odds survival_by_counting(std::span<const Cell> cells, std::uint32_t lost) {
  Polynomial survivors{1};
  std::uint32_t nodes = 0;
  for (const auto& cell : cells) {
    const Polynomial one = cell_survivors(cell);
    for (std::uint32_t i = 0; i < cell.count; ++i) survivors = product(survivors, one);
    nodes += cell.size * cell.count;
  }
  const Odds::Count count{lost < survivors.size() ? survivors[lost] : 0, all_sets(nodes)[lost]};
  const auto total = static_cast<double>(count.total);
  return {static_cast<double>(count.survivors) / total, static_cast<double>(count.total - count.survivors) / total,
          count};
}

}  // namespace ckpt::placement
