// TrainerRequests has one function for each request that trainers and tools can make of the agent. The thread that
// serves the agent's socket calls these functions. The agent's core thread answers.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/unique_fd.hpp"
#include "ckptengine/ckptengine.h"
#include "core/events.hpp"

namespace ckpt::agent {

struct Reply {
  ckpt_status status = CKPT_OK;
  std::string message;
  nlohmann::json fields = nlohmann::json::object();
  std::vector<UniqueFd> fds;
};
// Call it once, on any thread.
using Respond = std::function<void(Reply)>;

// The engine that asks, and the engine's rank.
struct Asker {
  core::Rank rank = 0;
  std::uint64_t instance = 0;
};

// Asks for the slots of a rank. There is one entry for each segment that the rank needs: first the parts of its share
// in order, then its private shard.
struct SlotRequest {
  std::string shard;
  std::uint64_t bytes = 0;
  std::uint64_t layout_bytes = 0;
};
struct ReserveRequest {
  std::vector<SlotRequest> slots;
  std::string shortage;  // what the trainer's device lacks memory for, for people; "" if nothing
};

struct RestoreRequest {
  std::int64_t timeout_ms = 0;
  bool wants_gpu_replication = false;
};

struct CorruptRequest {
  std::string shard;
  CheckpointId checkpoint;
  std::optional<std::int64_t> timeout_ms;  // none: the agent's restore_timeout_ms
};

// Only the server's thread calls these functions. They return at once.
class TrainerRequests {
 public:
  virtual ~TrainerRequests() = default;

  // This trainer now has the rank. Its earlier trainer is proven dead. `pid` is for people.
  virtual void hello(const core::TrainerHello& hello, std::int64_t pid, Respond respond) = 0;
  // It is certain that the process or the engine is gone. `died`: the process ended and never closed its engine.
  virtual void exited(Asker asker, bool died) = 0;
  virtual void restore(Asker asker, const RestoreRequest& request, Respond respond) = 0;
  // `no_replication`: why the trainer cannot take part in GPU replication after all. "" if it can, or did not ask.
  virtual void restored(Asker asker, std::string no_replication, Respond respond) = 0;
  virtual void corrupt(Asker asker, const CorruptRequest& request, std::int64_t timeout_ms, Respond respond) = 0;
  virtual void reserve(Asker asker, const ReserveRequest& request, Respond respond) = 0;
  virtual void status(Respond respond) = 0;
  virtual void health(Respond respond) = 0;
  virtual void trace(Respond respond) = 0;
  virtual void stop(Respond respond) = 0;
};

}  // namespace ckpt::agent
