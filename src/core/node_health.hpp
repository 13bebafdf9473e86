// HealthView is one node's own judgement of the job's health. It uses the leader's newest verdict, the verdict's age,
// and the time of the last commit that the node knows.
#pragma once

#include <optional>
#include <vector>

#include "core/health.hpp"
#include "core/messages.hpp"

namespace ckpt::core {

class HealthView {
 public:
  // Call this after every event. `is_of_now`: false if the directive may have come before or during a pause of this
  // node.
  void observe(const Directive& directive, CheckpointId highest_commit, bool is_of_now, TimeMs now);

  struct Facts {
    NodeId leader = no_node;
    bool coordination_fails = false;
    const std::vector<NodeId>& distrusted;
  };
  // The leader's verdict, or this node's own if that is worse because it hears no leader or no commit.
  Health judge(const Directive& directive, const Config& config, const Facts& facts, TimeMs now) const;

  // The starting point for a leader that is elected on this node.
  InheritedHealth known(const Directive& directive) const { return {clock_, directive.health}; }

 private:
  CommitClock clock_;
  std::uint64_t epoch_ = 0, sequence_ = 0;  // of the newest directive
  std::optional<TimeMs> received_at_;
  std::optional<TimeMs> began_at_;
};

}  // namespace ckpt::core
