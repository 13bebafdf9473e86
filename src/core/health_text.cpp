// The texts of a verdict for people.
#include "core/health.hpp"

namespace ckpt::core {

namespace {

std::string rank_name(const Health& health, const NameOf& name_of) {
  if (health.rank == no_rank) return "a rank";
  const std::string on = health.node == no_node ? "" : " on node " + name_of(health.node);
  return "rank " + std::to_string(health.rank) + on;
}

std::string node_name(const Health& health, const NameOf& name_of) {
  return health.node == no_node ? "a node" : "node " + name_of(health.node);
}

// The numbers of ckptengine.h. An unknown status is shown as its number.
std::string status_text(std::uint8_t status) {
  switch (status) {
    case 2:
      return "the snapshots are discarded";
    case 16:
      return "snapshot() was called incorrectly";
    case 17:
      return "it has no agent";
    case 19:
      return "it belongs to an earlier incarnation of the job";
    case 20:
      return "its state does not fit into memory";
    case 21:
      return "its layout differs from what is stored";
    case 23:
      return "a deadline passed";
    case 25:
      return "the operating system or the GPU refused something";
    default:
      return "status " + std::to_string(status);
  }
}

std::string of_so_many(std::uint32_t now, std::uint32_t wanted) {
  return std::to_string(now) + " of " + std::to_string(wanted);
}

std::string with_detail(const Health& health) { return health.detail.empty() ? "" : ": " + health.detail; }

}  // namespace

const char* state_name(Standing standing) {
  switch (standing) {
    case Standing::is_protected:
      return "protected";
    case Standing::degraded:
      return "degraded";
    case Standing::unprotected:
      break;
  }
  return "not protected";
}

const char* cause_name(Cause cause) {
  switch (cause) {
    case Cause::none:
      return "none";
    case Cause::beginning:
      return "beginning";
    case Cause::no_trainers:
      return "no_trainers";
    case Cause::waits_for_ranks:
      return "waits_for_ranks";
    case Cause::waits_for_nodes:
      return "waits_for_nodes";
    case Cause::waits_for_storage:
      return "waits_for_storage";
    case Cause::waits_for_state:
      return "waits_for_state";
    case Cause::state_lost:
      return "state_lost";
    case Cause::no_leader:
      return "no_leader";
    case Cause::node_silent:
      return "node_silent";
    case Cause::wrong_token:
      return "wrong_token";
    case Cause::rank_gone:
      return "rank_gone";
    case Cause::rank_restoring:
      return "rank_restoring";
    case Cause::rank_stopped:
      return "rank_stopped";
    case Cause::rank_fails:
      return "rank_fails";
    case Cause::rank_behind:
      return "rank_behind";
    case Cause::no_snapshots:
      return "no_snapshots";
    case Cause::copies_do_not_fit:
      return "copies_do_not_fit";
    case Cause::copies_missing:
      return "copies_missing";
    case Cause::replacement:
      return "replacement";
    case Cause::ranks_differ:
      return "ranks_differ";
    case Cause::too_slow:
      return "too_slow";
    case Cause::fewer_copies:
      return "fewer_copies";
    case Cause::fewer_parity:
      return "fewer_parity";
    case Cause::storage_fails:
      return "storage_fails";
    case Cause::coordination_fails:
      return "coordination_fails";
    case Cause::other_protection:
      return "other_protection";
    case Cause::other_options:
      return "other_options";
    case Cause::no_replica:
      return "no_replica";
    case Cause::stalled:
      return "stalled";
    case Cause::agent_silent:
      return "agent_silent";
    case Cause::agent_gone:
      return "agent_gone";
    case Cause::superseded:
      return "superseded";
  }
  return "unknown";
}

std::string explain(const Health& health, const NameOf& name_of) {
  const std::string rank = rank_name(health, name_of), node = node_name(health, name_of);
  switch (health.cause) {
    case Cause::none:
      return "";
    case Cause::beginning:
      return "this incarnation of the job has committed nothing yet";
    case Cause::no_trainers:
      return "no trainer of the job runs";
    case Cause::waits_for_ranks:
      return "a restore waits for " + rank + ", which has not called restore()";
    case Cause::waits_for_nodes:
      return "a restore waits for " + node + ", which may hold newer state and does not answer";
    case Cause::waits_for_storage:
      return "a restore waits for storage" + with_detail(health);
    case Cause::waits_for_state:
      return "the state to restore is not on all nodes yet" + with_detail(health);
    case Cause::state_lost:
      return "the job's state cannot be restored" + with_detail(health);
    case Cause::no_leader:
      return health.node == no_node ? "the job has no leader" : node + " (the leader) does not reach this node";
    case Cause::node_silent:
      return node + " does not answer";
    case Cause::wrong_token:
      return node + " has another token than the job's other nodes, so these and it refuse each other";
    case Cause::rank_gone:
      return rank + " has no trainer any more";
    case Cause::rank_restoring:
      return rank + " has not returned from restore()";
    case Cause::rank_stopped:
      return "the trainer of " + rank + " is stopped (SIGSTOP or a debugger)";
    case Cause::rank_fails:
      return "snapshots of " + rank + " fail: " + status_text(health.status);
    case Cause::rank_behind:
      return rank + " makes no progress while others do";
    case Cause::no_snapshots:
      return "no rank calls snapshot()";
    case Cause::copies_do_not_fit:
      return node + " has no memory for the copies that it should hold" + with_detail(health);
    case Cause::copies_missing:
      return node + " does not have all the copies that it should hold" + with_detail(health);
    case Cause::replacement:
      return node + " is lost, and a standby node replaces it; nothing is committed until the job restarts";
    case Cause::ranks_differ:
      return health.detail.empty() ? "ranks that share state differ" : health.detail;
    case Cause::too_slow:
      return "the time between commits is longer than the job allows";
    case Cause::fewer_copies:
      return "the newest commit has " + of_so_many(health.copies_now, health.copies) + " copies";
    case Cause::fewer_parity:
      return "the newest commit survives " + of_so_many(health.parity_now, health.parity) + " losses in a parity group";
    case Cause::storage_fails:
      return "storage fails" + with_detail(health);
    case Cause::coordination_fails:
      return node + " cannot use the coordination store" + with_detail(health);
    case Cause::other_protection:
      return node + " was started with another option protection" + with_detail(health);
    case Cause::other_options:
      return rank + " was started with another option on_suspicion, capture or capture_every" + with_detail(health);
    case Cause::no_replica:
      return "capture is jit, but only " + node + " has " + health.detail +
             ". If that node fails, no other rank can be captured instead";
    case Cause::stalled:
      return "ranks take snapshots, but no checkpoint is committed";
    case Cause::agent_silent:
      return "the agent of this node does not answer" + with_detail(health);
    case Cause::agent_gone:
      return "the agent of this node is gone" + with_detail(health);
    case Cause::superseded:
      return "this trainer belongs to an earlier incarnation of the job";
  }
  return "";
}

std::string advice(const Health& health, const NameOf& name_of) {
  const std::string node = node_name(health, name_of);
  switch (health.cause) {
    case Cause::none:
    case Cause::beginning:
      return "";
    case Cause::no_trainers:
      return "start the job's trainers; what is committed stays in memory";
    case Cause::waits_for_ranks:
    case Cause::rank_restoring:
      return "check that trainer: does it run, and does it reach restore()?";
    case Cause::waits_for_nodes:
    case Cause::node_silent:
      return "check that machine and its agent's log; if the machine is lost, restart the job with another one";
    case Cause::waits_for_storage:
    case Cause::storage_fails:
      return "repair the storage; ckptctl doctor --storage tests it";
    case Cause::waits_for_state:
      return "wait, and see ckptctl status if it lasts";
    case Cause::state_lost:
      return "bring back a node that held the state, or remove what is left with ckptctl gc and begin anew";
    case Cause::no_leader:
      return "check the coordination store and the network between the nodes; ckptctl doctor tests the store";
    case Cause::wrong_token:
      return "give " + node + " the token_file of the others and restart its agent";
    case Cause::rank_gone:
    case Cause::replacement:
      return "restart the job's trainers";
    case Cause::rank_stopped:
      return "resume that trainer (SIGCONT), or restart the job";
    case Cause::rank_fails:
      return "see that trainer's log for the reason";
    case Cause::rank_behind:
      return "check that trainer: it may hang";
    case Cause::no_snapshots:
      return "check the trainers: they evaluate, hang or do not call snapshot()";
    case Cause::copies_do_not_fit:
      return "give " + node + " more memory (/dev/shm, option arena_bytes), or ask for fewer copies";
    case Cause::copies_missing:
      return "see the log of the agent of " + node + " for why its transfers fail";
    case Cause::ranks_differ:
      return "restart the job from the newest commit, and check the hardware of the nodes named";
    case Cause::too_slow:
      return "take snapshots less often, let checkpoints use the network while training does (schedule=immediate), or "
             "raise unprotected_after_ms";
    case Cause::fewer_copies:
    case Cause::fewer_parity:
      return "bring back the nodes that are missing, or add nodes";
    case Cause::coordination_fails:
      return "repair the coordination store; without it, the job cannot decide a restore";
    case Cause::other_protection:
      return "give all agents of the job one option protection, and restart that agent";
    case Cause::other_options:
      return "give all ranks and agents of the job the same on_suspicion, capture and capture_every; an agent that "
             "runs "
             "keeps its own, so restart it";
    case Cause::no_replica:
      return "give capture=auto or every, or spread the ranks that share state over two nodes or more";
    case Cause::stalled:
      return "see ckptctl status and the agents' logs";
    case Cause::agent_silent:
      return "check with ckptctl doctor whether ckptd is stopped; SIGKILL ends it, and its memory stays";
    case Cause::agent_gone:
      return "start ckptd on this node";
    case Cause::superseded:
      return "stop this process, and restart the rank if nobody has done so";
  }
  return "";
}

}  // namespace ckpt::core
