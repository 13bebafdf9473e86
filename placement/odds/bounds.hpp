// The formulas of the papers GEMINI and REFT for how likely checkpoints in memory survive the loss of nodes. They are
// bounds, to compare with the exact figures of survival.hpp. Pure functions. They throw std::invalid_argument for
// arguments outside their domain.
#pragma once

#include <cstdint>
#include <functional>

#include "placement/pattern.hpp"

namespace ckpt::placement {

// The natural logarithm of C(a, b); -infinity where C(a, b) is 0.
double log_choose(std::uint64_t a, std::uint64_t b);

// GEMINI, corollary 1: a lower bound for groups of m when k of N nodes are lost and m divides N. Exact for k < 2m.
double corollary_1(std::uint32_t nodes, std::uint32_t copies, std::uint32_t lost);

// The same argument for any number of distinct holder sets of m nodes. Each set is fatal, and overlaps are counted more
// than once. GEMINI's "25 % lower" for the ring is this bound. Exact for k = m.
double union_bound(std::uint32_t nodes, std::uint32_t copies, std::uint32_t distinct_sets, std::uint32_t lost);

// GEMINI, theorem 1, for k = m. No placement of m copies is better than best_possible(). If m does not divide N,
// `mixed` is at most largest_gap_of_mixed() below it.
double best_possible(std::uint32_t nodes, std::uint32_t copies);
double largest_gap_of_mixed(std::uint32_t nodes, std::uint32_t copies);

// The paper's bound for the pattern: corollary 1 for groups, the union bound for the ring, theorem 1 for `mixed` at k =
// m. Not a number for all others.
double paper_bound(const Pattern& pattern, std::uint32_t lost);

// REFT, section 5. The probability that a node had no failure until t: exp(-rate * t^shape).
double weibull_survival(double rate_per_day, double time_days, double shape);

// REFT, equation 5: `nodes` in sharding groups of `group_size`, of which each survives one loss. `node` and `process`
// are the probabilities that one node's hardware and its snapshot process have survived. The paper's text calls the
// latter the probability of failing. As a factor to the power of k it can only be that of surviving.
double reft_survival(std::uint32_t nodes, std::uint32_t group_size, double node, double process);

// REFT, equation 6: nothing may fail, neither hardware (`node`) nor software (`training`).
double unprotected_survival(std::uint32_t nodes, double node, double training);

// How long a survival probability that falls with time stays at `threshold` or above.
double days_above(double threshold, const std::function<double(double time_days)>& survival);

}  // namespace ckpt::placement
