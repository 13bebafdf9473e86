// FakeTransport replaces or wraps a node's transport in a test. Each function does what the test has set. If the test
// has set nothing, the call goes to `inner`; without `inner`, it does nothing.
//
// Set the functions before anybody uses the transport. They run on the caller's thread.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "net/transport.hpp"

namespace ckpt::test {

class FakeTransport : public net::Transport {
 public:
  explicit FakeTransport(std::unique_ptr<net::Transport> inner = nullptr) : inner_(std::move(inner)) {}
  ~FakeTransport() override {
    if (on_end) on_end();
  }

  std::function<void(net::PeerId peer, const std::string& address)> on_set_peer;
  std::function<bool(net::PeerId to, std::vector<std::byte> message)> on_send;
  std::function<void(net::PeerId from, net::PieceName piece, net::FetchPart part, std::shared_ptr<net::Sink> sink,
                     std::int64_t timeout_ms)>
      on_fetch;
  std::function<void(net::PeerId peer, std::function<void(net::Reach)> done)> on_probe;
  std::function<void()> on_end;

  net::Transport& inner() { return *inner_; }

  std::string address() const override { return inner_ ? inner_->address() : ""; }
  std::string description() const override { return inner_ ? inner_->description() : "fake"; }
  void set_peer(net::PeerId peer, std::uint64_t instance, const std::string& address) override {
    if (on_set_peer)
      on_set_peer(peer, address);
    else if (inner_)
      inner_->set_peer(peer, instance, address);
  }
  bool send(net::PeerId to, std::vector<std::byte> message) override {
    if (on_send) return on_send(to, std::move(message));
    return inner_ == nullptr || inner_->send(to, std::move(message));
  }
  void fetch(net::PeerId from, net::PieceName piece, net::FetchPart part, std::shared_ptr<net::Sink> sink,
             std::int64_t timeout_ms) override {
    if (on_fetch)
      on_fetch(from, std::move(piece), part, std::move(sink), timeout_ms);
    else if (inner_)
      inner_->fetch(from, std::move(piece), part, std::move(sink), timeout_ms);
  }
  void probe(net::PeerId peer, std::uint64_t, const std::string&, std::function<void(net::Reach)> done) override {
    if (on_probe)
      on_probe(peer, std::move(done));
    else
      done(net::Reach::unknown);
  }

 private:
  const std::unique_ptr<net::Transport> inner_;
};

// Sees each chunk before the receiver hears of it; may change it.
using Tamper = std::function<void(net::PeerId from, const net::PieceName&, std::span<std::byte> chunk)>;

class TamperedSink : public net::Sink {
 public:
  TamperedSink(net::PeerId from, net::PieceName piece, std::shared_ptr<net::Sink> inner, Tamper tamper)
      : from_(from), piece_(std::move(piece)), inner_(std::move(inner)), tamper_(std::move(tamper)) {}
  std::optional<std::span<std::byte>> begin(std::span<const std::byte> manifest, std::size_t bytes) override {
    const auto range = inner_->begin(manifest, bytes);
    if (range) range_ = *range;
    return range;
  }
  void received(std::size_t offset, std::size_t size) override {
    tamper_(from_, piece_, range_.subspan(offset, size));
    inner_->received(offset, size);
  }
  void ended(net::FetchEnd end) override { inner_->ended(end); }

 private:
  const net::PeerId from_;
  const net::PieceName piece_;
  const std::shared_ptr<net::Sink> inner_;
  const Tamper tamper_;
  std::span<std::byte> range_;
};

inline std::unique_ptr<FakeTransport> tampering(std::unique_ptr<net::Transport> inner, Tamper tamper) {
  auto transport = std::make_unique<FakeTransport>(std::move(inner));
  transport->on_fetch = [&real = transport->inner(), tamper = std::move(tamper)](auto from, auto piece, auto part,
                                                                                 auto sink, auto timeout_ms) {
    auto tampered = std::make_shared<TamperedSink>(from, piece, std::move(sink), tamper);
    real.fetch(from, std::move(piece), part, std::move(tampered), timeout_ms);
  };
  return transport;
}

// Every second send and fetch throws, as nothing should that only puts something into a queue.
inline std::unique_ptr<FakeTransport> failing(std::unique_ptr<net::Transport> inner) {
  auto transport = std::make_unique<FakeTransport>(std::move(inner));
  transport->on_send = [&real = transport->inner(), sends = 0](auto to, auto message) mutable {
    if (++sends % 2 == 0) throw std::runtime_error("a send failed");
    return real.send(to, std::move(message));
  };
  transport->on_fetch = [&real = transport->inner(), fetches = 0](auto from, auto piece, auto part, auto sink,
                                                                  auto timeout_ms) mutable {
    if (++fetches % 2 == 0) throw std::runtime_error("a fetch failed");
    real.fetch(from, std::move(piece), part, std::move(sink), timeout_ms);
  };
  return transport;
}

}  // namespace ckpt::test
