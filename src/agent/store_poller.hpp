// Keeps an eye on the coordination store and writes to it what the core asks for.
//
// Owns one thread, the only one that touches the store after start, since it may be slow or gone. An outage is logged
// once, and once when it is over; reading and writing may fail apart from each other. Results go to the callbacks, on
// that thread.
#pragma once

#include <array>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "agent/log.hpp"
#include "coord/registry.hpp"
#include "coord/store.hpp"
#include "protocol/events.hpp"

namespace ckpt::agent {

class StorePoller {
 public:
  struct Handlers {
    std::function<void(const protocol::RootRead&)> root;
    std::function<void(const protocol::LifeRead&)> life;
    std::function<void(const std::vector<coord::NodeEntry>&)> nodes;
  };
  // `store` outlives this object.
  StorePoller(coord::Store& store, Handlers handlers, Log log);
  ~StorePoller();
  StorePoller(const StorePoller&) = delete;
  StorePoller& operator=(const StorePoller&) = delete;

  // [any thread] Compare-and-swap, answered by the record as it is then. Of several that wait for one record, the last
  // counts.
  void swap(const protocol::SwapRoot& swap);
  void swap(const protocol::SwapLife& swap);

  // [any thread] What is wrong with the store, in a sentence; "" where nothing is.
  std::string trouble() const;

 private:
  enum Access { reading, writing };  // each with its own trouble; swapping is writing

  void run();
  void attempt(Access access, const std::function<void()>& body);
  void note(Access access, const std::string& trouble);
  void poll(bool nodes_too);
  void read_root();
  void read_life();

  coord::Store& store_;
  const Handlers handlers_;
  const Log log_;
  bool life_seen_ = false;

  mutable std::mutex mutex_;  // for all below
  std::condition_variable wake_;
  std::optional<protocol::SwapRoot> root_swap_;
  std::optional<protocol::SwapLife> life_swap_;
  std::array<std::string, 2> troubles_;  // by Access
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace ckpt::agent
