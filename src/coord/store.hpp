// Store is the coordination store of a job: a few small records that change by compare-and-swap. All agents of a job
// see the same store. Implementations: etcd and a directory.
//
// The interface has only what etcd and a directory both offer: key, value, and a revision that grows with each change.
// Do not remove a record that will be written again: its revisions may begin anew, and then compare-and-swap no longer
// protects it. `ckptctl gc` removes all records of a job at once. Several threads and processes may use a store. Every
// call has a deadline. If the store cannot be reached or holds a damaged record, the call throws Failure. The caller
// may repeat it.
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

// Stands for a call of Store::watch(): the store reports changes until the caller destroys the Watch.
class Watch {
 public:
  virtual ~Watch() = default;
};

class Store {
 public:
  virtual ~Store() = default;

  // Returns the record as it is now, or nothing if there is none.
  virtual std::optional<Entry> get(const std::string& key) = 0;

  // Writes the record if its revision still is `expected` (0: it does not exist), and returns the new revision. Returns
  // nothing if the record has another revision. After a Failure the record may or may not have been written.
  virtual std::optional<std::uint64_t> put_if(const std::string& key, const std::string& value,
                                              std::uint64_t expected) = 0;

  // Returns the records whose keys begin with `prefix`, sorted by key.
  virtual std::vector<Entry> list(const std::string& prefix) = 0;

  // The keys that begin with `prefix`, in order.
  virtual std::vector<std::string> keys(const std::string& prefix) = 0;

  // Removes the record, if there is one.
  virtual void remove(const std::string& key) = 0;

  // Calls `on_change`, on a thread of the store, after each change of a key that sorts before unwatched_from, whichever
  // process changed it. `on_change` gets the record as it is at that time, or an Entry with revision 0 if the record
  // was removed. Several changes of a key may be reported as one. The last change is always reported, if necessary once
  // the store can be reached again. Returns null if the store cannot watch; then the caller must read the records again
  // and again. The store must outlive the result.
  virtual std::unique_ptr<Watch> watch(std::function<void(const Entry&)> /*on_change*/) { return nullptr; }
};

inline constexpr std::size_t value_bytes_max = 1u << 20;

// A watch does not report keys from this one on. They are for long or numerous records that few agents read.
inline constexpr std::string_view unwatched_from = "rank_assignments/";

// True for parts of [A-Za-z0-9._-]{1,64} that do not begin with a dot, joined by '/', e.g. "nodes/a".
bool is_key(std::string_view key);

}  // namespace ckpt::coord
