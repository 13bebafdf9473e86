// Writes the agent's answers to `ckptctl status` and `ckptctl trace`. Only the agent's core thread uses it.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "agent/arena_watch.hpp"
#include "agent/health_reporter.hpp"
#include "agent/member_watch.hpp"
#include "agent/peers.hpp"
#include "agent/pieces/segments.hpp"
#include "agent/scheduler.hpp"
#include "agent/trainers/trainer_manager.hpp"
#include "agent/transfer_orders.hpp"
#include "arena/node_arena.hpp"
#include "core/node.hpp"
#include "net/transport.hpp"
#include "options/options.hpp"

namespace ckpt::agent {

class StorePoller;

// The parts of the agent from which the answers are made.
struct StatusSources {
  const Options& options;
  const arena::NodeArena& arena;
  const PieceIndex& index;
  Scheduler& scheduler;
  const TraceBuffer& trace;
  const EventLog& event_log;
  const Peers& peers;
  const Segments& segments;
  const TransferOrders& transfers;
  const TrainerManager& trainers;
  const core::Node& core;
  const MemberWatch& members;
  const HealthReporter& health;
  const ArenaWatch& arena_watch;
  const net::Transport& transport;
  const StorePoller& store;
  const std::string& local_store;  // file system of the coordination directory, if no other machine sees it; else ""
  const std::optional<Clock::time_point>& committed_at;  // when this agent learned of the newest commit
};

nlohmann::json status_json(const StatusSources& sources);
nlohmann::json trace_json(const StatusSources& sources);

// Returns a sentence for people if the coordination directory may be the wrong one: ranks are missing, no other node
// has ever registered, and the directory lies in `local_store`, a file system that no other machine sees. Otherwise "".
std::string coordination_doubt(const core::NodeStatus& status, const Peers& peers, const Options& options,
                               const std::string& local_store);

// Returns, for people, what a restore that takes long is waiting for. `store_trouble`: the trouble with the
// coordination store; "" if there is none. `doubt`: the result of coordination_doubt(). `has_storage`: the agent has
// storage.
std::string what_is_missing(const core::NodeStatus& status, const Peers& peers, const std::string& store_trouble,
                            const std::string& doubt, bool has_storage);

}  // namespace ckpt::agent
