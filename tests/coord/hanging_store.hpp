// HangingStore is a store in memory that stops answering when a test says so, like a mount whose server is gone.
#pragma once

#include <condition_variable>
#include <mutex>

#include "memory_store.hpp"

namespace ckpt::test {

class HangingStore : public MemoryStore {
 public:
  void hang() {
    const std::lock_guard lock(mutex_);
    hangs_ = true;
  }
  void answer() {
    const std::lock_guard lock(mutex_);
    hangs_ = false;
    ++answered_;
    changed_.notify_all();
  }
  // But those calls that hang.
  void answer_others() {
    const std::lock_guard lock(mutex_);
    hangs_ = false;
  }
  int hanging() const {
    const std::lock_guard lock(mutex_);
    return hanging_;
  }

  std::optional<coord::Entry> get(const std::string& key) override { return wait(), MemoryStore::get(key); }
  std::optional<std::uint64_t> put_if(const std::string& key, const std::string& value,
                                      std::uint64_t expected) override {
    return wait(), MemoryStore::put_if(key, value, expected);
  }
  std::vector<coord::Entry> list(const std::string& prefix) override { return wait(), MemoryStore::list(prefix); }
  void remove(const std::string& key) override { wait(), MemoryStore::remove(key); }
  // No watch, as with directories.
  std::unique_ptr<coord::Watch> watch(std::function<void(const coord::Entry&)>) override { return nullptr; }

 private:
  void wait() {
    std::unique_lock lock(mutex_);
    if (!hangs_) return;
    ++hanging_;
    for (const int answered = answered_; answered == answered_;) changed_.wait(lock);
    --hanging_;
  }
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool hangs_ = false;
  int hanging_ = 0;
  int answered_ = 0;
};

// A store that passes all calls on to another one, so that several owners can share it.
class StoreHandle : public coord::Store {
 public:
  explicit StoreHandle(std::shared_ptr<coord::Store> store) : store_(std::move(store)) {}
  std::optional<coord::Entry> get(const std::string& key) override { return store_->get(key); }
  std::optional<std::uint64_t> put_if(const std::string& key, const std::string& value,
                                      std::uint64_t expected) override {
    return store_->put_if(key, value, expected);
  }
  std::vector<coord::Entry> list(const std::string& prefix) override { return store_->list(prefix); }
  std::vector<std::string> keys(const std::string& prefix) override { return store_->keys(prefix); }
  void remove(const std::string& key) override { store_->remove(key); }
  std::unique_ptr<coord::Watch> watch(std::function<void(const coord::Entry&)> on_change) override {
    return store_->watch(std::move(on_change));
  }

 private:
  const std::shared_ptr<coord::Store> store_;
};

}  // namespace ckpt::test
