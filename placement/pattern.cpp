#include "placement/pattern.hpp"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace ckpt::placement {
namespace {

constexpr std::string_view names[] = {"group", "ring", "mixed", "cover", "sharded", "sharded+copy"};

// Makes cells of `copies` nodes each. Nodes that are left over join the last cell, which is then larger.
std::vector<Cell> cells_with_large_last(std::uint32_t nodes, std::uint32_t copies, std::uint32_t window) {
  const std::uint32_t count = nodes / copies;
  const std::uint32_t rest = nodes % copies;
  if (rest == 0) return {{Shape::ring, copies, window, count}};
  std::vector<Cell> cells;
  if (count > 1) cells.push_back({Shape::ring, copies, window, count - 1});
  cells.push_back({Shape::ring, copies + rest, window, 1});
  return cells;
}

std::vector<Cell> cells_of(Strategy strategy, std::uint32_t nodes, std::uint32_t copies) {
  switch (strategy) {
    case Strategy::ring:
      return {{Shape::ring, nodes, copies, 1}};
    case Strategy::sharded:
      return cells_with_large_last(nodes, copies, 1);
    case Strategy::sharded_copy:
      return cells_with_large_last(nodes, copies, std::min(copies, 2u));
    case Strategy::group:
    case Strategy::mixed:
    case Strategy::cover:
      break;
  }
  auto cells = cells_with_large_last(nodes, copies, copies);
  if (strategy == Strategy::cover && cells.back().size > copies) cells.back().shape = Shape::pair;
  return cells;
}

}  // namespace

std::string_view name(Strategy strategy) { return names[static_cast<std::size_t>(strategy)]; }

Strategy strategy_named(std::string_view name) {
  const auto* const found = std::find(std::begin(names), std::end(names), name);
  if (found != std::end(names)) return static_cast<Strategy>(found - std::begin(names));
  std::string known;
  for (const auto each : names) known += (known.empty() ? "" : ", ") + std::string(each);
  throw std::invalid_argument("there is no placement strategy '" + std::string(name) + "': choose one of " + known);
}

std::uint32_t fewest_fatal(const Cell& cell) { return cell.window; }

std::uint32_t most_survivable(const Cell& cell) {
  switch (cell.shape) {
    case Shape::ring:
      return cell.size - (cell.size + cell.window - 1) / cell.window;  // every window-th position is left
    case Shape::pair:
      return cell.size - 1;  // one position of the overlap is left
    case Shape::code:
      break;
  }
  return cell.window - 1;
}

Pattern::Pattern(Strategy strategy, std::uint32_t nodes, std::uint32_t copies)
    : strategy_(strategy), nodes_(nodes), copies_(copies) {
  if (nodes == 0) throw std::invalid_argument("a placement needs at least one node, not 0");
  if (copies == 0) throw std::invalid_argument("a placement needs at least one copy, the node's own, not 0");
  if (copies > nodes) {
    throw std::invalid_argument(std::to_string(copies) + " copies need as many nodes, but there are only " +
                                std::to_string(nodes) + ": ask for fewer copies or add nodes");
  }
  cells_ = cells_of(strategy, nodes, copies);
}

std::uint32_t Pattern::distinct_holder_sets() const {
  std::uint32_t sets = 0;
  for (const auto& cell : cells_) {
    const std::uint32_t in_ring = cell.window == cell.size ? 1 : cell.size;
    sets += cell.count * (cell.shape == Shape::pair ? 2 : in_ring);
  }
  return sets;
}

Pattern::Place Pattern::place_of(std::uint32_t position) const {
  std::uint32_t cell_index = 0;
  std::uint32_t first = 0;
  for (const auto& cell : cells_) {
    const std::uint32_t in_row = (position - first) / cell.size;
    if (in_row < cell.count) return {cell_index + in_row, first + in_row * cell.size, &cell};
    cell_index += cell.count;
    first += cell.count * cell.size;
  }
  throw std::out_of_range("there is no position " + std::to_string(position) + ": positions are numbered from 0 to " +
                          std::to_string(nodes_ - 1));
}

std::vector<std::uint32_t> Pattern::holders(std::uint32_t position) const {
  const auto [index, first, cell] = place_of(position);
  std::uint32_t start = first;
  std::uint32_t size = cell->size;
  if (cell->shape == Shape::pair) {
    // Positions in the overlap could use either set. Half of them use the first and half the second, so that positions
    // store about as much as each other.
    const std::uint32_t only_one = cell->size - cell->window;
    const std::uint32_t overlap = cell->window - only_one;
    if (position - first >= only_one + (overlap + 1) / 2) start = first + only_one;
    size = cell->window;
  }
  std::vector<std::uint32_t> holders;
  holders.reserve(cell->window);
  for (std::uint32_t i = 0; i < cell->window; ++i) holders.push_back(start + (position - start + i) % size);
  return holders;
}

}  // namespace ckpt::placement
