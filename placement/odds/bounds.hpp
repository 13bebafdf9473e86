// The formulas of the papers GEMINI and REFT for the probability that checkpoints in memory survive the loss of nodes.
// They are bounds, to compare with the exact figures of survival.hpp. Here N is the number of nodes, m the number of
// copies and k the number of lost nodes.
//
// Pure functions. They throw std::invalid_argument for arguments that a formula is not made for.
#pragma once

#include <cstdint>
#include <functional>

#include "placement/pattern.hpp"

namespace ckpt::placement {

// The natural logarithm of C(a, b); -infinity where C(a, b) is 0.
double log_choose(std::uint64_t a, std::uint64_t b);

// GEMINI, corollary 1: a lower bound if groups of m nodes store each other's shards, and m divides N. Exact for k < 2m.
double corollary_1(std::uint32_t nodes, std::uint32_t copies, std::uint32_t lost);

// A lower bound if `distinct_sets` different sets of m nodes hold parts. It is 1 minus the sum, over these sets, of the
// probability that all nodes of the set are lost. If two sets are lost together, the sum counts this loss twice. The
// bound is exact for k = m. GEMINI's figure for the ring (section 7.2) is this bound.
double union_bound(std::uint32_t nodes, std::uint32_t copies, std::uint32_t distinct_sets, std::uint32_t lost);

// GEMINI, theorem 1, for k = m. best_possible(): the probability for the best placement of m copies.
// largest_gap_of_mixed(): how far below best_possible() the strategy `mixed` can be, if m does not divide N.
double best_possible(std::uint32_t nodes, std::uint32_t copies);
double largest_gap_of_mixed(std::uint32_t nodes, std::uint32_t copies);

// Returns GEMINI's bound for the pattern: the union bound for `ring`; for `group`, `mixed` and `cover`, corollary 1 if
// m divides N; for `group` and `mixed`, otherwise theorem 1 if k = m. Returns NaN where GEMINI has no bound.
double paper_bound(const Pattern& pattern, std::uint32_t lost);

// REFT, section 5: the probability that a node has not failed until time t, which is exp(-rate * t^shape).
double weibull_survival(double rate_per_day, double time_days, double shape);

// REFT, equation 5: the probability that `nodes` nodes keep all state. They are in sharding groups of `group_size`, and
// each group survives the loss of one node. `node`: the probability that one node's hardware has survived. `process`:
// the probability that a node's snapshot process has survived. The paper's text calls it the probability of failing,
// but in the equation it can only be the probability of surviving.
double reft_survival(std::uint32_t nodes, std::uint32_t group_size, double node, double process);

// REFT, equation 6: the probability that no node fails. `node` and `training` are the probabilities that one node's
// hardware and its training process have survived.
double unprotected_survival(std::uint32_t nodes, double node, double training);

// Returns for how many days `survival`, a probability that falls with time, stays at `threshold` or above.
double days_above(double threshold, const std::function<double(double time_days)>& survival);

}  // namespace ckpt::placement
