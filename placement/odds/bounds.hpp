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

// GEMINI, corollary 1: a lower bound for groups of m nodes, where m divides N. Exact for k < 2m.
double corollary_1(std::uint32_t nodes, std::uint32_t copies, std::uint32_t lost);

// A lower bound if `distinct_sets` different sets of m nodes hold parts. It subtracts from 1, for each set, the
// probability that all nodes of the set are lost. So it counts the loss of two sets twice. Exact for k = m. GEMINI's
// "25 % lower" for the ring is this bound.
double union_bound(std::uint32_t nodes, std::uint32_t copies, std::uint32_t distinct_sets, std::uint32_t lost);

// GEMINI, theorem 1, for k = m. best_possible(): the probability for the best placement of m copies.
// largest_gap_of_mixed(): how far the strategy `mixed` can be below it, if m does not divide N.
double best_possible(std::uint32_t nodes, std::uint32_t copies);
double largest_gap_of_mixed(std::uint32_t nodes, std::uint32_t copies);

// GEMINI's bound for the pattern: corollary 1 for groups, the union bound for the ring, theorem 1 for `mixed` at
// k = m. NaN for all others.
double paper_bound(const Pattern& pattern, std::uint32_t lost);

// REFT, section 5: the probability that a node has not failed until time t, which is exp(-rate * t^shape).
double weibull_survival(double rate_per_day, double time_days, double shape);

// REFT, equation 5: the probability that `nodes` nodes keep all state. They are in sharding groups of `group_size`, and
// each group survives the loss of one node. `node`: the probability that one node's hardware has survived. `process`:
// the same for its snapshot process. The paper's text calls `process` the probability of failing. But it is a factor to
// the power of k, so it can only be that of surviving.
double reft_survival(std::uint32_t nodes, std::uint32_t group_size, double node, double process);

// REFT, equation 6: the probability that no node fails. `node` and `training` are the probabilities that one node's
// hardware and its training process have survived.
double unprotected_survival(std::uint32_t nodes, double node, double training);

// Returns for how many days `survival`, a probability that falls with time, stays at `threshold` or above.
double days_above(double threshold, const std::function<double(double time_days)>& survival);

}  // namespace ckpt::placement
