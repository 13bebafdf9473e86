// What trainers and tools ask of the agent over its socket, between the server that speaks it and the core thread that
// answers.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/unique_fd.hpp"
#include "ckptengine/ckptengine.h"
#include "protocol/events.hpp"

namespace ckpt::agent {

struct Reply {
  ckpt_status status = CKPT_OK;
  std::string message;
  nlohmann::json fields = nlohmann::json::object();
  std::vector<UniqueFd> fds;
};
// Any thread, once.
using Respond = std::function<void(Reply)>;

// Which engine on which rank asks.
struct Asker {
  protocol::Rank rank = 0;
  std::uint64_t instance = 0;
};

// A segment for each of these, in this order: the parts of the rank's share, and its private shard.
struct SlotRequest {
  std::string shard;
  std::uint64_t bytes = 0;
  std::uint64_t layout_bytes = 0;
};
struct ReserveRequest {
  std::vector<SlotRequest> slots;
  std::string shortage;  // of memory on the trainer's device, for people; empty: none
};

struct RestoreRequest {
  std::int64_t timeout_ms = 0;
  bool wants_gpu_replication = false;  // from GPU to GPU
};

struct CorruptRequest {
  std::string shard;
  CheckpointId checkpoint;
  std::optional<std::int64_t> timeout_ms;  // none: the agent's restore_timeout_ms
};

// Called by the server's thread; returns at once.
class TrainerRequests {
 public:
  virtual ~TrainerRequests() = default;

  // The rank is this trainer's: whoever had it before is proven dead. `pid` is for people.
  virtual void hello(const protocol::TrainerHello& hello, std::int64_t pid, Respond respond) = 0;
  // Proven: neither the process nor the engine is there any more.
  virtual void exited(Asker asker) = 0;
  virtual void restore(Asker asker, const RestoreRequest& request, Respond respond) = 0;
  // `no_replication`: why it cannot take part in its path after all; "" where it can, or has none.
  virtual void restored(Asker asker, std::string no_replication, Respond respond) = 0;
  virtual void corrupt(Asker asker, const CorruptRequest& request, std::int64_t timeout_ms, Respond respond) = 0;
  virtual void reserve(Asker asker, const ReserveRequest& request, Respond respond) = 0;
  virtual void status(Respond respond) = 0;
  virtual void health(Respond respond) = 0;
  virtual void trace(Respond respond) = 0;
  virtual void stop(Respond respond) = 0;
};

}  // namespace ckpt::agent
