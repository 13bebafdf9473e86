// Scheduler says when this node may send chunks to other nodes, so that they do not slow down training. It learns from
// the trainers' communication hooks (arena/comm_log.hpp) when each rank leaves the network idle. The node may send
// while all its ranks leave the network idle.
//
// Thread-safe. The agent's core thread adds and removes trainers and asks for the status. The transport's thread asks
// whether it may send.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "agent/trace_buffer.hpp"
#include "arena/comm_log.hpp"
#include "arena/control.hpp"
#include "net/chunk_pacer.hpp"
#include "options/options.hpp"
#include "schedule/device_profile.hpp"
#include "schedule/idle_forecast.hpp"
#include "schedule/pacer.hpp"
#include "schedule/plan.hpp"

namespace ckpt::agent {

class Scheduler : public net::ChunkPacer {
 public:
  // `directory`: that of the arena. The scheduler keeps there what it learns of each rank. `trace` outlives the
  // scheduler.
  Scheduler(const Options& options, std::string directory, TraceBuffer& trace);

  // Adds the rank's trainer, which may communicate from now on. Forgets an earlier trainer of the rank.
  void add(core::Rank rank, std::shared_ptr<const arena::Control> control);
  // Removes the rank's trainer, which no longer uses the network.
  void remove(core::Rank rank);
  // Reads the events that the communication hooks have logged. Call this often, so that no log overflows.
  void listen();
  // When the rank's current iteration began, in microseconds of the monotonic clock. Nothing if its hooks have not
  // reported an iteration.
  std::optional<std::int64_t> iteration_began_us(core::Rank rank) const;

  std::size_t allow(std::size_t left_bytes, std::size_t under_way) override;
  void received(const net::SentChunk& chunk) override;
  std::int64_t ask_again_us() const override;

  // The field "schedule" of `ckptctl status`. Null while no hook has reported anything.
  nlohmann::json status() const;

 private:
  struct Hooked {
    Hooked(std::shared_ptr<const arena::Control> page, const schedule::IdleForecastOptions& options,
           const schedule::Profile& known)
        : control(std::move(page)), log(control->comm()), idle_forecast(options, known), device(options.profiler) {}
    std::shared_ptr<const arena::Control> control;
    arena::CommReader log;
    schedule::RankIdleForecast idle_forecast;
    schedule::DeviceProfiler device;
    std::optional<std::int64_t> bubble_began_us;                // of a bubble that has not ended
    std::optional<std::int64_t> copy_began_us;                  // of copying that has not ended
    std::map<std::uint8_t, std::deque<std::int64_t>> began_us;  // by channel: communications that have not ended
    bool is_saved = false;                                      // whether the learned profile is in its file
    bool has_reported = false;
    std::optional<std::int64_t> iteration_began_us;
  };
  void listen_to(core::Rank rank, Hooked& hooked);
  void note(core::Rank rank, Hooked& hooked, const arena::CommEvent& event);
  schedule::IdleForecast idle_forecast(double now_s) const;
  std::uint64_t begun() const;
  double iteration_s() const;
  nlohmann::json rank_json(core::Rank rank, const Hooked& hooked) const;
  std::optional<schedule::PlanRequest> plan_request() const;

  const Options options_;
  const std::string directory_;
  TraceBuffer& trace_;

  mutable std::mutex mutex_;  // for all below
  std::map<core::Rank, Hooked> ranks_;
  schedule::Pacer pacer_;
  // How many communications of training had begun when the last chunk was sent. If no further one has begun when the
  // chunk is acknowledged, training did not slow it down. Nothing if other chunks were under way when it was sent, or
  // if training may have been using the network (unless the link's speed is still unknown).
  std::optional<std::uint64_t> undisturbed_since_;
  std::uint64_t chunks_ = 0;
  std::map<std::uint64_t, std::uint64_t> sent_bytes_;  // by checkpoint; only the newest are kept
};

}  // namespace ckpt::agent
