// What the papers say of the odds, each formula under its own name: bounds, beside the exact figures of survival.hpp.
// Pure. All throw std::invalid_argument on arguments outside their domain.
#pragma once

#include <cstdint>
#include <functional>

#include "placement/pattern.hpp"

namespace ckpt::placement {

// C(a, b) as its natural logarithm; -infinity where it is 0.
double log_choose(std::uint64_t a, std::uint64_t b);

// GEMINI, corollary 1: a lower bound for groups of m when k of N nodes are lost and m divides N. Exact for k < 2m.
double corollary_1(std::uint32_t nodes, std::uint32_t copies, std::uint32_t lost);

// The same argument for any number of distinct holder sets of m nodes: each set is fatal, and overlaps are counted more
// than once. What GEMINI's "25 % lower" for the ring is. Exact for k = m.
double union_bound(std::uint32_t nodes, std::uint32_t copies, std::uint32_t distinct_sets, std::uint32_t lost);

// GEMINI, theorem 1, for k = m: no placement of m copies is better than the first, and `mixed` is at most the second
// away from it where m does not divide N.
double best_possible(std::uint32_t nodes, std::uint32_t copies);
double largest_gap_of_mixed(std::uint32_t nodes, std::uint32_t copies);

// Where a paper bounds the odds of the pattern: corollary 1 for groups, the union bound for the ring, theorem 1 for
// `mixed` at k = m. Not a number otherwise.
double paper_bound(const Pattern& pattern, std::uint32_t lost);

// REFT, section 5. A node's probability to have had no failure until t: exp(-rate * t^shape).
double weibull_survival(double rate_per_day, double time_days, double shape);

// REFT, equation 5: `nodes` in sharding groups of `group_size`, at most one lost in each. `node` and `process` are the
// probabilities that one node's hardware and its snapshot process have survived. The paper's text calls the latter the
// probability of failing; as a factor to the power of k it can only be that of surviving.
double reft_survival(std::uint32_t nodes, std::uint32_t group_size, double node, double process);

// REFT, equation 6: nothing may fail at all, hardware (`node`) or software (`training`).
double unprotected_survival(std::uint32_t nodes, double node, double training);

// The time until which a survival probability that falls with time is at least `threshold`.
double days_above(double threshold, const std::function<double(double time_days)>& survival);

}  // namespace ckpt::placement
