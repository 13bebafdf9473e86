// Tests the simulation with failures at chosen moments, and the three sources of failures.
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "placement/odds/planner/planner.hpp"
#include "placement/odds/planner/simulation.hpp"

namespace ckpt::planner {
namespace {

class Listed : public FailureSource {
 public:
  explicit Listed(std::vector<Failure> failures) : failures_(std::move(failures)) { end_.at_s = never_s; }
  const Failure& next() override { return at_ < failures_.size() ? failures_[at_++] : end_; }

 private:
  std::vector<Failure> failures_;
  std::size_t at_ = 0;
  Failure end_;
};

// Copies on pairs of four nodes: 0 and 1, 2 and 3. Captures every 10 s, restorable 2 s later; storage every 100 s.
struct Bench {
  Inputs in;
  Behavior what;
  Bench() {
    in.cluster.gpus = 32;
    in.job.replicas = 1;
    what.every_s = {0, 10, 100};
    what.capture_every_s = 10;
    what.lag_s = {0, 2, 30};
    what.detection_s = 3;
    for (auto& restart : what.restart_s) restart = {1, 5, 50};
    what.refetch_s = 20;
  }
  Simulated run(std::vector<Failure> failures, double elapsed_s) const {
    Listed source(std::move(failures));
    return simulate(in, Holdings(in, scheme_of({2, 0, 0})), what, source, elapsed_s);
  }
  double trained_s(std::vector<Failure> failures, double elapsed_s) const {
    return run(std::move(failures), elapsed_s).effective_time * elapsed_s;
  }
};

Failure process_at(double at_s) { return {at_s, Fault::process, {}, at_s}; }
Failure nodes_at(double at_s, std::vector<std::uint32_t> nodes, double repaired_at_s = 1e9) {
  return {at_s, Fault::node, std::move(nodes), repaired_at_s};
}

TEST(Simulation, WithoutFailuresLosesOnlyStallsAndSlowdown) {
  Bench bench;
  EXPECT_DOUBLE_EQ(bench.trained_s({}, 1000), 1000);
  bench.what.stall_s = 1;
  EXPECT_NEAR(bench.trained_s({}, 1100), 1000, 1e-9);
  bench.what.slowdown_share = 0.1;
  EXPECT_NEAR(bench.trained_s({}, 1200), 1000, 1e-9);
}

TEST(Simulation, FailureGoesBackToTheNewestRestorableCapture) {
  // At 95 s the newest capture is of 90 s, and is whole since 92 s. Down for 3 + 5 s.
  EXPECT_NEAR(Bench().trained_s({process_at(95)}, 200), 200 - 5 - 8, 1e-9);
  // At 91 s the capture of 90 s is not whole yet: back to 80 s.
  EXPECT_NEAR(Bench().trained_s({process_at(91)}, 200), 200 - 11 - 8, 1e-9);
}

TEST(Simulation, LosingBothNodesOfAPairGoesBackToStorage) {
  // Storage of 100 s is whole at 130 s. Down for 3 + 50 s.
  EXPECT_NEAR(Bench().trained_s({nodes_at(195, {0, 1})}, 400), 400 - 95 - 53, 1e-9);
  EXPECT_EQ(Bench().run({nodes_at(195, {0, 1})}, 400).storage_losses, 1u);
  EXPECT_EQ(Bench().run({nodes_at(195, {0, 2})}, 400).storage_losses, 0u);  // of two pairs
  // At 125 s storage is still being written: nothing is whole, the job begins anew.
  EXPECT_NEAR(Bench().trained_s({nodes_at(125, {0, 1})}, 400), 400 - 125 - 53, 1e-9);
}

TEST(Simulation, PartnerMayFailOnceMemoryIsProtectedAgain) {
  // Node 0 fails at 195 s; the job trains at 203 s and is protected again at 223 s.
  EXPECT_EQ(Bench().run({nodes_at(195, {0}), nodes_at(222, {1})}, 400).storage_losses, 1u);
  EXPECT_EQ(Bench().run({nodes_at(195, {0}), nodes_at(224, {1})}, 400).storage_losses, 0u);
}

TEST(Simulation, FailureDuringRecoveryRestartsIt) {
  // Down from 95 s on; the second failure at 100 s makes it end at 108 s.
  EXPECT_NEAR(Bench().trained_s({process_at(95), process_at(100)}, 200), 200 - 5 - 13, 1e-9);
}

TEST(Simulation, WriteOfAnUndoneStateDoesNotCount) {
  // Storage of 200 s is being written from 200 s on. At 201 s the job goes back to 190 s, writes 200 s again from 219 s
  // on, and that is whole at 249 s.
  EXPECT_NEAR(Bench().trained_s({process_at(201), nodes_at(248, {0, 1})}, 400), 100 + (400 - 248 - 53),
              1e-9);  // back to 100 s
  EXPECT_NEAR(Bench().trained_s({process_at(201), nodes_at(250, {0, 1})}, 400), 200 + (400 - 250 - 53), 1e-9);
}

TEST(Simulation, JobWaitsForARepairWithoutStandbyNodes) {
  Bench bench;
  bench.in.cluster.standby_nodes = 1;
  // The only standby node goes at 95 s. The node lost then is repaired at 1000 s, and takes node 2's place.
  const Simulated found = bench.run({nodes_at(95, {0}, 1000), nodes_at(200, {2}, 5000)}, 2000);
  EXPECT_NEAR(found.waited_s, 1000 - 200 - 3, 1e-9);
  EXPECT_NEAR(bench.run({nodes_at(95, {0}, 150), nodes_at(200, {2}, 5000)}, 2000).waited_s, 0, 1e-9);
}

TEST(Simulation, LiveReplicaLosesAtMostOneIteration) {
  Bench bench;
  bench.in.job.replicas = 2;
  bench.what.every_s = {2, 10, 100};
  EXPECT_NEAR(bench.trained_s({process_at(95)}, 200), 200 - 1 - 4, 1e-9);  // back to 94 s, down for 3 + 1 s
}

TEST(Simulation, PartsOfTheTimeAddUpToAllOfIt) {
  Bench bench;
  bench.what.stall_s = 0.5;
  bench.what.slowdown_share = 0.02;
  const Simulated found = bench.run({process_at(95), nodes_at(300, {0, 1}), process_at(302)}, 1000);
  const Split& split = found.split;
  EXPECT_NEAR(found.effective_time + split.steady + split.detection + split.restart + split.redone, 1, 1e-12);
  EXPECT_GT(split.redone, 0);
}

Inputs many_nodes() {
  Inputs in;
  in.cluster.gpus = 8000;
  in.failures.gpu_mtbf_s = 1e7;
  return in;
}

int failures_before(FailureSource& source, double end_s) {
  int count = 0;
  while (source.next().at_s < end_s) ++count;
  return count;
}

TEST(Failures, MatchTheirMeanTimeBetweenFailures) {
  const Inputs in = many_nodes();
  const double mean = in.cluster.gpus * 2e7 / in.failures.gpu_mtbf_s;
  EXPECT_NEAR(failures_before(*exponential_failures(in, 1), 2e7), mean, 4 * std::sqrt(mean));
  EXPECT_NEAR(failures_before(*weibull_failures(in, 1, 1), 2e7), mean, 4 * std::sqrt(mean));
}

TEST(Failures, ComeEarlyWithAWeibullShapeBelowOne) {
  const Inputs in = many_nodes();
  const double early_s = 1e5;
  EXPECT_GT(failures_before(*weibull_failures(in, 0.6, 1), early_s),
            2 * failures_before(*weibull_failures(in, 1, 1), early_s));
  EXPECT_THROW(weibull_failures(in, -1, 1), std::invalid_argument);
  EXPECT_THROW(weibull_failures(in, std::nan(""), 1), std::invalid_argument);
}

TEST(Failures, InADomainTakeAllItsNodes) {
  Inputs in = many_nodes();
  in.failures.node_share = 1;
  in.failures.domain_nodes = 16;
  in.failures.domain_share = 1;
  const auto source = exponential_failures(in, 1);
  for (int i = 0; i < 100; ++i) {
    const Failure& failure = source->next();
    EXPECT_EQ(failure.nodes.front() % 16, 0u);
    EXPECT_EQ(failure.nodes.size(), std::min(16u, in.cluster.nodes() - failure.nodes.front()));
  }
}

std::string event(const char* node, double at_days, const char* type) {
  return std::string(R"({"node_id": ")") + node + R"(", "event_time": )" + std::to_string(at_days) +
         R"(, "event_type": ")" + type + R"("})";
}

// Two nodes fail together, one of them again while it is down, another later.
placement::FaultTrace small_trace() {
  return placement::parse_trace("[" + event("a", 1, "fault_start") + "," + event("b", 1, "fault_start") + "," +
                                event("a", 2, "fault_start") + "," + event("a", 3, "fault_end") + "," +
                                event("c", 5, "fault_start") + "," + event("a", 9, "fault_end") + "," +
                                event("b", 10, "fault_end") + "]");
}

TEST(Failures, FromATraceKeepItsTimesAndRepairs) {
  const auto source = trace_failures(small_trace(), {4, 4, 3600}, 1);
  const Failure first = source->next();
  EXPECT_EQ(first.at_s, 86'400);
  EXPECT_EQ(first.nodes.size(), 2u);
  EXPECT_EQ(first.repaired_at_s, 10 * 86'400);
  const Failure second = source->next();  // not the fault of a node that is down
  EXPECT_EQ(second.at_s, 5 * 86'400);
  EXPECT_EQ(second.repaired_at_s, 5 * 86'400 + 3600);  // the trace does not say when it ended
  EXPECT_EQ(source->next().at_s, 11 * 86'400);         // the trace begins again
}

TEST(Failures, FromATraceScaleWithTheCluster) {
  const auto trace = small_trace();
  const double end_s = 10 * 86'400;
  std::size_t lost = 0;
  const auto source = trace_failures(trace, {4, 4000, 3600}, 1);
  for (const Failure* failure = &source->next(); failure->at_s < end_s; failure = &source->next())
    lost += failure->nodes.size();
  EXPECT_EQ(lost, 3000u);  // three of four nodes, as in the trace
  EXPECT_EQ(trace_gpu_mtbf_s(trace, 4, 8), 10 * 86'400.0 * 4 * 8 / 3);
}

TEST(Failures, FromATooSmallTraceAreRefused) {
  EXPECT_THROW(trace_gpu_mtbf_s(placement::parse_trace("[]"), 4, 8), std::invalid_argument);
  EXPECT_THROW(trace_gpu_mtbf_s(small_trace(), 2, 8), std::invalid_argument);  // it has three nodes
}

}  // namespace
}  // namespace ckpt::planner
