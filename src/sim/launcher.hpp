// Launcher starts and restarts the simulated job, as a job scheduler does. It places ranks on machines, and lets them
// train in step. If a rank dies or hangs, Launcher kills all ranks and starts them again, sometimes on other machines.
// In runs in which ranks rejoin, it starts only that rank again, as ckptrun does, and kills ranks that others have left
// behind. Sometimes it fails to kill a trainer, which may wake later. If the job's state stays lost, Launcher removes
// it and starts the job anew, as an operator does with `ckptctl gc`. Not thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "sim/event_queue.hpp"
#include "sim/memory.hpp"

namespace ckpt::sim {

class Trainer;
class World;
struct Kept;

class Launcher {
 public:
  explicit Launcher(World& world);

  void start();
  void restart();  // restarts the whole job
  // The job has so many ranks from its next restart on, which split the state in this way; see Settings::main_shard().
  void restart_with(Rank ranks, unsigned split);
  void leave_some_behind() { leaves_behind_ = true; }  // the next restart fails to kill some trainers

  // Trainers and machines call these.
  void restored(const Trainer& trainer);
  void arrived(const Trainer& trainer, std::int64_t k);  // the trainer has the gradients of iteration k
  void trainer_died(const Trainer& trainer);
  void rejoins(const Trainer& trainer, const Kept& kept);  // the same process, in the next incarnation
  void state_is_lost();
  // If a rank dies or hangs in the next `for_ms`, the launcher notices it only then.
  void look_away(TimeMs for_ms);
  void next_dies_in_restore() { next_dies_in_restore_ = true; }  // the next rank that is started anew

  int launch() const { return launch_; }  // a launch is one start of the job; they are numbered from 1
  Rank ranks() const { return ranks_; }   // number of ranks in this launch
  unsigned split() const { return split_; }
  bool has_resplit() const { return has_resplit_; }  // some launch has split the state in another way than the first
  std::vector<Trainer*> trainers() const;            // the living trainers of this launch
  bool is_between_launches() const { return stopping_; }
  bool is_joining() const;                       // some trainer of this launch does not train yet
  bool is_newest(std::uint64_t instance) const;  // it is the last trainer of its rank that this launch has started
  bool everyone_has_asked() const;
  bool everyone_trains() const;
  int restores() const { return restores_; }
  int give_ups() const { return give_ups_; }
  std::uint64_t rejoined() const { return rejoined_; }
  std::uint64_t started_anew() const { return started_anew_; }
  TimeMs progress_at() const { return progress_at_; }  // when all ranks last began an iteration or were started

 private:
  void watch();
  void stop_all();
  void launch_all();
  void place_ranks();
  void update_all(std::uint64_t incarnation, std::int64_t k);

  // launcher_rejoin.cpp
  void failed(Rank rank);
  void start_anew(Rank rank);
  bool place_anew(Rank rank);
  void begin(Rank rank, const Kept* kept);
  void kill_left_behind();

  World& world_;
  Rank ranks_;
  Rank next_ranks_;  // number of ranks in the next launch
  unsigned split_ = 0, next_split_ = 0;
  bool has_resplit_ = false;
  int launch_ = 0;
  bool stopping_ = false;
  bool leaves_behind_ = false;
  int lost_in_launch_ = 0;
  int losses_in_a_row_ = 0;
  int restores_ = 0;
  int give_ups_ = 0;
  std::map<Rank, NodeId> places_;
  std::vector<std::uint64_t> instances_;  // the trainers of this launch, by rank
  // [incarnation, iteration]: how many ranks have its gradients
  std::map<std::pair<std::uint64_t, std::int64_t>, Rank> arrived_;
  TimeMs progress_at_ = 0;
  TimeMs looks_away_until_ = 0;
  std::map<Rank, int> failures_;            // in this launch
  std::map<std::uint64_t, TimeMs> behind_;  // trainers that are left behind, and since when
  bool next_dies_in_restore_ = false;
  std::uint64_t rejoined_ = 0, started_anew_ = 0;
};

}  // namespace ckpt::sim
