// Pattern is a placement in which positions 0..N-1 stand for the nodes. arrange() (arrange.hpp) later assigns a node to
// each position. The positions are divided into cells, and all copies of a part are stored within one cell. Plain
// values and pure functions.
//
// Papers: GEMINI section 4 and appendix A (group, ring, mixed), REFT sections 4.1 and 4.2 (sharded, sharded+copy).
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace ckpt::placement {

enum class Strategy : std::uint8_t {
  group,         // groups of m store each other's shards; same as `mixed` if m does not divide N
  ring,          // every shard goes to the m-1 next nodes of one ring over all nodes
  mixed,         // GEMINI's Algorithm 1: groups; the last group and the remainder form a ring
  cover,         // ceil(N/m) distinct holder sets, the fewest possible; two of them overlap
  sharded,       // m nodes have the same shard: each stores one m-th of it
  sharded_copy,  // each also stores its ring neighbour's part: two copies, nothing sent (REFT's ARC)
};

inline constexpr Strategy all_strategies[] = {Strategy::group, Strategy::ring,    Strategy::mixed,
                                              Strategy::cover, Strategy::sharded, Strategy::sharded_copy};

std::string_view name(Strategy strategy);
Strategy strategy_named(std::string_view name);  // throws std::invalid_argument, listing the names
inline bool is_sharded(Strategy strategy) { return strategy >= Strategy::sharded; }

enum class Shape : std::uint8_t {
  ring,  // position i's part is on i, i+1, ... i+window-1, cyclically; window == size: all sets are the same
  pair,  // two sets of `window` positions, the first and the last ones, which overlap in the middle
  code,  // an erasure-coded group without copies that survives any `window`-1 losses, and never more
};

// A number of equal cells, one after the other. A cell is a set of positions that store copies for each other.
struct Cell {
  Shape shape = Shape::ring;
  std::uint32_t size = 0;
  std::uint32_t window = 0;  // nodes whose loss together can lose a part
  std::uint32_t count = 1;
  bool operator==(const Cell&) const = default;
};

// The fewest losses in a cell that can be fatal, and the most that it can survive.
std::uint32_t fewest_fatal(const Cell& cell);
std::uint32_t most_survivable(const Cell& cell);

class Pattern {
 public:
  // Throws std::invalid_argument unless 1 <= copies <= nodes.
  Pattern(Strategy strategy, std::uint32_t nodes, std::uint32_t copies);

  Strategy strategy() const { return strategy_; }
  std::uint32_t nodes() const { return nodes_; }
  std::uint32_t copies() const { return copies_; }
  const std::vector<Cell>& cells() const { return cells_; }

  // How many positions hold each part, the one that captures it included.
  std::uint32_t holders_per_part() const { return cells_.front().window; }
  // How many different sets of nodes hold something. The odds at k = m depend on nothing else.
  std::uint32_t distinct_holder_sets() const;

  struct Place {
    std::uint32_t cell = 0;   // number of the cell; equal cells have different numbers
    std::uint32_t first = 0;  // first position of the cell
    const Cell* kind = nullptr;
  };
  Place place_of(std::uint32_t position) const;
  // The positions that hold the part of `position`: itself, then its successors within the set. O(copies).
  std::vector<std::uint32_t> holders(std::uint32_t position) const;

 private:
  Strategy strategy_;
  std::uint32_t nodes_;
  std::uint32_t copies_;
  std::vector<Cell> cells_;
};

}  // namespace ckpt::placement
