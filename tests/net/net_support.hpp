// Helpers for the tests of src/net: nodes on loopback, receivers that a test can wait for, and pieces with known bytes.
// listener_support.hpp has the helpers for the listener.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "net/transport.hpp"

namespace ckpt::net::testing {

constexpr auto wait_limit = std::chrono::seconds(30);  // how long a test waits for what must happen

inline std::byte pattern_at(std::size_t offset, std::uint64_t seed) {
  return static_cast<std::byte>((offset * 2654435761u + (offset >> 16) + seed * 97) >> 5);
}

inline std::vector<std::byte> pattern(std::size_t size_bytes, std::uint64_t seed) {
  std::vector<std::byte> bytes(size_bytes);
  for (std::size_t i = 0; i < size_bytes; ++i) bytes[i] = pattern_at(i, seed);
  return bytes;
}

inline std::vector<std::byte> bytes_of(const std::string& text) {
  const auto* data = reinterpret_cast<const std::byte*>(text.data());
  return {data, data + text.size()};
}

inline std::string text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// Values that other threads put in and a test waits for.
template <class T>
class Mailbox {
 public:
  void put(T value) {
    const std::lock_guard lock(mutex_);
    values_.push_back(std::move(value));
    changed_.notify_all();
  }
  // The first `count` values; fewer when wait limit ran out.
  std::vector<T> wait_for(std::size_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, wait_limit, [&] { return values_.size() >= count; });
    return values_;
  }
  std::size_t count() {
    const std::lock_guard lock(mutex_);
    return values_.size();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<T> values_;
};

// Receives a fetch into memory of its own, and checks the order of the calls.
class MemorySink : public Sink {
 public:
  explicit MemorySink(std::size_t capacity_bytes = SIZE_MAX) : capacity_bytes_(capacity_bytes) {}

  std::optional<std::span<std::byte>> begin(std::span<const std::byte> manifest_bytes,
                                            std::size_t data_bytes) override {
    in_order &= !begun && ends.count() == 0;
    begun = true;
    manifest.assign(manifest_bytes.begin(), manifest_bytes.end());
    if (data_bytes > capacity_bytes_) return std::nullopt;
    data.assign(data_bytes, std::byte{0});
    size_by_offset_.clear();
    return data;
  }
  void received(std::size_t offset_bytes, std::size_t size_bytes) override {
    in_order &= begun && ends.count() == 0 && offset_bytes + size_bytes <= data.size();
    in_order &= size_by_offset_.emplace(offset_bytes, size_bytes).second;
    received_bytes += size_bytes;
    arrivals.put(offset_bytes);
  }
  void ended(FetchEnd end) override { ends.put(end); }

  // How the fetch ended; nothing when it did not, or more than once.
  std::optional<FetchEnd> end() {
    const auto seen = ends.wait_for(1);
    return seen.size() == 1 ? std::optional(seen[0]) : std::nullopt;
  }

  bool begun = false;
  bool in_order = true;
  std::size_t received_bytes = 0;
  std::vector<std::byte> manifest;
  std::vector<std::byte> data;
  Mailbox<std::size_t> arrivals;
  Mailbox<FetchEnd> ends;

 private:
  const std::size_t capacity_bytes_;
  std::map<std::size_t, std::size_t> size_by_offset_;
};

// Streams of our own, with and without reading a local peer's memory, and UCX.
constexpr const char* each_transport[] = {"tcp", "shm", "tcp,cma"};
inline std::string name_of(const std::string& transports) { return transports == "tcp,cma" ? "ucx" : transports; }

inline TransportOptions loopback_options(PeerId node, std::uint64_t instance, const std::string& transports = "tcp") {
  TransportOptions options;
  options.job = "test job";
  options.token = "test token";
  options.node = node;
  options.node_instance = instance;
  options.transports = transports;
  options.interface = "lo";
  options.chunk_bytes = 1u << 20;
  return options;
}

// A node with a transport. It serves pieces, and collects the messages that arrive.
class Node {
 public:
  explicit Node(const TransportOptions& options, ChunkPacer* pacer = nullptr) : options_(options) {
    Transport::Handlers handlers;
    handlers.pacer = pacer;
    handlers.message = [this](PeerId from, std::span<const std::byte> message) {
      messages.put({from, {message.begin(), message.end()}});
    };
    handlers.serve = [this](const Asker&, const PieceName& name) { return find(name); };
    handlers.peer_failed = [this](PeerId peer) { failures.put(peer); };
    handlers.remark = [this](const std::string& remark) { remarks.put(remark); };
    transport = Transport::create(options_, std::move(handlers));
  }
  ~Node() { transport.reset(); }

  PeerId id() const { return options_.node; }
  void knows(const Node& other) {
    transport->set_peer(other.options_.node, other.options_.node_instance, other.transport->address());
  }
  void serves(const PieceName& name, std::vector<std::byte> data, const std::string& manifest) {
    auto piece = std::make_shared<Piece>(Piece{bytes_of(manifest), std::move(data)});
    const std::lock_guard lock(mutex_);
    pieces_[name.shard + "@" + std::to_string(name.checkpoint)] = std::move(piece);
  }
  std::shared_ptr<MemorySink> fetch(PeerId from, const PieceName& name, std::int64_t timeout_ms = 25000) {
    auto sink = std::make_shared<MemorySink>();
    transport->fetch(from, name, sink, timeout_ms);
    return sink;
  }
  std::shared_ptr<MemorySink> fetch(PeerId from, const PieceName& name, const FetchPart& part) {
    auto sink = std::make_shared<MemorySink>();
    transport->fetch(from, name, part, sink, 25000);
    return sink;
  }

  std::unique_ptr<Transport> transport;
  Mailbox<std::pair<PeerId, std::vector<std::byte>>> messages;
  Mailbox<PeerId> failures;
  Mailbox<std::string> remarks;

 private:
  struct Piece {
    std::vector<std::byte> manifest;
    std::vector<std::byte> data;
  };
  std::optional<ServedPiece> find(const PieceName& name) {
    const std::lock_guard lock(mutex_);
    const auto found = pieces_.find(name.shard + "@" + std::to_string(name.checkpoint));
    if (found == pieces_.end()) return std::nullopt;
    return ServedPiece{found->second->manifest, found->second->data, found->second};
  }

  const TransportOptions options_;
  std::mutex mutex_;
  std::map<std::string, std::shared_ptr<Piece>> pieces_;
};

// Two nodes, 1 and 2, that know each other.
struct Pair {
  explicit Pair(const std::string& transports = "tcp")
      : one(loopback_options(1, 100, transports)), two(loopback_options(2, 200, transports)) {
    one.knows(two);
    two.knows(one);
  }
  Node one, two;
};

}  // namespace ckpt::net::testing
