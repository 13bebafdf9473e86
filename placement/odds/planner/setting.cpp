#include "placement/odds/planner/setting.hpp"

namespace ckpt::planner {
std::vector<Scheme> all_schemes() {
  using enum Capture;
  using enum Availability;
  return {
      {"storage",
       stop_and_write,
       {1, 0, 0},
       comparison,
       false,
       "stops training to write to storage, at the best frequency"},
      {"every iteration", overlapped, {2, 0, 0}, option, true, "copies(2), as often as replication allows"},
      {"copies(2)", overlapped, {2, 0, 0}, option, false, "at the best frequency"},
      {"own memory", overlapped, {1, 0, 0}, option, false, "no copies; restores from storage if a node is lost"},
      {"copies(3)", overlapped, {3, 0, 0}, option, false, "survives the loss of any two nodes"},
      {"xor(4)", overlapped, {1, 4, 1}, option, false, "parity: survives one lost node of each four"},
      {"xor(8)", overlapped, {1, 8, 1}, option, false, "parity: survives one lost node of each eight"},
      {"rs(8,2)", overlapped, {1, 8, 2}, option, false, "parity: survives two lost nodes of each eight"},
      {"copies(2)+xor(8)", overlapped, {2, 8, 1}, option, false, "both: survives any lost node, and most lost pairs"},
      {"recompute", gradients, {2, 0, 0}, some_jobs, false, "captures gradients, repeats the update on hosts"},
      {"jit", late, {2, 0, 0}, partly, false, "captures after the failure, from live replicas"},
      {"auto", automatic, {2, 0, 0}, partly, false, "jit if the job has replicas, else every iteration"},
  };
}

Scheme scheme_of(const placement::Protection& protection) {
  return {placement::name(protection), Capture::overlapped, protection, Availability::option, false, "as asked for"};
}

}  // namespace ckpt::planner
