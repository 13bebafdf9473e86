// Pieces maps the name of each piece of one checkpoint to the nodes that have the piece. The leader reads the whole map
// very often, so all entries are in one block of memory, with an index by name. Not thread-safe.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "core/types.hpp"

namespace ckpt::core {

// A node that has a piece, and the piece as that node reported it.
struct Holder {
  NodeId node = 0;
  const PieceInfo* piece = nullptr;
};

// The nodes that have a piece, in order of node. Most pieces are on one or two nodes. For these, nothing is allocated.
class Holders {
 public:
  void push_back(const Holder& holder);

  const Holder* begin() const { return many_.empty() ? few_.data() : many_.data(); }
  const Holder* end() const { return begin() + size(); }
  std::size_t size() const { return many_.empty() ? few_count_ : many_.size(); }
  const Holder& front() const { return *begin(); }
  const Holder& back() const { return *(end() - 1); }
  const Holder& operator[](std::size_t i) const { return begin()[i]; }

 private:
  std::array<Holder, 2> few_;
  std::size_t few_count_ = 0;
  std::vector<Holder> many_;  // all holders, if there are more than two; otherwise empty
};

class Pieces {
 public:
  using value_type = std::pair<std::string_view, Holders>;  // the name is borrowed: it must outlive this object

  void reserve(std::size_t count);
  Holders& operator[](std::string_view shard);

  const value_type* begin() const { return all_.data(); }
  const value_type* end() const { return all_.data() + all_.size(); }
  const value_type* find(std::string_view shard) const;  // end() if nobody has it
  bool contains(std::string_view shard) const { return find(shard) != end(); }

 private:
  // An entry of the hash table. `number` is the index of a name in all_. The table uses open addressing. Its size is a
  // power of two, and at least half of the entries are free.
  struct Bucket {
    std::uint32_t hash = 0;
    std::uint32_t number = none;
  };
  static constexpr std::uint32_t none = UINT32_MAX;
  std::size_t bucket_of(std::string_view shard, std::uint32_t hash) const;
  void index(std::size_t buckets);

  std::vector<value_type> all_;
  std::vector<Bucket> buckets_;
};

}  // namespace ckpt::core
