// MemoryStore is a coordination store in one process's memory, for tests.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>

#include "base/error.hpp"
#include "coord/store.hpp"

namespace ckpt::test {

class MemoryStore : public coord::Store {
 public:
  std::optional<coord::Entry> get(const std::string& key) override {
    const std::lock_guard lock(mutex_);
    check(key);
    const auto found = entries_.find(key);
    return found == entries_.end() ? std::nullopt : std::optional(found->second);
  }
  std::optional<std::uint64_t> put_if(const std::string& key, const std::string& value,
                                      std::uint64_t expected) override {
    const std::lock_guard lock(mutex_);
    check(key);
    if (value.size() > coord::value_bytes_max) throw Failure(CKPT_ERR_INVALID, "the value of " + key + " is too long");
    const auto found = entries_.find(key);
    if ((found == entries_.end() ? 0 : found->second.revision) != expected) return std::nullopt;
    const coord::Entry entry{key, value, expected + 1};
    entries_.insert_or_assign(key, entry);
    if (key < coord::unwatched_from) {
      for (const Watching* watch : watches_) watch->on_change(entry);
    }
    return expected + 1;
  }
  std::vector<coord::Entry> list(const std::string& prefix) override {
    const std::lock_guard lock(mutex_);
    std::vector<coord::Entry> found;
    for (const auto& [key, entry] : entries_)
      if (key.starts_with(prefix)) found.push_back(entry);
    return found;
  }
  std::vector<std::string> keys(const std::string& prefix) override {
    std::vector<std::string> found;
    for (const coord::Entry& entry : list(prefix)) found.push_back(entry.key);
    return found;
  }
  void remove(const std::string& key) override {
    const std::lock_guard lock(mutex_);
    check(key);
    entries_.erase(key);
  }
  // Tells on the thread that writes.
  std::unique_ptr<coord::Watch> watch(std::function<void(const coord::Entry&)> on_change) override {
    return std::make_unique<Watching>(*this, std::move(on_change));
  }

 private:
  struct Watching : coord::Watch {
    Watching(MemoryStore& of, std::function<void(const coord::Entry&)> callback)
        : store(of), on_change(std::move(callback)) {
      const std::lock_guard lock(store.mutex_);
      store.watches_.insert(this);
    }
    ~Watching() override {
      const std::lock_guard lock(store.mutex_);
      store.watches_.erase(this);
    }
    MemoryStore& store;
    const std::function<void(const coord::Entry&)> on_change;
  };
  static void check(const std::string& key) {
    if (!coord::is_key(key)) throw Failure(CKPT_ERR_INVALID, "\"" + key + "\" cannot name a coordination record");
  }
  std::mutex mutex_;
  std::map<std::string, coord::Entry> entries_;
  std::set<const Watching*> watches_;
};

}  // namespace ckpt::test
