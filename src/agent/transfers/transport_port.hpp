// TransportPort gives transfers access to the transport, and ends the access before the transport is destroyed. A
// transfer may live longer than the transport. After close(), no thread is inside a function of the transport, and none
// can call one any more.
//
// Thread-safe. A callback of fetch() may call fetch() again on the same thread.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>

#include "net/transport.hpp"

namespace ckpt::agent {

class TransportPort {
 public:
  // `transport` must live until close() has returned.
  explicit TransportPort(net::Transport& transport) : transport_(transport) {}

  // Starts a fetch by net::Transport::fetch(), and does not block. After close(), the fetch ends within this call:
  // `sink` gets FetchEnd::peer_failed, and the transport is not touched.
  void fetch(net::PeerId from, net::PieceName piece, net::FetchPart part, std::shared_ptr<net::Sink> sink,
             std::int64_t timeout_ms) {
    if (!enter()) return sink->ended(net::FetchEnd::peer_failed);
    const Visit visit(*this);
    transport_.fetch(from, std::move(piece), part, std::move(sink), timeout_ms);
  }

  // Lets no new call in, and blocks until the last call of fetch() has returned. Does not wait for the fetches
  // themselves: those that have begun end with the transport. May be called again. Must not be called from within
  // fetch(), such as by a sink, because it would wait for itself.
  void close() {
    std::unique_lock lock(mutex_);
    closed_ = true;
    left_.wait(lock, [&] { return inside_ == 0; });
  }

 private:
  // Counts a call that is inside the transport. Its destructor ends the count even if the transport throws.
  struct Visit {
    explicit Visit(TransportPort& to) : port(to) {}
    ~Visit() {
      {
        const std::lock_guard lock(port.mutex_);
        --port.inside_;
      }
      port.left_.notify_all();
    }
    Visit(const Visit&) = delete;
    Visit& operator=(const Visit&) = delete;
    TransportPort& port;
  };

  bool enter() {
    const std::lock_guard lock(mutex_);
    if (!closed_) ++inside_;
    return !closed_;
  }

  net::Transport& transport_;
  std::mutex mutex_;
  std::condition_variable left_;
  std::size_t inside_ = 0;
  bool closed_ = false;
};

}  // namespace ckpt::agent
