#include "placement/odds/planner/failures.hpp"

#include <algorithm>
#include <cmath>
#include <queue>
#include <stdexcept>
#include <string>

#include "placement/odds/sampling.hpp"

namespace ckpt::planner {
namespace {

using placement::FaultTrace;
using placement::Random;
using placement::random_below;
using placement::random_share;

constexpr double trace_day_s = 86'400;

double exponential_draw(Random& random) { return -std::log1p(-random_share(random)); }

// Chooses at random what fails at this node: a process, the node, or its failure domain.
void choose_fault(const Inputs& in, Random& random, std::uint32_t node, Failure& failure) {
  failure.nodes.clear();
  failure.fault = Fault::process;
  failure.repaired_at_s = failure.at_s + in.cluster.repair_s;
  if (random_share(random) >= in.failures.node_share) return;
  failure.fault = Fault::node;
  failure.nodes.push_back(node);
  if (in.failures.domain_nodes == 0 || random_share(random) >= in.failures.domain_share) return;
  failure.fault = Fault::domain;
  failure.nodes.clear();
  const std::uint32_t first = node - node % in.failures.domain_nodes;
  const std::uint32_t end = std::min(in.cluster.nodes(), first + in.failures.domain_nodes);
  for (std::uint32_t each = first; each < end; ++each) failure.nodes.push_back(each);
}

class Exponential : public FailureSource {
 public:
  Exponential(const Inputs& inputs, std::uint64_t seed)
      : inputs_(inputs), mean_s_(inputs.failures.gpu_mtbf_s / inputs.cluster.gpus), random_(seed) {}
  const Failure& next() override {
    failure_.at_s += mean_s_ * exponential_draw(random_);
    choose_fault(inputs_, random_, random_below(random_, inputs_.cluster.nodes()), failure_);
    return failure_;
  }

 private:
  Inputs inputs_;
  double mean_s_;
  Random random_;
  Failure failure_;
};

class Weibull : public FailureSource {
 public:
  Weibull(const Inputs& inputs, double shape, std::uint64_t seed) : inputs_(inputs), shape_(shape), random_(seed) {
    const double mean_s = inputs.failures.gpu_mtbf_s * inputs.cluster.nodes() / inputs.cluster.gpus;
    scale_s_ = mean_s / std::tgamma(1 + 1 / shape);
    for (std::uint32_t node = 0; node < inputs.cluster.nodes(); ++node) clocks_.push({draw_s(), node});
  }
  const Failure& next() override {
    const auto [at_s, node] = clocks_.top();
    clocks_.pop();
    clocks_.push({at_s + draw_s(), node});
    failure_.at_s = at_s;
    choose_fault(inputs_, random_, node, failure_);
    return failure_;
  }

 private:
  using Clock = std::pair<double, std::uint32_t>;
  double draw_s() { return scale_s_ * std::pow(exponential_draw(random_), 1 / shape_); }

  Inputs inputs_;
  double shape_;
  double scale_s_ = 0;
  Random random_;
  std::priority_queue<Clock, std::vector<Clock>, std::greater<>> clocks_;
  Failure failure_;
};

// The trace's faults of running nodes. Leaves out faults of nodes that are still down because of an earlier fault.
std::vector<placement::Fault> separate_faults(const FaultTrace& trace) {
  std::vector<double> back_days(trace.nodes, -1);
  std::vector<placement::Fault> faults;
  for (const placement::Fault& fault : trace.faults) {
    const bool is_down = fault.start_days < back_days[fault.node];
    back_days[fault.node] = std::max(back_days[fault.node], fault.end_days);
    if (!is_down) faults.push_back(fault);
  }
  return faults;
}

class Traced : public FailureSource {
 public:
  Traced(const FaultTrace& trace, const TraceScale& scale, std::uint64_t seed)
      : period_s_(trace.span_days * trace_day_s) {
    Random random(seed);
    const auto faults = separate_faults(trace);
    for (std::uint32_t first = 0; first < scale.nodes; first += scale.trace_nodes) {
      const double shift_s = first == 0 ? 0 : period_s_ * random_share(random);
      const auto numbers = placement::random_numbering(trace, scale.trace_nodes, random());
      for (const placement::Fault& fault : faults) add(fault, first + numbers[fault.node], shift_s, scale);
    }
    std::sort(faults_.begin(), faults_.end(), [](const Failure& a, const Failure& b) { return a.at_s < b.at_s; });
    merge();
  }
  const Failure& next() override {
    if (faults_.empty()) {
      failure_.at_s = never_s;
      return failure_;
    }
    failure_ = faults_[at_ % faults_.size()];
    const std::size_t periods = at_ / faults_.size();
    const double shift_s = period_s_ * static_cast<double>(periods);
    failure_.at_s += shift_s;
    failure_.repaired_at_s += shift_s;
    ++at_;
    return failure_;
  }

 private:
  void add(const placement::Fault& fault, std::uint32_t node, double shift_s, const TraceScale& scale) {
    if (node >= scale.nodes) return;
    const double at_s = std::fmod(fault.start_days * trace_day_s + shift_s, period_s_);
    const double length_s = (fault.end_days - fault.start_days) * trace_day_s;
    faults_.push_back({at_s, Fault::node, {node}, at_s + (std::isfinite(length_s) ? length_s : scale.repair_s)});
  }
  // Makes one failure of all faults that begin at the same moment.
  void merge() {
    std::vector<Failure> merged;
    for (Failure& fault : faults_) {
      if (!merged.empty() && merged.back().at_s == fault.at_s) {
        merged.back().nodes.push_back(fault.nodes.front());
        merged.back().repaired_at_s = std::max(merged.back().repaired_at_s, fault.repaired_at_s);
      } else {
        merged.push_back(std::move(fault));
      }
    }
    faults_ = std::move(merged);
  }

  double period_s_;
  std::vector<Failure> faults_;
  std::size_t at_ = 0;
  Failure failure_;
};

}  // namespace

std::unique_ptr<FailureSource> exponential_failures(const Inputs& inputs, std::uint64_t seed) {
  return std::make_unique<Exponential>(inputs, seed);
}

std::unique_ptr<FailureSource> weibull_failures(const Inputs& inputs, double shape, std::uint64_t seed) {
  if (!(shape >= 0.1 && shape <= 20))
    throw std::invalid_argument("weibull must be a shape from 0.1 to 20, not " + std::to_string(shape));
  return std::make_unique<Weibull>(inputs, shape, seed);
}

std::unique_ptr<FailureSource> trace_failures(const FaultTrace& trace, const TraceScale& scale, std::uint64_t seed) {
  return std::make_unique<Traced>(trace, scale, seed);
}

double trace_gpu_mtbf_s(const FaultTrace& trace, std::uint32_t trace_nodes, std::uint32_t gpus_per_node) {
  if (trace_nodes < trace.nodes)
    throw std::invalid_argument("the fault trace names " + std::to_string(trace.nodes) +
                                " nodes, but trace-nodes is only " + std::to_string(trace_nodes) +
                                ": set it to the number of nodes of the cluster where the trace was recorded");
  const auto faults = separate_faults(trace);
  if (faults.size() < 2 || !(trace.span_days > 0))
    throw std::invalid_argument("the fault trace has " + std::to_string(faults.size()) + " faults in " +
                                std::to_string(trace.span_days) +
                                " days, too few for a failure rate: use a longer trace");
  return trace.span_days * trace_day_s * trace_nodes * gpus_per_node / static_cast<double>(faults.size());
}

}  // namespace ckpt::planner
