// HealthView judges the job's health for one node. It uses the leader's newest verdict, the age of this verdict, and
// the time of the last commit that the node knows. Pure. Not thread-safe.
#pragma once

#include <optional>
#include <vector>

#include "core/health.hpp"
#include "core/messages.hpp"

namespace ckpt::core {

class HealthView {
 public:
  // Call this after every event, with the newest directive. `is_of_now`: false if the directive may have been sent
  // before or during a pause of this node. Then the directive is no sign that the leader is alive now, and a new commit
  // does not count as made now.
  void observe(const Directive& directive, CheckpointId highest_commit, bool is_of_now, TimeMs now);

  struct Facts {
    NodeId leader = no_node;
    bool coordination_fails = false;
    const std::vector<NodeId>& distrusted;
  };
  // Returns the leader's verdict, or this node's own verdict if that is worse: this node may hear no leader, or may not
  // have heard of a commit for too long.
  Health judge(const Directive& directive, const Config& config, const Facts& facts, TimeMs now) const;

  // What this node knows of health when it becomes the leader.
  InheritedHealth known(const Directive& directive) const { return {clock_, directive.health}; }

 private:
  CommitClock clock_;
  std::uint64_t epoch_ = 0, sequence_ = 0;  // of the newest directive
  std::optional<TimeMs> received_at_;
  std::optional<TimeMs> began_at_;
};

}  // namespace ckpt::core
