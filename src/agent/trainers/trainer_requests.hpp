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

// The answer to a request. If `status` is not CKPT_OK, `message` says why, for people.
struct Reply {
  ckpt_status status = CKPT_OK;
  std::string message;
  nlohmann::json fields = nlohmann::json::object();
  std::vector<UniqueFd> fds;
};
// Sends the answer to a request. Must be called exactly once, on any thread.
using Respond = std::function<void(Reply)>;

// The engine that asks, and the engine's rank.
struct Asker {
  core::Rank rank = 0;
  std::uint64_t instance = 0;
};

// How large the slots of one of the rank's segments must be.
struct SlotRequest {
  std::string shard;
  std::uint64_t bytes = 0;         // of the piece
  std::uint64_t layout_bytes = 0;  // of the piece's layout
};
// Asks for the slots of a rank.
struct ReserveRequest {
  std::vector<SlotRequest> slots;  // first the parts of the main shard that the rank captures, then its private shard
  std::string shortage;            // what the trainer's GPU lacks memory for, for people; "" if nothing
};

struct RestoreRequest {
  std::int64_t timeout_ms = 0;
  bool wants_gpu_replication = false;
  bool takes_shards = false;      // it can take over shards that other ranks captured
  bool follows_arrivals = false;  // it wants to know of pieces that are still arriving
};

// Reports a damaged piece among those to restore, and asks for a whole one.
struct CorruptRequest {
  std::string shard;
  CheckpointId checkpoint;
  std::optional<std::int64_t> timeout_ms;  // limit for the answer; none: the agent's restore_timeout_ms
  bool follows_arrivals = false;           // see RestoreRequest
};

// Only the server's thread calls these functions. They return at once.
class TrainerRequests {
 public:
  virtual ~TrainerRequests() = default;

  // This trainer now has the rank. It is certain that the rank's earlier trainer no longer writes. `pid`: the new
  // trainer's process, for people.
  virtual void hello(const core::TrainerHello& hello, std::int64_t pid, Respond respond) = 0;
  // It is certain that the process has ended or the engine is closed. `died`: the process ended without closing the
  // engine, and no other trainer has claimed the rank yet.
  virtual void exited(Asker asker, bool died) = 0;
  // The rank asks for its state. The answer comes when its pieces are in this node's memory, when the restore has
  // failed, or after request.timeout_ms. With request.follows_arrivals, an answer also comes when a piece begins to
  // arrive of which the rank does not know. Then it asks again.
  virtual void restore(Asker asker, const RestoreRequest& request, Respond respond) = 0;
  // The rank has read its state. `no_replication`: why the trainer cannot take part in GPU replication after all. "" if
  // it can, or did not ask.
  virtual void restored(Asker asker, std::string no_replication, Respond respond) = 0;
  virtual void corrupt(Asker asker, const CorruptRequest& request, std::int64_t timeout_ms, Respond respond) = 0;
  virtual void reserve(Asker asker, const ReserveRequest& request, Respond respond) = 0;
  // A communication of the trainer has failed, and no halt interrupted it. `text`: how, for people.
  virtual void trouble(Asker asker, std::string text, Respond respond) = 0;
  virtual void status(Respond respond) = 0;
  virtual void health(Respond respond) = 0;
  virtual void trace(Respond respond) = 0;
  virtual void stop(Respond respond) = 0;
};

}  // namespace ckpt::agent
