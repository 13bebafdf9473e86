// Claims makes sure that each rank on this node has only one trainer. A new trainer gets a rank when the old trainer
// can no longer write: its process has exited (the pidfd says so), or its engine said that it is closed. A closed
// connection does not suffice: the agent may have restarted while the trainer goes on writing. If the old trainer is
// stopped (SIGSTOP), Claims kills it.
//
// The arena has a record of each rank's trainer (rank-<r>.trainer). From these records, a restarted agent knows which
// trainers may still write. Only the trainer server's thread uses Claims.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "agent/process.hpp"
#include "base/clock.hpp"
#include "core/types.hpp"

namespace ckpt::agent {

// An engine that claims a rank.
struct Claimant {
  core::Rank rank = 0;
  std::uint64_t instance = 0;     // identifies the engine
  std::uint64_t incarnation = 0;  // that the engine has joined; 0: it has not restored yet
  std::string main_shard;
  std::string private_shard;
  std::optional<Process> process;                // of the engine
  std::vector<std::uint64_t> open_engines = {};  // engines of the same process that may still write, by instance
};

// A trainer that started before this agent did and is still alive. It may be writing to its slots.
struct LivingTrainer {
  core::Rank rank = 0;
  std::uint64_t instance = 0;
  std::string main_shard;
  std::string private_shard;
};
// Reads the records in `directory` and returns the trainers that still live.
std::vector<LivingTrainer> living_trainers(const std::string& directory);

class Claims {
 public:
  // Reads the records that an earlier agent left in `directory`. The next sweep() returns those of their trainers that
  // have ended, also if living_trainers() found them alive.
  explicit Claims(std::string directory);

  // admitted: the claimant has the rank. wait: an earlier trainer may still write. superseded: the claimant has joined
  // an incarnation, but this node no longer knows it as the rank's trainer. It must be restarted.
  enum class Verdict { admitted, wait, superseded };
  struct Answer {
    Verdict verdict = Verdict::wait;
    std::string why;                                // why it must wait or is superseded, and what to do; "" if admitted
    std::optional<std::uint64_t> retired_instance;  // the rank's earlier engine, if this claim found that it is gone
  };
  // Claims the rank. While the verdict is `wait`, the caller repeats the call until its own deadline. Moves
  // `claimant.process` when the claimant gets the rank.
  Answer claim(Claimant& claimant);

  // The rank's engine `instance`, of process `pid`, says that it is closed. The process may go on.
  void closed(core::Rank rank, std::uint64_t instance, pid_t pid);
  // The connection of the rank's engine ended without a goodbye. The engine keeps the rank while its process lives.
  void disconnected(core::Rank rank, std::uint64_t instance);

  struct Retired {
    core::Rank rank;
    std::uint64_t instance;
    bool died;  // the process exited, and the engine never said that it is closed
  };
  // Frees the ranks whose trainers are gone and returns these trainers.
  std::vector<Retired> sweep();

  // When to call sweep() next: as soon as one of these pidfds is readable, at the latest after sweep_due_ms().
  std::vector<int> process_fds() const;
  std::int64_t sweep_due_ms() const;

 private:
  struct Holder {
    std::uint64_t instance = 0;
    Process process;
    bool connected = true;
    bool closed = false;  // the holder said that it is closed
  };

  static bool is_own_past(const Holder& holder, const Claimant& claimant);
  std::string record_path(core::Rank rank) const;
  void record(const Claimant& claimant) const;
  void retire(core::Rank rank);

  std::string directory_;
  std::map<core::Rank, Holder> holders_;
  // Trainers that had a record and had ended when this object was made. claim() and sweep() take them from here.
  std::vector<Retired> ended_;
};

}  // namespace ckpt::agent
