// Runs several agents and trainers of one job within a test's process, over TCP on loopback.
#pragma once

#include <poll.h>
#include <sys/uio.h>
#include <unistd.h>

#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "agent/agent.hpp"
#include "base/error.hpp"
#include "base/frame_socket.hpp"
#include "ckptengine/ckptengine.h"
#include "options/options.hpp"
#include "support.hpp"
#include "tests/support/fake_transport.hpp"

namespace ckpt::agent::testing {

inline void replace(OptionPairs& pairs, const OptionPairs& by) {
  for (const auto& option : by) {
    std::erase_if(pairs, [&](const auto& pair) { return pair.first == option.first; });
    pairs.push_back(option);
  }
}

class AgentCluster {
 public:
  explicit AgentCluster(std::uint32_t world_size) : world_size_(world_size) {}

  OptionPairs options(const std::string& node) const {
    return {{"job", "test"},
            {"node", node},
            {"arena_dir", directory_.path() + "/arena"},
            {"coordination", directory_.path() + "/coordination"},
            {"interface", "lo"},
            {"heartbeat_ms", "50"},
            {"node_timeout_ms", "1500"},
            {"lease_ms", "1500"},
            {"node_wait_ms", "1000"}};
  }
  std::string node_dir(const std::string& node) const { return directory_.path() + "/arena/test/" + node; }
  const std::string& path() const { return directory_.path(); }
  std::uint32_t world_size() const { return world_size_; }

  // `more` overrides options; `change` puts something in the way of store or transport.
  using Change = std::function<void(AgentSetup&)>;
  void start(const std::string& node, const OptionPairs& more = {}, const Change& change = {}) {
    OptionPairs pairs = options(node);
    replace(pairs, more);
    AgentSetup setup = standard_setup(parse_options(Reader::agent, pairs, nullptr), silent_log());
    if (change) change(setup);
    agents_[node] = std::make_unique<Agent>(std::move(setup));
  }
  void stop(const std::string& node) { agents_.erase(node); }
  const Agent& agent(const std::string& node) const { return *agents_.at(node); }
  bool asked_to_stop(const std::string& node) {
    pollfd entry{agents_.at(node)->stop_fd(), POLLIN, 0};
    return ::poll(&entry, 1, static_cast<int>(std::chrono::milliseconds(wait_limit).count())) > 0;
  }
  // The node burns down.
  void destroy(const std::string& node) {
    stop(node);
    std::filesystem::remove_all(node_dir(node));
  }

  nlohmann::json ask(const std::string& node, const nlohmann::json& request) {
    FrameSocket socket = FrameSocket::connect(node_dir(node) + "/agent.sock");
    const Deadline deadline = Deadline::in_ms(30'000);
    socket.send(request, {}, deadline);
    return socket.receive(deadline).body;
  }
  nlohmann::json status(const std::string& node) { return ask(node, {{"type", "status"}}).at("agent"); }

 private:
  const std::uint32_t world_size_;
  test::TemporaryDirectory directory_{test::in_memory};
  std::map<std::string, std::unique_ptr<Agent>> agents_;
};

// A rank whose tensors depend only on rank and iteration, so that a test knows what a restore must bring.
class Trainer {
 public:
  Trainer(AgentCluster& cluster, const std::string& node, std::uint32_t rank, std::size_t floats = 100'000,
          const OptionPairs& more = {})
      : rank_(rank), weights_(floats) {
    OptionPairs pairs = {{"job", "test"},
                         {"node", node},
                         {"arena_dir", cluster.path() + "/arena"},
                         {"rank", std::to_string(rank)},
                         {"world_size", std::to_string(cluster.world_size())},
                         {"agent", "attach"},
                         {"claim_timeout_ms", "30000"},
                         {"restore_timeout_ms", "20000"}};
    replace(pairs, more);
    std::vector<ckpt_option> options;
    for (const auto& [key, value] : pairs) options.push_back({key.c_str(), value.c_str()});
    created_ = ckpt_create(options.data(), options.size(), &engine_);
    if (created_ != CKPT_OK) {
      error_ = ckpt_last_error();
      return;
    }
    const std::int64_t shape[] = {static_cast<std::int64_t>(weights_.size())};
    add({sizeof(ckpt_tensor), "weights", weights_.data(), shape, 1, CKPT_F32, CKPT_HOST, CKPT_OVERLAPPED});
    const std::int64_t small[] = {static_cast<std::int64_t>(rng_.size())};
    add({sizeof(ckpt_tensor), "rng", rng_.data(), small, 1, CKPT_U8, CKPT_HOST, CKPT_SYNCHRONOUS});
  }
  ~Trainer() { close(); }
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  void close() { ckpt_close(std::exchange(engine_, nullptr)); }
  ckpt_status created() const { return created_; }
  const std::string& error() const { return error_; }

  ckpt_status restore() {
    if (created_ != CKPT_OK) return created_;
    const ckpt_status status = ckpt_restore(engine_, CKPT_NO_STREAM, &restored_);
    error_ = ckpt_last_error();
    return status;
  }
  const ckpt_restored& restored() const { return restored_; }
  // Returns "" if it fails. Then error() says why.
  std::string stored_layout() {
    const char* json = "";
    const ckpt_status status = ckpt_stored_layout(engine_, &json);
    error_ = ckpt_last_error();
    return status == CKPT_OK ? json : "";
  }

  ckpt_status snapshot(std::int64_t iteration) {
    const ckpt_status status = begin_snapshot(iteration);
    return status == CKPT_OK ? end_snapshot() : status;
  }
  // Gives the agent some time to free a slot before the update, as training does.
  ckpt_status snapshot_in_time(std::int64_t iteration) {
    const ckpt_status status = begin_snapshot(iteration);
    if (status != CKPT_OK) return status;
    ckpt_wait(engine_, iteration, CKPT_STAGE_CAPTURING, 1'000);
    return end_snapshot();
  }
  ckpt_status begin_snapshot(std::int64_t iteration) {
    fill(iteration);
    const ckpt_status status = ckpt_snapshot(engine_, iteration, CKPT_NO_STREAM);
    error_ = ckpt_last_error();
    return status;
  }
  ckpt_status end_snapshot() { return ckpt_before_update(engine_, nullptr, 0); }
  ckpt_status wait_commit(std::int64_t iteration) {
    return ckpt_wait(engine_, iteration, CKPT_STAGE_COMMITTED, std::chrono::milliseconds(wait_limit).count());
  }

  // Whether the first weights are those of `iteration`. The kernel reads them, because a restore may be writing them.
  bool holds_first(std::size_t floats, std::int64_t iteration) {
    std::vector<float> found(floats);
    const iovec here{found.data(), floats * sizeof(float)}, there{weights_.data(), floats * sizeof(float)};
    if (::process_vm_readv(::getpid(), &here, 1, &there, 1, 0) != static_cast<ssize_t>(here.iov_len)) return false;
    for (std::size_t i = 0; i < floats; ++i)
      if (found[i] != weight(iteration, i)) return false;
    return true;
  }

  // Whether every byte is what it was at `iteration`.
  bool holds(std::int64_t iteration) const {
    for (std::size_t i = 0; i < weights_.size(); ++i)
      if (weights_[i] != weight(iteration, i)) return false;
    return rng_ == std::vector<std::uint8_t>(rng_.size(), random(iteration));
  }

 private:
  void add(const ckpt_tensor& tensor) {
    if (ckpt_register_tensor(engine_, &tensor) != CKPT_OK) throw std::runtime_error(ckpt_last_error());
  }
  float weight(std::int64_t iteration, std::size_t i) const {
    return static_cast<float>(rank_ * 1000 + static_cast<std::uint64_t>(iteration)) + static_cast<float>(i % 997) / 997;
  }
  std::uint8_t random(std::int64_t iteration) const { return static_cast<std::uint8_t>(rank_ * 100 + iteration); }
  void fill(std::int64_t iteration) {
    for (std::size_t i = 0; i < weights_.size(); ++i) weights_[i] = weight(iteration, i);
    rng_.assign(rng_.size(), random(iteration));
  }

  const std::uint32_t rank_;
  std::vector<float> weights_;
  std::vector<std::uint8_t> rng_ = std::vector<std::uint8_t>(5000);
  ckpt_engine* engine_ = nullptr;
  ckpt_status created_ = CKPT_OK;
  ckpt_restored restored_ = CKPT_RESTORED_INIT;
  std::string error_;
};

// Runs one step of all ranks at the same time, as a job does. Returns what it returned for each.
template <class Step>
auto on_all(std::vector<std::unique_ptr<Trainer>>& trainers, Step step) {
  std::vector<decltype(step(*trainers.front()))> results(trainers.size());
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < trainers.size(); ++i) threads.emplace_back([&, i] { results[i] = step(*trainers[i]); });
  for (std::thread& thread : threads) thread.join();
  return results;
}

// Puts something around the node's real transport.
using Wrap = std::function<std::unique_ptr<net::Transport>(std::unique_ptr<net::Transport> inner)>;
inline AgentCluster::Change wrapped(Wrap wrap) {
  return [wrap = std::move(wrap)](AgentSetup& setup) {
    setup.make_transport = [wrap](const net::TransportOptions& options, net::Transport::Handlers handlers) {
      return wrap(net::Transport::create(options, std::move(handlers)));
    };
  };
}

// A store that does not answer while `silent`. Together with silent_transport() it makes a node that nobody sees or
// hears, like a frozen machine.
class SilentStore : public coord::Store {
 public:
  SilentStore(std::unique_ptr<coord::Store> inner, const std::atomic<bool>& silent)
      : inner_(std::move(inner)), silent_(silent) {}
  std::optional<coord::Entry> get(const std::string& key) override { return inner().get(key); }
  std::optional<std::uint64_t> put_if(const std::string& key, const std::string& value,
                                      std::uint64_t expected) override {
    return inner().put_if(key, value, expected);
  }
  std::vector<coord::Entry> list(const std::string& prefix) override { return inner().list(prefix); }
  std::vector<std::string> keys(const std::string& prefix) override { return inner().keys(prefix); }
  void remove(const std::string& key) override { inner().remove(key); }

 private:
  coord::Store& inner() {
    if (silent_) throw Failure(CKPT_ERR_TIMEOUT, "the store does not answer");
    return *inner_;
  }
  const std::unique_ptr<coord::Store> inner_;
  const std::atomic<bool>& silent_;
};

inline std::unique_ptr<net::Transport> silent_transport(const net::TransportOptions& options,
                                                        net::Transport::Handlers handlers,
                                                        const std::atomic<bool>& silent) {
  handlers.message = [&silent, message = handlers.message](net::PeerId from, std::span<const std::byte> bytes) {
    if (!silent) message(from, bytes);
  };
  handlers.serve = [&silent, serve = handlers.serve](const net::Asker& to, const net::PieceName& piece) {
    return silent ? std::nullopt : serve(to, piece);
  };
  auto transport = std::make_unique<test::FakeTransport>(net::Transport::create(options, std::move(handlers)));
  transport->on_send = [&silent, &real = transport->inner()](net::PeerId to, std::vector<std::byte> message) {
    return silent || real.send(to, std::move(message));
  };
  return transport;
}

inline AgentCluster::Change silenced_by(const std::atomic<bool>& silent) {
  return [&silent](AgentSetup& setup) {
    setup.store = std::make_unique<SilentStore>(std::move(setup.store), silent);
    setup.make_transport = [&silent](const net::TransportOptions& options, net::Transport::Handlers handlers) {
      return silent_transport(options, std::move(handlers), silent);
    };
  };
}

}  // namespace ckpt::agent::testing
