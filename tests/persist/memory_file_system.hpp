// Disk and MemoryFileSystem are a disk in memory for tests of storage. It can lose power, be full, fail and hang.
//
// A running program sees each operation at once. A loss of power keeps only what was synced: a file's bytes once the
// file was synced, and the names in a directory once the directory was synced. What was not synced may be there or not.
// A write may also be torn. Names that were made, removed or changed may be there in any combination. A rename happens
// as a whole or not at all.
#pragma once

#include <cerrno>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "persist/file_system.hpp"

namespace ckpt::persist::test {

struct PowerCut {};

class Disk {
 public:
  enum class Survives { nothing, everything, some };

  // Before operation `number` (from 0): an errno to fail with, or 0. A failing operation has no effect; a torn write
  // (EIO on "write") has half of it.
  std::function<int(std::size_t number, const std::string& operation, const std::string& path)> fault;
  std::size_t power_cut_before = SIZE_MAX;  // throws PowerCut from there on
  bool is_there = true;                     // else it is a mount that is missing
  std::uint64_t capacity_bytes = UINT64_MAX;
  std::vector<std::string> log;                   // "write job/step-00000001/x"
  std::vector<std::shared_ptr<const void>> held;  // memory of writes that hang (ETIMEDOUT)

  std::size_t operations() const { return log.size(); }

  // What a machine finds that is started again.
  std::shared_ptr<Disk> after_power_cut(Survives survives, std::uint64_t seed = 0) const {
    std::mt19937_64 random(seed);
    const auto stays = [&] {
      return survives == Survives::everything || (survives == Survives::some && random() % 2 == 0);
    };
    auto disk = std::make_shared<Disk>();
    Names names = durable_;
    for (const auto& [directory, changes] : pending_)
      for (const Change& change : changes)
        if (stays())
          for (const auto& [path, node] : change) set(names, path, node);
    std::map<const Node*, NodePtr> copies;  // one for all names of a file
    for (const auto& [path, node] : names) {
      if (!is_reachable(names, path)) continue;
      NodePtr& copy = copies[node.get()];
      if (copy) {
        disk->live_[path] = disk->durable_[path] = copy;
        continue;
      }
      copy = std::make_shared<Node>();
      copy->is_directory = node->is_directory;
      copy->bytes = node->durable;
      for (const Write& write : node->pending) {
        if (!stays()) continue;
        const bool torn = survives == Survives::some && random() % 4 == 0;
        apply(copy->bytes, {write.offset, torn ? write.bytes.substr(0, write.bytes.size() / 2) : write.bytes});
      }
      copy->durable = copy->bytes;
      disk->live_[path] = disk->durable_[path] = copy;
    }
    return disk;
  }

  // For tests that damage things, or look.
  std::string& bytes(const std::string& path) { return live_.at(path)->bytes; }
  bool exists(const std::string& path) const { return path.empty() ? is_there : live_.contains(path); }
  void erase(const std::string& path) { live_.erase(path); }
  void put(const std::string& path, const std::string& bytes) {
    auto node = std::make_shared<Node>();
    node->bytes = bytes;
    live_[path] = node;
  }
  std::vector<std::string> files() const {
    std::vector<std::string> paths;
    for (const auto& [path, node] : live_)
      if (!node->is_directory) paths.push_back(path);
    return paths;
  }

 private:
  friend class MemoryFileSystem;
  friend class MemoryFile;

  struct Write {
    std::uint64_t offset;
    std::string bytes;
  };
  struct Node {
    bool is_directory = false;
    std::string bytes, durable;
    std::vector<Write> pending;
  };
  using NodePtr = std::shared_ptr<Node>;
  using Names = std::map<std::string, NodePtr>;
  using Change = std::vector<std::pair<std::string, NodePtr>>;  // null: the name goes

  static void apply(std::string& bytes, const Write& write) {
    if (bytes.size() < write.offset + write.bytes.size()) bytes.resize(write.offset + write.bytes.size(), '\0');
    bytes.replace(write.offset, write.bytes.size(), write.bytes);
  }
  static void set(Names& names, const std::string& path, const NodePtr& node) {
    if (node) {
      names[path] = node;
    } else {
      names.erase(path);
    }
  }
  static std::string parent(const std::string& path) {
    const auto slash = path.rfind('/');
    return slash == std::string::npos ? "" : path.substr(0, slash);
  }
  static bool is_reachable(const Names& names, const std::string& path) {
    for (std::string at = parent(path); !at.empty(); at = parent(at))
      if (!names.contains(at)) return false;
    return true;
  }

  // Errno, or 0 and the operation may take place.
  int begin(const std::string& operation, const std::string& path) {
    if (log.size() >= power_cut_before) throw PowerCut{};
    const int error = fault ? fault(log.size(), operation, path) : 0;
    log.push_back(operation + " " + path);
    return error;
  }
  void change(const std::string& directory, const Change& change) {
    for (const auto& [path, node] : change) set(live_, path, node);
    pending_[directory].push_back(change);
  }
  std::uint64_t used_bytes() const {
    std::uint64_t used = 0;
    for (const auto& [path, node] : live_) used += node->bytes.size();
    return used;
  }

  mutable std::mutex mutex_;
  Names live_, durable_;
  std::map<std::string, std::vector<Change>> pending_;
};

class MemoryFile : public File {
 public:
  MemoryFile(std::shared_ptr<Disk> disk, std::string path, Disk::NodePtr node, FileSystemOptions options)
      : disk_(std::move(disk)), path_(std::move(path)), node_(std::move(node)), options_(std::move(options)) {}

  std::uint64_t size_bytes() override { return node_->bytes.size(); }

  void start_write(std::uint64_t tag, std::uint64_t offset, const std::byte* data, std::size_t size_bytes,
                   std::shared_ptr<const void> owner) override {
    const std::lock_guard lock(disk_->mutex_);
    int error = disk_->begin("write", path_);
    if (error == ETIMEDOUT) disk_->held.push_back(std::move(owner));
    std::string bytes(reinterpret_cast<const char*>(data), size_bytes);
    if (error == EIO) bytes.resize(size_bytes / 2);
    if (error == 0 && disk_->used_bytes() + size_bytes > disk_->capacity_bytes) error = ENOSPC;
    if (error == 0 || error == EIO) {
      Disk::apply(node_->bytes, {offset, bytes});
      node_->pending.push_back({offset, std::move(bytes)});
    }
    done_.push_back({tag, error, size_bytes});
  }

  void start_read(std::uint64_t tag, std::uint64_t offset, std::byte* data, std::size_t size_bytes,
                  std::shared_ptr<void>) override {
    const std::lock_guard lock(disk_->mutex_);
    const int error = disk_->begin("read", path_);
    const std::size_t there = offset < node_->bytes.size() ? node_->bytes.size() - offset : 0;
    const std::size_t size = std::min(size_bytes, there);
    if (error == 0) node_->bytes.copy(reinterpret_cast<char*>(data), size, offset);
    done_.push_back({tag, error, size});
  }

  // The last started ends first.
  Completion wait() override {
    if (options_.stop.stop_requested()) throw StorageError(ECANCELED, "cannot read or write " + path_);
    const Completion completion = done_.back();
    done_.pop_back();
    if (completion.error == ETIMEDOUT) throw StorageError(ETIMEDOUT, "cannot read or write " + path_);
    return completion;
  }

  void sync() override {
    const std::lock_guard lock(disk_->mutex_);
    if (const int error = disk_->begin("sync", path_)) throw StorageError(error, "cannot sync " + path_);
    node_->durable = node_->bytes;
    node_->pending.clear();
  }

 private:
  std::shared_ptr<Disk> disk_;
  const std::string path_;
  Disk::NodePtr node_;
  const FileSystemOptions options_;
  std::vector<Completion> done_;
};

class MemoryFileSystem : public FileSystem {
 public:
  explicit MemoryFileSystem(std::shared_ptr<Disk> disk, FileSystemOptions options = {})
      : disk_(std::move(disk)), options_(std::move(options)) {}

  const FileSystemOptions& options() const override { return options_; }
  std::string label(const std::string& path) const override { return "mem:" + path; }

  std::unique_ptr<File> create(const std::string& path, std::uint64_t) override {
    const std::lock_guard lock(disk_->mutex_);
    begin("create", path);
    if (disk_->exists(path)) throw StorageError(EEXIST, "cannot create " + path);
    return make(path);
  }
  std::unique_ptr<File> open(const std::string& path) override {
    const std::lock_guard lock(disk_->mutex_);
    begin("open", path);
    return std::make_unique<MemoryFile>(disk_, path, find(path), options_);
  }
  std::unique_ptr<File> open_shared(const std::string& path, std::uint64_t) override {
    const std::lock_guard lock(disk_->mutex_);
    begin("open_shared", path);
    return disk_->exists(path) ? std::make_unique<MemoryFile>(disk_, path, find(path), options_) : make(path);
  }
  void link(const std::string& from, const std::string& to) override {
    const std::lock_guard lock(disk_->mutex_);
    begin("link", to);
    const auto node = find(from);
    if (disk_->exists(to)) throw StorageError(EEXIST, "cannot link " + to);
    disk_->change(Disk::parent(to), {{to, node}});
  }
  void rename(const std::string& from, const std::string& to) override {
    const std::lock_guard lock(disk_->mutex_);
    begin("rename", to);
    const auto node = find(from);
    disk_->change(Disk::parent(to), {{from, nullptr}, {to, node}});
  }
  void remove(const std::string& path) override {
    const std::lock_guard lock(disk_->mutex_);
    begin("remove", path);
    find(path);
    disk_->change(Disk::parent(path), {{path, nullptr}});
  }
  void remove_directory(const std::string& path) override {
    const std::lock_guard lock(disk_->mutex_);
    begin("remove_directory", path);
    for (const auto& [name, node] : disk_->live_)
      if (Disk::parent(name) == path) throw StorageError(ENOTEMPTY, "cannot remove " + path);
    disk_->change(Disk::parent(path), {{path, nullptr}});
  }
  void make_directory(const std::string& path) override {
    const std::lock_guard lock(disk_->mutex_);
    begin("make_directory", path);
    if (disk_->exists(path)) return;
    if (!disk_->exists(Disk::parent(path))) throw StorageError(ENOENT, "cannot make the directory " + path);
    auto node = std::make_shared<Disk::Node>();
    node->is_directory = true;
    disk_->change(Disk::parent(path), {{path, node}});
  }
  void sync_directory(const std::string& path) override {
    const std::lock_guard lock(disk_->mutex_);
    begin("sync_directory", path);
    for (const Disk::Change& change : disk_->pending_[path])
      for (const auto& [name, node] : change) Disk::set(disk_->durable_, name, node);
    disk_->pending_[path].clear();
  }
  std::vector<DirectoryEntry> list(const std::string& path) override {
    const std::lock_guard lock(disk_->mutex_);
    begin("list", path);
    if (!disk_->exists(path)) throw StorageError(ENOENT, "cannot list " + path);
    std::vector<DirectoryEntry> entries;
    for (const auto& [name, node] : disk_->live_)
      if (Disk::parent(name) == path && name != path)
        entries.push_back({path.empty() ? name : name.substr(path.size() + 1), node->is_directory});
    return entries;
  }
  std::optional<std::uint64_t> file_size(const std::string& path) override {
    const std::lock_guard lock(disk_->mutex_);
    begin("stat", path);
    if (!disk_->exists(path)) return std::nullopt;
    return path.empty() ? 0 : disk_->live_.at(path)->bytes.size();
  }
  std::uint64_t free_bytes() override { return disk_->capacity_bytes - disk_->used_bytes(); }

 private:
  void begin(const std::string& operation, const std::string& path) {
    if (options_.stop.stop_requested()) throw StorageError(ECANCELED, "cannot " + operation + " " + path);
    if (const int error = disk_->begin(operation, path)) throw StorageError(error, "cannot " + operation + " " + path);
  }
  std::unique_ptr<MemoryFile> make(const std::string& path) {
    if (!disk_->exists(Disk::parent(path))) throw StorageError(ENOENT, "cannot create " + path);
    auto node = std::make_shared<Disk::Node>();
    disk_->change(Disk::parent(path), {{path, node}});
    return std::make_unique<MemoryFile>(disk_, path, node, options_);
  }
  Disk::NodePtr find(const std::string& path) {
    const auto found = disk_->live_.find(path);
    if (found == disk_->live_.end()) throw StorageError(ENOENT, "cannot find " + path);
    return found->second;
  }

  std::shared_ptr<Disk> disk_;
  const FileSystemOptions options_;
};

}  // namespace ckpt::persist::test
