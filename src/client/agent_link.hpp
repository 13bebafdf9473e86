// AgentLink keeps the engine linked to its agent. Its watcher thread waits for commits, and notices if the agent dies.
// The watcher then connects to the next agent. The slots stay mapped meanwhile.
//
// The training thread makes requests, one at a time. Any thread may call connected(), disowned(), session_number() and
// why_disconnected(), and use what comm() returns. None of these takes a lock except why_disconnected().
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
#include "client/agent_connection.hpp"
#include "client/agent_session.hpp"
#include "options/options.hpp"

namespace ckpt::client {

// How large each slot of the segment for `shard` (a part, or the private shard) must be: for its data, and for its
// layout text.
struct SlotSize {
  std::string shard;
  std::uint64_t bytes = 0;
  std::uint64_t layout_bytes = 0;
};
using SlotSizes = std::vector<SlotSize>;

struct Reservation {
  SlotSizes sizes;
  std::string shortage;  // Device::shortage(); the agent shows it in its status
};

class AgentLink {
 public:
  // The watcher thread calls an OnWords callback when the agent may have changed the control page. The callback must
  // not throw. If it returns `soon`, the watcher calls it again soon, even if the agent does not ring the doorbell.
  enum class Look { later, soon };
  using OnWords = std::function<Look(const arena::Control&)>;

  // Connects to the agent, or starts one, as AgentConnection::open() does. Throws Failure.
  AgentLink(const Options& options, OnWords on_words);
  ~AgentLink();
  AgentLink(const AgentLink&) = delete;
  AgentLink& operator=(const AgentLink&) = delete;

  bool connected() const { return connected_.load(std::memory_order_acquire); }
  // Why snapshots are skipped while the link is down.
  Failure why_disconnected() const;
  // True once the agent no longer knows this engine. Connecting again is then useless.
  bool disowned() const { return disowned_.load(std::memory_order_acquire); }

  // The current control page. Unlike session(), control() does not wait for a request that is under way.
  std::shared_ptr<arena::Control> control() const;

  // Grows whenever session() changes.
  std::uint32_t session_number() const { return session_number_.load(std::memory_order_acquire); }
  AgentSession session() const;
  // Returns the session, or nothing while a request is under way.
  std::optional<AgentSession> session_now() const;

  // Sends `request` and returns the answer. If the agent dies meanwhile, waits for a new agent, and sends the request
  // `again` to that one instead. A new agent knows nothing of earlier requests, so `again` must not depend on them.
  // Throws Failure if the agent refuses the request. Also throws Failure if no agent has answered by the deadline, or
  // if the agent no longer knows this engine. `meanwhile` as in AgentConnection::ask().
  Frame ask(nlohmann::json request, const nlohmann::json& again, Deadline deadline,
            const std::function<bool()>& meanwhile = {});

  // Asks the agent to make the slots, and maps them. Afterwards session() has them. The link repeats this with every
  // new agent. Throws Failure.
  void reserve(const Reservation& wanted);

  // Tells the agent that this engine is closed and will not write any more.
  void leave(Deadline deadline);

  // Leaves the session. Then registers as a new engine of the same rank and process, which has not restored yet. The
  // slots stay mapped until the next reserve() has its answer. If the agent still has the same slots then, reserve()
  // keeps them mapped. rejoin() waits until the deadline for an agent to run, and may wait longer for the agent's
  // answers. If it throws Failure, the link stays disconnected until a later rejoin() succeeds. No other request may be
  // under way.
  void rejoin(Deadline deadline);

  // Call this when the engine has restored in this incarnation. From now on the link tells every new agent so, and the
  // hooks of comm() write to the control page.
  void joined(std::uint64_t incarnation);

  const CommHooks& comm() const { return comm_; }

 private:
  void watch();
  void end_watcher();
  void leave_session(Deadline deadline);
  AgentConnection claim_anew(Deadline deadline) const;
  bool watch_words(const AgentSession& session);
  void give_up_damaged_slots();
  std::optional<ckpt_status> reconnect();
  ckpt_status refused(const Failure& failure);
  void install(AgentConnection connection, std::shared_ptr<Slots> slots);
  Failure disconnection() const;
  void lost(const Failure& failure);

  const Options options_;
  const OnWords on_words_;
  std::unique_ptr<OpenEngine> self_;  // replaced while no watcher runs
  std::atomic<std::uint64_t> incarnation_{0};
  std::atomic<bool> connected_{false};
  std::atomic<bool> disowned_{false};
  std::atomic<std::uint32_t> session_number_{0};
  std::atomic<bool> stop_{false};
  CommHooks comm_;  // its files are set under the lock

  mutable std::mutex mutex_;  // for all below; held while a request is under way
  std::condition_variable changed_;
  std::optional<AgentConnection> connection_;
  AgentSession session_;
  std::optional<Reservation> reserved_;
  std::shared_ptr<Slots> slots_before_;  // of the session before a rejoin, until the next reservation
  Failure why_disconnected_{CKPT_ERR_NO_AGENT, "the node's agent was not found yet; this process keeps looking"};

  mutable std::mutex control_mutex_;  // never held for long
  std::shared_ptr<arena::Control> control_;

  std::thread watcher_;
};

}  // namespace ckpt::client
