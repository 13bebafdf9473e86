// Counts by integration. By Cauchy's formula, the coefficient of x^k in a generating function is the mean of function /
// x^k over a circle. If the mean is taken over more points than the function has coefficients, it is exact, not an
// approximation. The circle goes through the saddle point. There the function can be read as a probability: nodes are
// lost independently, k of them on average. So nothing overflows, whatever the number of nodes, and the terms hardly
// cancel. The probability of loss is integrated on its own, because it can be far below the precision of 1 - survival.
//
// `alive` and `lost` below are the two weights of a node. At the circle's real point they are probabilities.
#include <algorithm>
#include <cmath>
#include <complex>
#include <functional>
#include <limits>
#include <numbers>

#include "placement/odds/survival.hpp"

namespace ckpt::placement {
namespace {

using Complex = std::complex<double>;

Complex power(Complex base, std::uint32_t exponent) {
  Complex result = 1;
  for (; exponent > 0; exponent >>= 1, base *= base) {
    if (exponent & 1) result *= base;
  }
  return result;
}

Complex log1p(Complex z) { return {0.5 * std::log1p(2 * z.real() + std::norm(z)), std::atan2(z.imag(), 1 + z.real())}; }

Complex expm1(Complex z) {
  const double half_sine = std::sin(z.imag() / 2);
  return {std::expm1(z.real()) * std::cos(z.imag()) - 2 * half_sine * half_sine,
          std::exp(z.real()) * std::sin(z.imag())};
}

// ln z, or -infinity if z is so small that it has lost its precision.
Complex safe_log(Complex z) {
  return std::abs(z) < 1e-280 ? Complex(-std::numeric_limits<double>::infinity()) : std::log(z);
}

struct Weights {
  Complex alive;
  Complex lost;
  Complex any() const { return alive + lost; }
};

// ---- The sets that a cell survives, and those that it does not ----

// The weight of all sets except the one in which all nodes are lost. Avoids cancellation if nearly all weight is in
// that one.
Complex not_all_lost(Weights w, std::uint32_t size) {
  const Complex exponent = double(size) * log1p(w.alive / w.lost);
  const bool nearly_all = std::abs(w.alive) < std::abs(w.lost) && exponent.real() < 30;
  return nearly_all ? power(w.lost, size) * expm1(exponent) : power(w.any(), size) - power(w.lost, size);
}

// The recurrence of counting.cpp. For large cells, each sum over a window is made from the one before. That is faster,
// but less precise if hardly any node is left.
Complex ring_survivors_by_steps(Weights w, const Cell& cell) {
  std::vector<Complex> linear(cell.size + 1);
  linear[0] = 1;
  const bool is_small = cell.size * cell.window < 10'000;
  const Complex window_lost = power(w.lost, cell.window);
  Complex sum = 0;
  for (std::uint32_t j = 1; j <= cell.size; ++j) {
    if (is_small) {
      sum = 0;  // by Horner's rule: the newest term weighs 1, the one before it w.lost, and so on
      for (std::uint32_t i = j - std::min(cell.window, j); i < j; ++i) sum = sum * w.lost + linear[i];
    } else {
      sum = linear[j - 1] + w.lost * sum;
      if (j > cell.window) sum -= window_lost * linear[j - 1 - cell.window];
    }
    linear[j] = w.alive * sum;
  }
  Complex survivors = 0;
  Complex lost_in_gap = 1;
  for (std::uint32_t gap = 1; gap <= cell.window; ++gap, lost_in_gap *= w.lost) {
    survivors += double(gap) * lost_in_gap * w.alive * linear[cell.size - gap];
  }
  return survivors;
}

// The weight of all sets with at least `first` and fewer than `last` lost nodes.
Complex code_terms(Complex alive, Complex lost, std::uint32_t size, std::uint32_t first, std::uint32_t last) {
  Complex sum = 0;
  double choices = 1;
  for (std::uint32_t j = 0; j < last; ++j) {
    if (j >= first) sum += choices * power(lost, j) * power(alive, size - j);
    choices *= double(size - j) / double(j + 1);
  }
  return sum;
}

// The share of sets in which two neighbours of a ring are lost: the fatal share for window 2.
Complex neighbours_lost(Complex u, std::uint32_t size) {
  const Complex root = std::sqrt((1.0 + u) * (1.0 + u) - 4.0 * u * u);
  const Complex delta = 2.0 * u * u / (1.0 + u + root);  // 1 minus the larger eigenvalue of the transfer matrix
  return -expm1(double(size) * log1p(-delta)) - power(delta - u, size);
}

// Like ring_survivors_by_steps(), for the sets that the ring does not survive: in linear[j], `window` nodes in a row
// are lost, in the last gap or in an earlier one.
Complex ring_fatal_by_steps(Complex u, const Cell& cell) {
  const Complex alive = 1.0 - u;
  const Complex window_lost = power(u, cell.window);
  std::vector<Complex> linear(cell.size);
  for (std::uint32_t j = 1; j < cell.size; ++j) {
    Complex sum = 0;
    for (std::uint32_t i = j - std::min(cell.window, j); i < j; ++i) sum = sum * u + linear[i];
    linear[j] = alive * (sum + (j > cell.window ? window_lost : 0));
  }
  Complex fatal = power(u, cell.size);  // all nodes are lost; the loop adds the rest, by the gap that has position 0
  Complex lost_in_gap = 1;
  for (std::uint32_t gap = 1; gap <= cell.size; ++gap, lost_in_gap *= u) {
    const Complex others = gap == cell.size ? 1 : gap > cell.window ? alive : linear[cell.size - gap];
    fatal += double(gap) * lost_in_gap * alive * others;
  }
  return fatal;
}

// The share of a cell's weight in sets that the cell does not survive. Avoids cancellation if it is small.
Complex fatal_share(Weights w, const Cell& cell) {
  const Complex u = w.lost / w.any();
  const std::uint32_t size = cell.size;
  const std::uint32_t window = cell.window;
  if (cell.shape == Shape::code) return code_terms(w.alive / w.any(), u, size, window, size + 1);
  if (cell.shape == Shape::pair) return 2.0 * power(u, window) - power(u, size);
  if (window == size) return power(u, size);
  // The cell has no room for two runs of `window` lost nodes: either one run starts after a live node, or all nodes are
  // lost.
  if (size <= 2 * window + 1) return double(size) * power(u, window) * (1.0 - u) + power(u, size);
  if (window == 2) return neighbours_lost(u, size);
  return ring_fatal_by_steps(u, cell);
}

Complex survivors(Weights w, const Cell& cell) {
  const std::uint32_t side = cell.size - cell.window;
  if (cell.shape == Shape::code) return code_terms(w.alive, w.lost, cell.size, 0, cell.window);
  if (cell.shape == Shape::pair) {
    const Complex side_left = not_all_lost(w, side);
    const std::uint32_t overlap = cell.window - side;
    return not_all_lost(w, overlap) * power(w.any(), 2 * side) + power(w.lost, overlap) * side_left * side_left;
  }
  if (cell.window == cell.size) return not_all_lost(w, cell.size);
  if (cell.window == 1) return power(w.alive, cell.size);
  const Complex fatal = fatal_share(w, cell);
  return std::norm(fatal) < 0.25 ? power(w.any(), cell.size) * (1.0 - fatal) : ring_survivors_by_steps(w, cell);
}

Complex log_survivors(Weights w, std::span<const Cell> cells) {
  Complex sum = 0;
  for (const auto& cell : cells) sum += double(cell.count) * safe_log(survivors(w, cell));
  return sum;
}

// ---- The mean over a circle ----

// The mean of value(angle) * exp(-i k angle) over `points` angles, for a function that is real at angle 0. An odd
// number of points leaves out the angle pi, where functions may have a pole.
double mean_over_circle(std::uint64_t points, std::uint64_t k, const std::function<Complex(double)>& value) {
  points |= 1;
  double sum = value(0).real();
  for (std::uint64_t j = 1; 2 * j < points; ++j) {
    const double angle = 2 * std::numbers::pi * (double(j) / double(points));
    // j * k is reduced as a whole number, so the phase stays exact for large numbers.
    const double phase = 2 * std::numbers::pi * (double(j * k % points) / double(points));
    sum += 2 * (value(angle) * std::polar(1.0, -phase)).real();
  }
  return sum / double(points);
}

// n! = sqrt(2 pi n) (n/e)^n exp(stirling_error(n))
double stirling_error(double n) {
  if (n < 16) return std::lgamma(n + 1) - (n + 0.5) * std::log(n) + n - 0.5 * std::log(2 * std::numbers::pi);
  const double n2 = n * n;
  return (1.0 / 12 - (1.0 / 360 - (1.0 / 1260 - 1.0 / (1680 * n2)) / n2) / n2) / n;
}

// ln of the probability that exactly k of n nodes are lost, each with probability 1 - alive; 0 < k < n.
double log_binomial(double n, double k, double alive, double lost) {
  return 0.5 * std::log(n / (2 * std::numbers::pi * k * (n - k))) + stirling_error(n) - stirling_error(k) -
         stirling_error(n - k) + k * std::log(n * lost / k) + (n - k) * std::log(n * alive / (n - k));
}

// Finds the minimum of a convex function of one variable, by golden section. Where the function is not finite, because
// of underflow, the circle cannot be.
double least(double low, double high, const std::function<double(double)>& function) {
  const auto f = [&](double t) {
    const double value = function(t);
    return std::isfinite(value) ? value : std::numeric_limits<double>::infinity();
  };
  const double ratio = std::numbers::phi - 1;
  double a = high - ratio * (high - low);
  double b = low + ratio * (high - low);
  double fa = f(a);
  double fb = f(b);
  for (int i = 0; i < 80; ++i) {
    if (fa < fb) {
      high = b;
      b = a;
      fb = fa;
      a = high - ratio * (high - low);
      fa = f(a);
    } else {
      low = a;
      a = b;
      fa = fb;
      b = low + ratio * (high - low);
      fb = f(b);
    }
  }
  return (low + high) / 2;
}

constexpr double farthest = 46;  // e^46 > 10^19: beyond it, a weight counts as 0

double clamp_probability(double value) { return std::clamp(value, 0.0, 1.0); }

// ---- A product of cells ----

// The weights of a node on a logarithmic scale: lost / alive is e^t.
Weights weights_at(double t) { return {1 / (1 + std::exp(t)), 1 / (1 + std::exp(-t))}; }

// The coefficient of x^k, as a share of all sets of k nodes. The generating function is given by its logarithm. Its
// coefficients are not negative. It is normalized so that all sets weigh (alive + lost)^nodes.
double share_of_sets(std::uint32_t nodes, std::uint32_t k, const std::function<Complex(Weights)>& log_function) {
  const double saddle = least(-farthest, farthest, [&](double t) {
    const Weights w = weights_at(t);
    return log_function(w).real() - double(nodes) * std::log(w.alive.real()) - double(k) * t;
  });
  const Weights real = weights_at(saddle);
  const double log_scale = log_function(real).real();
  const double mean = mean_over_circle(nodes + 1, k, [&](double angle) {
    return std::exp(log_function({real.alive, real.lost * std::polar(1.0, angle)}) - log_scale);
  });
  return clamp_probability(mean * std::exp(log_scale - log_binomial(nodes, k, real.alive.real(), real.lost.real())));
}

double product_survival(std::span<const Cell> cells, std::uint32_t nodes, std::uint32_t k) {
  return share_of_sets(nodes, k, [&](Weights w) { return log_survivors(w, cells); });
}

double product_loss(std::span<const Cell> cells, std::uint32_t nodes, std::uint32_t k) {
  return share_of_sets(nodes, k, [&](Weights w) {
    const Complex log_all = double(nodes) * std::log(w.any());
    Complex log_share = 0;  // ln of the survivors' share of all sets
    bool is_small = true;
    for (const auto& cell : cells) {
      const Complex fatal = fatal_share(w, cell);
      is_small = is_small && std::norm(fatal) < 0.25;
      log_share += double(cell.count) * log1p(-fatal);
    }
    if (is_small && std::abs(log_share) < 1) return log_all + safe_log(-expm1(log_share));
    const Complex log_survived = log_survivors(w, cells);
    const double scale = std::max(log_all.real(), log_survived.real());
    return scale + std::log(std::exp(log_all - scale) - std::exp(log_survived - scale));
  });
}

// ---- One ring over all nodes: the live nodes split it into gaps, each of less than `window` lost nodes ----
// With a = nodes - k gaps, the sets number nodes/a times the coefficient of x^k of (1 + x + ... + x^(window-1))^a.

// Returns 1 + z + ... + z^(window-1) for z = e^log_z.
Complex geometric_sum(Complex log_z, std::uint32_t window) {
  return log_z == Complex(0) ? Complex(window) : expm1(double(window) * log_z) / expm1(log_z);
}

double ring_survival(std::uint32_t nodes, std::uint32_t window, std::uint32_t k) {
  const double gaps = nodes - k;
  const std::uint64_t most = std::uint64_t{nodes - k} * (window - 1);
  const std::uint64_t coefficient = std::min<std::uint64_t>(k, most - k);  // both coefficients are equal
  const double saddle = least(-farthest, 0, [&](double t) {
    return gaps * std::log(geometric_sum(t, window).real()) - double(coefficient) * t;
  });
  const double at_saddle = geometric_sum(saddle, window).real();
  // `deviation` is the largest deviation of a gap's size. Beyond 11 deviations and 40 windows, nothing is left to
  // alias.
  const double deviation = std::min(window / 2.0, std::exp(saddle / 2) / -std::expm1(saddle)) * std::sqrt(gaps);
  const auto points = std::min<std::uint64_t>(most + 1, 100 + 40ull * window + std::uint64_t(11 * deviation));
  const double mean = mean_over_circle(points, coefficient, [&](double angle) {
    return angle == 0 ? Complex(1) : std::exp(gaps * std::log(geometric_sum({saddle, angle}, window) / at_saddle));
  });
  const double log_count = std::log(double(nodes) / gaps) + gaps * std::log(at_saddle) - double(coefficient) * saddle;
  const double share = double(k) / nodes;
  const double log_total =
      log_binomial(nodes, k, 1 - share, share) - double(k) * std::log(share) - gaps * std::log(1 - share);
  return clamp_probability(mean * std::exp(log_count - log_total));
}

// How many coefficients of (1-x)^-gaps after the k-th one matter on a circle of this radius.
std::uint64_t negligible_from(double nodes, double k, double radius) {
  double log_ratio = 0;
  std::uint64_t i = 0;
  for (; log_ratio > -farthest; ++i) log_ratio += std::log((nodes + double(i)) / (k + double(i) + 1) * radius);
  return i;
}

double ring_loss(std::uint32_t nodes, std::uint32_t window, std::uint32_t k) {
  const double gaps = nodes - k;
  const auto fatal = [&](Complex z) { return -expm1(gaps * log1p(-power(z, window))); };
  const double saddle = std::exp(least(-farthest, std::log1p(-1.0 / (2.0 * nodes)), [&](double t) {
    return safe_log(fatal(std::exp(t))).real() - gaps * std::log1p(-std::exp(t)) - double(k) * t;
  }));
  const double at_saddle = fatal(saddle).real();
  const double mean = mean_over_circle(k + 1 + negligible_from(nodes, k, saddle), k, [&](double angle) {
    const Complex z = std::polar(saddle, angle);
    return std::exp(gaps * (std::log1p(-saddle) - log1p(-z))) * fatal(z) / at_saddle;
  });
  // The number of all sets is nodes/gaps times the coefficient of x^k of (1-x)^-gaps.
  const double log_all = std::log(gaps / nodes) + log_binomial(nodes, k, 1 - saddle, saddle);
  return clamp_probability(mean * std::exp(std::log(at_saddle) - log_all));
}

}  // namespace

Odds survival_by_integration(std::span<const Cell> cells, std::uint32_t lost) {
  std::uint32_t nodes = 0;
  std::uint32_t fewest = UINT32_MAX;
  std::uint32_t most = 0;
  for (const auto& cell : cells) {
    nodes += cell.size * cell.count;
    fewest = std::min(fewest, fewest_fatal(cell));
    most += most_survivable(cell) * cell.count;
  }
  if (lost < fewest) return {1, 0, std::nullopt};
  if (lost > most) return {0, 1, std::nullopt};

  const Cell& only = cells.front();
  const bool is_ring = cells.size() == 1 && only.count == 1 && only.shape == Shape::ring && only.window < only.size;
  const double survival = is_ring ? ring_survival(nodes, only.window, lost) : product_survival(cells, nodes, lost);
  if (survival < 0.5) return {survival, 1 - survival, std::nullopt};
  const double loss = is_ring ? ring_loss(nodes, only.window, lost) : product_loss(cells, nodes, lost);
  return {1 - loss, loss, std::nullopt};
}

}  // namespace ckpt::placement
