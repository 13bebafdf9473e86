// Store is the coordination store of a job: a few small records that change by compare-and-swap. All agents of a job
// see the same store. Implementations: etcd and a directory.
//
// The interface has only what both can offer: key, value and a revision that grows with each change. Do not remove a
// record that is written again and again: its revisions would begin anew. `ckptctl gc` removes all records of a job at
// once. Several threads and processes may use a store. Every call has a deadline. If the store cannot be reached or
// holds a damaged record, the call throws Failure, and you may repeat it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ckpt::coord {

struct Entry {
  std::string key;
  std::string value;
  std::uint64_t revision = 0;  // grows with every change of the key; 0: the key does not exist
  bool operator==(const Entry&) const = default;
};

// Reports changes of records until it is destroyed.
class Watch {
 public:
  virtual ~Watch() = default;
};

class Store {
 public:
  virtual ~Store() = default;

  // The newest record, or nothing if none was ever put.
  virtual std::optional<Entry> get(const std::string& key) = 0;

  // Writes the record if its revision still is `expected` (0: it does not exist), and returns the new revision. Returns
  // nothing if somebody else was first. After a Failure it may or may not have been written.
  virtual std::optional<std::uint64_t> put_if(const std::string& key, const std::string& value,
                                              std::uint64_t expected) = 0;

  // The records whose keys begin with `prefix`, by key.
  virtual std::vector<Entry> list(const std::string& prefix) = 0;

  // The keys that begin with `prefix`, in order.
  virtual std::vector<std::string> keys(const std::string& prefix) = 0;

  // Removes the record, if there is one.
  virtual void remove(const std::string& key) = 0;

  // Reports every change of a key that sorts before unwatched_from, whoever made it. The calls come on a thread of the
  // store. `on_change` gets the record as it is then, or revision 0 if it was removed. Several changes of a key may
  // come as one. The last one always comes, once the store can be reached again. Returns null if the store cannot
  // watch; then read it. The store must outlive the result.
  virtual std::unique_ptr<Watch> watch(std::function<void(const Entry&)> /*on_change*/) { return nullptr; }
};

inline constexpr std::size_t value_bytes_max = 1u << 20;

// Keys from here on are for records that are long or many and that few agents read.
inline constexpr std::string_view unwatched_from = "rank_assignments/";

// Parts of [A-Za-z0-9._-]{1,64} that do not begin with a dot, joined by '/', e.g. "nodes/a".
bool is_key(std::string_view key);

}  // namespace ckpt::coord
