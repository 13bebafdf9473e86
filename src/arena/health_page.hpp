// HealthPage reads and writes the part of a control page in which the agent tells its trainer that the agent lives, and
// whether the job is protected. It takes no lock and makes no system call.
//
// A HealthPage points into the mapping of the control page, which must outlive it. The agent is the only writer; any
// number of threads may read. If the agent dies while it writes, readers ignore the unfinished verdict.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "arena/arena_format.hpp"
#include "core/checkpoint_id.hpp"

namespace ckpt::arena {

// What the agent tells the trainer about the job's health.
struct HealthNews {
  std::uint8_t state = 2;               // 0 protected, 1 degraded, 2 not protected
  std::uint32_t rank = UINT32_MAX;      // the rank that delays commits; UINT32_MAX: none
  std::int64_t lasts_ms = 0;            // how long `state` has been what it is
  std::int64_t at_risk_ms = 0;          // training time since the newest commit: what a failure would lose now
  std::int64_t at_risk_iterations = 0;  // iterations since the newest commit
  std::int64_t allowed_ms = 0;          // how long the job may be without a commit before it counts as not protected
  CheckpointId committed;               // the newest commit
  std::uint32_t copies_now = 0, copies = 0, parity_now = 0, parity = 0;
  // Texts that are too long are cut off.
  std::string reason;        // one word, for programs (docs/protection.md)
  std::string node;          // the node that delays commits; "": none
  std::string text, advice;  // the reason and what to do, for people
  std::string suspicion;     // which ranks hold training up, for people; "": none
};

class HealthPage {
 public:
  explicit HealthPage(HealthWords& words) : words_(&words) {}

  // For the agent.
  void heartbeat() { words_->heartbeats.fetch_add(1, std::memory_order_release); }
  void publish(const HealthNews& news);

  // For the trainer. heartbeats() grows while the agent lives. read() returns nothing if there is no complete verdict
  // now. The values that it returns are within their bounds, whatever the page has.
  std::uint64_t heartbeats() const { return words_->heartbeats.load(std::memory_order_acquire); }
  std::optional<HealthNews> read() const;

 private:
  HealthWords* words_;
};

}  // namespace ckpt::arena
