// Where an agent tells its trainer that it lives, and whether the job is protected: in the rank's control page, without
// locks or system calls.
//
// A view into the control page's mapping, which outlives it. One writer, the agent; any number of readers. The agent
// may die at any store: what is half written is not read.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "arena/arena_format.hpp"
#include "protocol/checkpoint_id.hpp"

namespace ckpt::arena {

// The verdict, as the trainer tells it on. Times in milliseconds.
struct HealthNews {
  std::uint8_t state = 2;           // 0 protected, 1 degraded, 2 not protected
  std::uint32_t rank = UINT32_MAX;  // that holds commits up; UINT32_MAX: none
  std::int64_t lasts_ms = 0;
  std::int64_t at_risk_ms = 0;
  std::int64_t at_risk_iterations = 0;
  std::int64_t allowed_ms = 0;
  CheckpointId committed;
  std::uint32_t copies_now = 0, copies = 0, parity_now = 0, parity = 0;
  // For people, cut off where they are too long.
  std::string reason;  // a word
  std::string node;    // that holds commits up, or ""
  std::string text, advice;
};

class HealthPage {
 public:
  explicit HealthPage(HealthWords& words) : words_(&words) {}

  // Agent.
  void heartbeat() { words_->heartbeats.fetch_add(1, std::memory_order_release); }
  void publish(const HealthNews& news);

  // Trainer. Whatever is in the words, the news are within their bounds.
  std::uint64_t heartbeats() const { return words_->heartbeats.load(std::memory_order_acquire); }
  std::optional<HealthNews> read() const;

 private:
  HealthWords* words_;
};

}  // namespace ckpt::arena
