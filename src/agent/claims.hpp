// Who holds which rank on this node. A rank passes to a new trainer only when the one before is proven dead, or has
// said goodbye: its pidfd reports exit, or its engine said that it is closed. A closed connection proves nothing: an
// agent that was stopped finds one while the trainer still writes. A stopped trainer is killed when its rank is
// claimed.
//
// Each holder is also recorded in the arena (rank-<r>.trainer), so that a restarted agent knows whom it has to ask
// about. Belongs to the server's thread.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "agent/process.hpp"
#include "base/clock.hpp"
#include "protocol/types.hpp"

namespace ckpt::agent {

struct Claimant {
  protocol::Rank rank = 0;
  std::uint64_t instance = 0;
  std::uint64_t incarnation = 0;  // 0: a new incarnation of the rank
  std::string main_shard;
  std::string private_shard;
  std::optional<Process> process;
  std::vector<std::uint64_t> open_engines = {};  // of the same process, by instance: they may still write
};

// A trainer that an earlier agent recorded and that still lives: it may be writing into its slots at any moment.
struct LivingTrainer {
  protocol::Rank rank = 0;
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
    std::string why;                                // for a wait that ends without success, and for superseded
    std::optional<std::uint64_t> retired_instance;  // of the holder that this claim found gone
  };
  // Asks for the rank; again, until it is admitted or the asker gives up.
  Answer claim(Claimant& claimant);

  // The holder, an engine of process `pid`, says that it is closed; its process may live.
  void closed(protocol::Rank rank, std::uint64_t instance, pid_t pid);
  // The holder's connection has ended without a goodbye. It keeps its rank for as long as its process lives.
  void disconnected(protocol::Rank rank, std::uint64_t instance);

  struct Retired {
    protocol::Rank rank;
    std::uint64_t instance;
  };
  // Holders that are gone by now; they hold nothing any more.
  std::vector<Retired> sweep();

  // pidfds to wait for, and how long at most, until sweep() may have something to say.
  std::vector<int> process_fds() const;
  std::int64_t sweep_due_ms() const;

 private:
  struct Holder {
    std::uint64_t instance = 0;
    Process process;
    bool connected = true;
    bool closed = false;  // it said so
  };

  static bool is_own_past(const Holder& holder, const Claimant& claimant);
  std::string record_path(protocol::Rank rank) const;
  void record(const Claimant& claimant) const;
  void retire(protocol::Rank rank);

  std::string directory_;
  std::map<protocol::Rank, Holder> holders_;
};

}  // namespace ckpt::agent
