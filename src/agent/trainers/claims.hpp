// Claims makes sure that each rank on this node has only one trainer. A new trainer gets a rank when the old one can no
// longer write: it has exited (its pidfd says so), or its engine said that it is closed. A closed connection does not
// suffice: the agent may have restarted while the trainer goes on writing. If the old trainer is stopped (SIGSTOP),
// Claims kills it.
//
// The arena also has a record of each rank's trainer (rank-<r>.trainer). From it, a restarted agent knows which
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

struct Claimant {
  core::Rank rank = 0;
  std::uint64_t instance = 0;
  std::uint64_t incarnation = 0;  // 0: the engine has not restored yet
  std::string main_shard;
  std::string private_shard;
  std::optional<Process> process;
  std::vector<std::uint64_t> open_engines = {};  // engines of the same process that may still write, by instance
};

// A trainer that started before this agent did and is still alive. It may be writing to its slots.
struct LivingTrainer {
  core::Rank rank = 0;
  std::uint64_t instance = 0;
  std::string main_shard;
  std::string private_shard;
};
std::vector<LivingTrainer> living_trainers(const std::string& directory);

class Claims {
 public:
  // Reads the records that an earlier agent left in `directory`.
  explicit Claims(std::string directory);

  enum class Verdict { admitted, wait, superseded };
  struct Answer {
    Verdict verdict = Verdict::wait;
    std::string why;                                // why the claim timed out or was superseded
    std::optional<std::uint64_t> retired_instance;  // the earlier holder, if this claim found it gone
  };
  // Claims the rank. The caller repeats the call until the claimant is admitted or gives up.
  Answer claim(Claimant& claimant);

  // The holder, an engine of process `pid`, says that it is closed. Its process may continue.
  void closed(core::Rank rank, std::uint64_t instance, pid_t pid);
  // The holder's connection ended without a goodbye. The holder keeps its rank while its process lives.
  void disconnected(core::Rank rank, std::uint64_t instance);

  struct Retired {
    core::Rank rank;
    std::uint64_t instance;
    bool died;  // it never said that it is closed
  };
  // Removes the holders that are gone and returns them.
  std::vector<Retired> sweep();

  // The pidfds to poll, and how long to wait at most, before the next call of sweep().
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
};

}  // namespace ckpt::agent
