// A store within one process, for tests: what a Store promises and nothing else.
#pragma once

#include <map>
#include <mutex>

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
    const auto found = entries_.find(key);
    if ((found == entries_.end() ? 0 : found->second.revision) != expected) return std::nullopt;
    entries_.insert_or_assign(key, coord::Entry{key, value, expected + 1});
    return expected + 1;
  }
  std::vector<coord::Entry> list(const std::string& prefix) override {
    const std::lock_guard lock(mutex_);
    std::vector<coord::Entry> found;
    for (const auto& [key, entry] : entries_)
      if (key.starts_with(prefix)) found.push_back(entry);
    return found;
  }

 private:
  static void check(const std::string& key) {
    if (!coord::is_key(key)) throw Failure(CKPT_ERR_INVALID, "\"" + key + "\" cannot name a coordination record");
  }
  std::mutex mutex_;
  std::map<std::string, coord::Entry> entries_;
};

}  // namespace ckpt::test
