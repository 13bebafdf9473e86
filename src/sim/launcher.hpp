// Launcher starts and restarts the simulated job, as a job scheduler does. It places ranks on machines and keeps them
// in step. If a rank dies or hangs, it kills all and starts all again, sometimes on other machines. Sometimes it fails
// to kill a trainer, which may wake later. If the job's state stays lost, it gives the job up ("ckptctl gc"). Not
// thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "sim/event_queue.hpp"
#include "sim/memory.hpp"

namespace ckpt::sim {

class Trainer;
class World;

class Launcher {
 public:
  explicit Launcher(World& world);

  void start();
  void restart();                                      // the job as a whole
  void restart_with(Rank ranks);                       // from the next restart on
  void leave_some_behind() { leaves_behind_ = true; }  // when the job restarts next

  // From trainers and machines.
  void restored(const Trainer& trainer);
  void arrived(const Trainer& trainer, std::int64_t k);  // has the gradients of iteration k
  void trainer_died(const Trainer& trainer);
  void state_is_lost();
  // If a rank dies or hangs in the next `for_ms`, the launcher notices it only then.
  void look_away(TimeMs for_ms);

  int launch() const { return launch_; }
  Rank ranks() const { return ranks_; }    // of this launch
  std::vector<Trainer*> trainers() const;  // the living ones of this launch
  bool is_between_launches() const { return stopping_; }
  bool everyone_has_asked() const;
  bool everyone_trains() const;
  int restores() const { return restores_; }
  int give_ups() const { return give_ups_; }
  TimeMs progress_at() const { return progress_at_; }  // when all ranks last began an iteration, or were started

 private:
  void watch();
  void stop_all();
  void launch_all();
  void place_ranks();
  void update_all(std::int64_t k);

  World& world_;
  Rank ranks_;
  Rank next_ranks_;  // of the next launch
  int launch_ = 0;
  bool stopping_ = false;
  bool leaves_behind_ = false;
  int lost_in_launch_ = 0;
  int losses_in_a_row_ = 0;
  int restores_ = 0;
  int give_ups_ = 0;
  std::map<Rank, NodeId> places_;
  std::vector<std::uint64_t> instances_;  // of this launch, by rank
  std::map<std::int64_t, Rank> arrived_;  // iteration -> how many ranks
  TimeMs progress_at_ = 0;
  TimeMs looks_away_until_ = 0;
};

}  // namespace ckpt::sim
