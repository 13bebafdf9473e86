// HealthWatch tells the trainer whether the job is protected. It passes on the agent's verdict, and judges by itself
// while the agent is silent. It has a thread, which looks several times a second and touches no tensor or slot.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "arena/control.hpp"
#include "base/clock.hpp"
#include "ckptengine/ckptengine.h"

namespace ckpt::client {

// What the trainer knows about the job's health.
struct HealthFacts {
  bool is_connected = false;
  std::string why_disconnected;
  bool is_superseded = false;
  std::int64_t silent_ms = 0;       // since the agent's last heartbeat
  std::int64_t quiet_ms = 0;        // since this trainer last learned of a commit, or since it began
  std::int64_t heartbeat_ms = 250;  // the agent's heartbeat comes at least this often
  std::int64_t unprotected_after_ms = 5000;
  std::string node;  // this node
  std::optional<arena::HealthNews> news;
};
// Judges from these facts alone. Pure.
ckpt_health_t judge(const HealthFacts& facts);

class HealthWatch {
 public:
  struct Settings {
    std::int64_t unprotected_after_ms = 5000;
    std::int64_t heartbeat_ms = 250;
    std::string node;
  };
  // Where the watch gets its facts. Its thread calls these functions.
  struct Source {
    std::function<std::shared_ptr<arena::Control>()> control;
    std::function<bool()> is_connected;
    std::function<std::string()> why_disconnected;
  };
  HealthWatch(Settings settings, Source source);
  ~HealthWatch();
  HealthWatch(const HealthWatch&) = delete;
  HealthWatch& operator=(const HealthWatch&) = delete;

  // [any thread]
  ckpt_health_t now() const;
  // [any thread] Sets the callback; null: none. When this returns, the earlier callback no longer runs, unless it made
  // this call itself.
  void on_change(ckpt_health_callback callback, void* user);

 private:
  void run();
  void look();
  bool is_due(const ckpt_health_t& health);
  void call(const ckpt_health_t& health);

  const Settings settings_;
  const Source source_;

  // Used only by the thread.
  std::shared_ptr<arena::Control> watched_;
  std::uint64_t heartbeats_ = 0;
  CheckpointId committed_;
  Clock::time_point heartbeat_at_, committed_at_;
  std::optional<arena::HealthNews> news_;
  std::optional<ckpt_health_t> notified_;  // last given to the callback
  Clock::time_point notified_at_, changed_at_;

  mutable std::mutex mutex_;  // for the next three
  std::condition_variable wake_;
  bool stop_ = false;
  ckpt_health_t health_{};

  std::recursive_mutex calling_;  // held while the callback runs
  ckpt_health_callback callback_ = nullptr;
  void* user_ = nullptr;
  bool has_new_callback_ = false;

  std::thread thread_;
};

}  // namespace ckpt::client
