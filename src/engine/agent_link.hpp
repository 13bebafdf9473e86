// The engine's lasting link to its agent. A watcher thread listens for commits and for the agent's death, and connects
// again after it; the slots stay where they are meanwhile.
//
// Requests come from the training thread, one at a time. connected(), disowned(), session_number(), why_disconnected()
// and what comm() offers are for any thread; all but why_disconnected() take no lock.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "base/error.hpp"
#include "base/options.hpp"
#include "engine/agent_connection.hpp"
#include "engine/agent_session.hpp"
#include "engine/comm_hooks.hpp"
#include "engine/open_engines.hpp"

namespace ckpt::engine {

// How large the slots of a local segment must be.
struct SlotSize {
  std::string shard;
  std::uint64_t bytes = 0;
  std::uint64_t layout_bytes = 0;
};
using SlotSizes = std::vector<SlotSize>;

struct Reservation {
  SlotSizes sizes;
  std::string shortage;  // of memory on the device, in a sentence for people; empty: none
};

class AgentLink {
 public:
  // Called on the watcher's thread after the agent changed a word of the control page, or may have. Does not throw.
  // Says whether to look again soon, for something of which the agent does not tell.
  enum class Look { later, soon };
  using OnWords = std::function<Look(const arena::Control&)>;

  // Connects as AgentConnection::open() does. Throws Failure.
  AgentLink(const Options& options, OnWords on_words);
  ~AgentLink();
  AgentLink(const AgentLink&) = delete;
  AgentLink& operator=(const AgentLink&) = delete;

  bool connected() const { return connected_.load(std::memory_order_acquire); }
  // Why snapshots are not taken while the link is down.
  Failure why_disconnected() const;
  // The agent does not know this engine any more: it is no use to connect again.
  bool disowned() const { return disowned_.load(std::memory_order_acquire); }

  // The control page of now, also while a request is under way.
  std::shared_ptr<arena::Control> control() const;

  // Grows whenever session() becomes another.
  std::uint32_t session_number() const { return session_number_.load(std::memory_order_acquire); }
  AgentSession session() const;

  // Asks the agent; where it dies meanwhile, waits for a new one and asks that `again`, since it knows nothing of what
  // went before. Throws Failure, also for an answer that is a refusal.
  Frame ask(nlohmann::json request, const nlohmann::json& again, Deadline deadline);

  // Has the slots made and maps them; session() has them then. Throws Failure. Done again by itself for every new
  // agent.
  void reserve(const Reservation& wanted);

  // Tells the agent that this engine is closed and writes nothing any more.
  void leave(Deadline deadline);

  // From now on this engine is known to its agents as one that has restored, and tells them when it communicates.
  void joined(std::uint64_t incarnation);

  const CommHooks& comm() const { return comm_; }

 private:
  void watch();
  bool watch_words(const AgentSession& session);
  void give_up_damaged_slots();
  std::optional<ckpt_status> reconnect();
  ckpt_status refused(const Failure& failure);
  void install(AgentConnection connection, std::shared_ptr<Slots> slots);
  Failure disconnection() const;
  void lost(const Failure& failure);

  const Options options_;
  const OnWords on_words_;
  const OpenEngine self_;
  std::atomic<std::uint64_t> incarnation_{0};
  std::atomic<bool> connected_{false};
  std::atomic<bool> disowned_{false};
  std::atomic<std::uint32_t> session_number_{0};
  std::atomic<bool> stop_{false};
  CommHooks comm_;  // its files are set with the lock held

  mutable std::mutex mutex_;  // for all below; held while a request is under way
  std::condition_variable changed_;
  std::optional<AgentConnection> connection_;
  AgentSession session_;
  std::optional<Reservation> reserved_;
  Failure why_disconnected_{CKPT_ERR_NO_AGENT, "the node's agent was not found yet"};

  mutable std::mutex control_mutex_;  // never held for long
  std::shared_ptr<arena::Control> control_;

  std::thread watcher_;
};

}  // namespace ckpt::engine
