// Pattern is a placement in which positions 0..N-1 stand for the N nodes. arrange() (arrange.hpp) later assigns a node
// to each position. A part is a byte range of a shard, or all of it. The positions are divided into cells, and all
// copies of a part are stored within one cell. Plain values and pure functions.
//
// Papers: GEMINI section 4 and appendix A (group, ring, mixed), REFT sections 4.1 and 4.2 (sharded, sharded+copy).
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace ckpt::placement {

// m is the argument `copies` of Pattern. With `sharded` and `sharded_copy`, m nodes train with the same shard. With the
// other strategies, every shard has m copies, of which one is on the node that captures it.
enum class Strategy : std::uint8_t {
  group,         // groups of m store each other's shards; same as `mixed` if m does not divide N
  ring,          // every shard goes to the m-1 next nodes of one ring over all nodes
  mixed,         // GEMINI's Algorithm 1: groups of m; the last group and the N mod m nodes left over form a ring
  cover,         // ceil(N/m) different sets of holders, the fewest possible; two of them overlap
  sharded,       // each of m nodes with the same shard stores one m-th of it
  sharded_copy,  // the same, and each also stores its ring neighbour's part; nothing is sent (REFT's ARC)
};

inline constexpr Strategy all_strategies[] = {Strategy::group, Strategy::ring,    Strategy::mixed,
                                              Strategy::cover, Strategy::sharded, Strategy::sharded_copy};

std::string_view name(Strategy strategy);
Strategy strategy_named(std::string_view name);  // throws std::invalid_argument, listing the names
inline bool is_sharded(Strategy strategy) { return strategy >= Strategy::sharded; }

// Which positions of a cell hold the same part. `size` and `window` are those of Cell.
enum class Shape : std::uint8_t {
  ring,  // position i's part is on i, i+1, ... i+window-1, cyclically; if window == size, all positions hold all parts
  pair,  // two sets, the first `window` positions and the last `window` positions, which overlap in the middle
  code,  // an erasure-coded group without copies that survives any `window`-1 losses, and never more
};

// `count` equal cells, one after the other. A cell is a set of positions that store copies for each other.
struct Cell {
  Shape shape = Shape::ring;
  std::uint32_t size = 0;    // positions of one cell
  std::uint32_t window = 0;  // the fewest positions whose loss together can lose a part
  std::uint32_t count = 1;   // how many such cells
  bool operator==(const Cell&) const = default;
};

// fewest_fatal(): the fewest nodes of a cell whose loss can lose a part. most_survivable(): the most nodes of a cell
// that can be lost while every part still has a holder.
std::uint32_t fewest_fatal(const Cell& cell);
std::uint32_t most_survivable(const Cell& cell);

class Pattern {
 public:
  // `copies`: m of Strategy. Throws std::invalid_argument unless 1 <= copies <= nodes.
  Pattern(Strategy strategy, std::uint32_t nodes, std::uint32_t copies);

  Strategy strategy() const { return strategy_; }
  std::uint32_t nodes() const { return nodes_; }
  std::uint32_t copies() const { return copies_; }
  const std::vector<Cell>& cells() const { return cells_; }

  // How many positions hold each part, the one that captures it included.
  std::uint32_t holders_per_part() const { return cells_.front().window; }
  // How many different sets of nodes hold the parts. If m nodes are lost, the probability that all parts survive
  // depends only on N, m and this number.
  std::uint32_t distinct_holder_sets() const;

  // Where a position is.
  struct Place {
    std::uint32_t cell = 0;      // number of the cell; each of `count` equal cells has its own
    std::uint32_t first = 0;     // first position of the cell
    const Cell* kind = nullptr;  // an element of cells(), valid as long as the Pattern
  };
  Place place_of(std::uint32_t position) const;
  // The positions that hold the part that `position` captures: first `position`, then the others in cyclic order.
  // O(copies).
  std::vector<std::uint32_t> holders(std::uint32_t position) const;

 private:
  Strategy strategy_;
  std::uint32_t nodes_;
  std::uint32_t copies_;
  std::vector<Cell> cells_;
};

}  // namespace ckpt::placement
