// Decides when this node's chunks leave. Reads what the hooks of the node's trainers tell (arena/comm_log.hpp), learns
// each rank's idle moments from it, and lets chunks go in those that all of them leave (schedule/pacer.hpp).
//
// Thread-safe: the core thread tells of trainers and asks for the status, the transport's thread asks for leave.
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
#include "base/options.hpp"
#include "net/chunk_pacer.hpp"
#include "schedule/idle_forecast.hpp"
#include "schedule/pacer.hpp"
#include "schedule/plan.hpp"

namespace ckpt::agent {

class Scheduler : public net::ChunkPacer {
 public:
  // `directory`: of the arena, where profiles are kept. `trace` outlives the scheduler.
  Scheduler(const Options& options, std::string directory, TraceBuffer& trace);

  // A trainer that may communicate from now on; one that is known by this rank is forgotten.
  void add(protocol::Rank rank, std::shared_ptr<const arena::Control> control);
  // Its network is free.
  void remove(protocol::Rank rank);
  // Reads what hooks told since; often enough that logs do not overflow.
  void listen();
  // When the rank's iteration began, as far as its marks were heard; in microseconds.
  std::optional<std::int64_t> iteration_began_us(protocol::Rank rank) const;
  // There is something to lose: from now on profiles are learned beside checkpoint traffic.
  void received_commit();

  std::size_t allow(std::size_t left_bytes, std::size_t under_way) override;
  void received(const net::SentChunk& chunk) override;
  std::int64_t ask_again_us() const override;

  // For `ckptctl status`; null while no hook has been heard.
  nlohmann::json status() const;

 private:
  struct Hooked {
    Hooked(std::shared_ptr<const arena::Control> page, const schedule::IdleForecastOptions& options,
           const schedule::Profile& known)
        : control(std::move(page)), log(control->comm()), idle_forecast(options, known) {}
    std::shared_ptr<const arena::Control> control;
    arena::CommReader log;
    schedule::RankIdleForecast idle_forecast;
    std::map<std::uint8_t, std::deque<std::int64_t>> began_us;  // by channel: what has not ended
    bool is_saved = false;                                      // this profile
    bool is_received = false;
    std::optional<std::int64_t> iteration_began_us;
  };
  void listen_to(protocol::Rank rank, Hooked& hooked);
  void note(protocol::Rank rank, Hooked& hooked, const arena::CommEvent& event);
  schedule::IdleForecast idle_forecast(double now_s) const;
  std::uint64_t begun() const;
  double iteration_s() const;
  nlohmann::json rank_json(protocol::Rank rank, const Hooked& hooked) const;
  std::optional<schedule::PlanRequest> plan_request() const;

  const Options options_;
  const std::string directory_;
  TraceBuffer& trace_;

  mutable std::mutex mutex_;  // for all below
  std::map<protocol::Rank, Hooked> ranks_;
  schedule::Pacer pacer_;
  bool quiet_ = true;
  bool is_learning_ = false;  // when it was asked last
  // Where the last chunk left alone into an idle network: communications that had begun by then.
  std::optional<std::uint64_t> undisturbed_since_;
  std::uint64_t chunks_ = 0;
  std::map<std::uint64_t, std::uint64_t> sent_bytes_;  // by checkpoint, of the newest ones
};

}  // namespace ckpt::agent
