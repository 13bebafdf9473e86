// HealthPage is the part of a control page in which the agent tells its trainer that it lives, and whether the job is
// protected. It takes no lock and makes no system call.
//
// It points into the control page's mapping, which must outlive it. The agent is the only writer; any number of threads
// may read. If the agent dies while it writes, readers ignore the unfinished verdict.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "arena/arena_format.hpp"
#include "core/checkpoint_id.hpp"

namespace ckpt::arena {

// What the agent tells the trainer about the job's health. Times are in milliseconds.
struct HealthNews {
  std::uint8_t state = 2;           // 0 protected, 1 degraded, 2 not protected
  std::uint32_t rank = UINT32_MAX;  // the rank that delays commits; UINT32_MAX: none
  std::int64_t lasts_ms = 0;
  std::int64_t at_risk_ms = 0;
  std::int64_t at_risk_iterations = 0;
  std::int64_t allowed_ms = 0;
  CheckpointId committed;
  std::uint32_t copies_now = 0, copies = 0, parity_now = 0, parity = 0;
  // For people. Texts that are too long are cut off.
  std::string reason;  // a word
  std::string node;    // the node that delays commits, or ""
  std::string text, advice;
  std::string suspicion;  // which ranks hold training up, or ""
};

class HealthPage {
 public:
  explicit HealthPage(HealthWords& words) : words_(&words) {}

  // Agent.
  void heartbeat() { words_->heartbeats.fetch_add(1, std::memory_order_release); }
  void publish(const HealthNews& news);

  // Trainer. Values are always within their bounds, whatever the words hold.
  std::uint64_t heartbeats() const { return words_->heartbeats.load(std::memory_order_acquire); }
  std::optional<HealthNews> read() const;

 private:
  HealthWords* words_;
};

}  // namespace ckpt::arena
