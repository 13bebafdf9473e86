#include "agent/scheduler.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "agent/profile_file.hpp"
#include "support.hpp"

namespace ckpt::agent {
namespace {

constexpr std::size_t much = 1u << 30;
const net::PieceName some_piece{"rank0", CheckpointId(1, 5).word()};

class SchedulerTest : public ::testing::Test {
 protected:
  Options options(std::uint32_t profile_iterations = 2, const std::string& schedule = "idle") {
    return parse_options(Reader::agent,
                         {{"job", "job"},
                          {"node", "node"},
                          {"arena_dir", directory_.path()},
                          {"profile_iterations", std::to_string(profile_iterations)},
                          {"schedule", schedule}},
                         nullptr);
  }
  std::shared_ptr<arena::Control> page(std::uint32_t rank) {
    return std::make_shared<arena::Control>(arena::Control::create(directory_.path(), rank));
  }
  static void iterate(arena::Control& control, int iterations) {
    arena::CommWriter writer(control.comm());
    for (int i = 0; i < iterations; ++i) {
      writer.begin(0, Clock::now());
      writer.end(0, Clock::now());
      writer.iteration(Clock::now());
    }
  }
  std::ptrdiff_t traced(TraceEvent::Kind kind) const {
    const auto events = trace_.events();
    return std::count_if(events.begin(), events.end(), [&](const TraceEvent& event) { return event.kind == kind; });
  }

  test::TemporaryDirectory directory_{test::in_memory};
  TraceBuffer trace_;
};

TEST_F(SchedulerTest, HoldsNothingBackWithoutHooks) {
  Scheduler scheduler(options(), directory_.path(), trace_);
  EXPECT_EQ(scheduler.allow(much, 7), 2u << 20) << "without trainers";
  const auto control = page(0);
  scheduler.add(0, control);
  arena::CommWriter(control->comm()).iteration(Clock::now());
  EXPECT_EQ(scheduler.allow(much, 7), 2u << 20);
  EXPECT_TRUE(scheduler.status().is_null());
}

TEST_F(SchedulerTest, SendsNothingWhileAnyRankCommunicates) {
  Scheduler scheduler(options(), directory_.path(), trace_);
  const auto one = page(0), two = page(1);
  scheduler.add(0, one);
  scheduler.add(1, two);
  arena::CommWriter writer(two->comm());
  writer.begin(3, Clock::now());
  EXPECT_EQ(scheduler.allow(much, 0), 0u);
  writer.end(3, Clock::now());
  EXPECT_GT(scheduler.allow(much, 0), 0u);
  EXPECT_EQ(scheduler.allow(much, 1), 0u) << "one by one from now on";
}

TEST_F(SchedulerTest, GoneTrainerHoldsNothingBack) {
  Scheduler scheduler(options(), directory_.path(), trace_);
  const auto control = page(0);
  scheduler.add(0, control);
  arena::CommWriter(control->comm()).begin(0, Clock::now());
  EXPECT_EQ(scheduler.allow(much, 0), 0u);
  scheduler.remove(0);
  EXPECT_EQ(scheduler.allow(much, 3), 2u << 20);
}

TEST_F(SchedulerTest, SendsBeforeTheFirstCommitWhileItLearns) {
  Scheduler scheduler(options(100), directory_.path(), trace_);
  const auto control = page(0);
  scheduler.add(0, control);
  iterate(*control, 3);
  EXPECT_GT(scheduler.allow(much, 0), 0u);
  EXPECT_EQ(scheduler.status().at("state"), "learning");
}

TEST_F(SchedulerTest, KeepsAProfileForTheRanksNextIncarnation) {
  {
    Scheduler scheduler(options(), directory_.path(), trace_);
    const auto control = page(4);
    scheduler.add(4, control);
    iterate(*control, 3);
    scheduler.listen();
    EXPECT_EQ(scheduler.status().at("ranks").at(0).at("state"), "learned");
  }
  Scheduler scheduler(options(), directory_.path(), trace_);
  const auto control = page(4);
  scheduler.add(4, control);
  iterate(*control, 1);
  scheduler.listen();
  EXPECT_EQ(scheduler.status().at("state"), "idle spans");
  EXPECT_EQ(scheduler.status().at("ranks").at(0).at("spans").size(), 2u);
}

TEST_F(SchedulerTest, SendsImmediatelyIfConfiguredSo) {
  Scheduler scheduler(options(2, "immediate"), directory_.path(), trace_);
  const auto control = page(0);
  scheduler.add(0, control);
  arena::CommWriter(control->comm()).begin(0, Clock::now());
  EXPECT_EQ(scheduler.allow(much, 7), much);
}

TEST_F(SchedulerTest, LearnsTheLinkFromChunksSentOutsideCommunication) {
  Scheduler scheduler(options(), directory_.path(), trace_);
  const auto control = page(0);
  scheduler.add(0, control);
  iterate(*control, 1);
  arena::CommWriter writer(control->comm());
  const auto send = [&](bool meets) {
    ASSERT_GT(scheduler.allow(much, 0), 0u);
    if (meets) writer.begin(0, Clock::now());
    const auto now = Clock::now();
    scheduler.received({1, some_piece, 100'000, now, now + std::chrono::milliseconds(1), true});
    if (meets) writer.end(0, Clock::now());
  };
  for (int i = 0; i < 8; ++i) send(true);
  EXPECT_TRUE(scheduler.status().at("link").is_null());
  for (int i = 0; i < 4; ++i) send(false);
  EXPECT_NEAR(scheduler.status().at("link").at("bytes_per_s").get<double>(), 1e8, 1);
  EXPECT_EQ(scheduler.status().at("chunks"), 12);
}

TEST_F(SchedulerTest, TracesMarksAndChunks) {
  Scheduler scheduler(options(), directory_.path(), trace_);
  const auto control = page(0);
  scheduler.add(0, control);
  iterate(*control, 3);
  scheduler.listen();
  const auto now = Clock::now();
  scheduler.received({1, some_piece, 100'000, now, now, true});
  EXPECT_EQ(traced(TraceEvent::Kind::communication), 3);
  EXPECT_EQ(traced(TraceEvent::Kind::iteration), 3);
  EXPECT_EQ(traced(TraceEvent::Kind::chunk), 1);
}

TEST_F(SchedulerTest, LearnsAndTracesTheBubblesOfARanksDevice) {
  Scheduler scheduler(options(), directory_.path(), trace_);
  const auto control = page(0);
  scheduler.add(0, control);
  arena::CommWriter writer(control->comm());
  const auto began = Clock::now() - std::chrono::seconds(100);
  const auto at = [&](int ms) { return began + std::chrono::milliseconds(ms); };
  for (int ms = 0; ms < 3000; ms += 1000) {
    writer.iteration(at(ms));
    writer.begin(0, at(ms + 100));
    writer.bubble_begin(at(ms + 200));
    writer.bubble_end(at(ms + 500));
    writer.end(0, at(ms + 500));
    writer.update(at(ms + 800));
    writer.copied(at(ms + 210), at(ms + 400));
  }
  scheduler.listen();
  const auto device = scheduler.status().at("ranks").at(0).at("device");
  EXPECT_EQ(device.at("bubbles"), 1);
  EXPECT_NEAR(device.at("bubble_ms").get<double>(), 300, 1);
  EXPECT_NEAR(device.at("until_update_ms").get<double>(), 800, 1);
  EXPECT_EQ(traced(TraceEvent::Kind::bubble), 3);
  EXPECT_EQ(traced(TraceEvent::Kind::copy), 3);
  const auto events = trace_.events();
  const auto copy = std::find_if(events.begin(), events.end(),
                                 [](const TraceEvent& event) { return event.kind == TraceEvent::Kind::copy; });
  EXPECT_EQ(copy->end_us - copy->begin_us, 190'000);
}

TEST_F(SchedulerTest, TraceDropsItsOldestEventsFirst) {
  for (int i = 0; i < 10'000; ++i) trace_.add({TraceEvent::Kind::commit, i, i, 0, {}, 0, {}, 0});
  const auto events = trace_.events();
  EXPECT_LT(events.size(), 10'000u);
  EXPECT_EQ(events.back().begin_us, 9'999);
  EXPECT_EQ(events.front().begin_us, 10'000 - static_cast<std::int64_t>(events.size()));
}

TEST_F(SchedulerTest, ReadsBackAWrittenProfileAndRefusesAnythingElse) {
  schedule::Profile profile;
  profile.iterations = 20;
  profile.iteration_s = 1.25;
  profile.normalized_deviation = 0.03125;
  profile.spans = {{0, 0.5, 0.01}, {0.75, 0.25, 0}};
  const auto read = profile_from(to_text(profile));
  ASSERT_TRUE(read);
  EXPECT_EQ(read->spans, profile.spans);
  EXPECT_EQ(read->iterations, 20u);
  EXPECT_EQ(read->iteration_s, 1.25);
  EXPECT_EQ(read->normalized_deviation, 0.03125);
  for (
      const char* text :
      {"", "[]", "{}", "nonsense", R"({"iterations":0,"iteration_s":1,"normalized_deviation":0,"spans":[]})",
       R"({"iterations":2,"iteration_s":-1,"normalized_deviation":0,"spans":[{"start_s":0,"mean_s":1,"deviation_s":0}]})",
       R"({"iterations":2,"iteration_s":1,"normalized_deviation":0,"spans":[]})",
       R"({"iterations":2,"iteration_s":1,"normalized_deviation":0,"spans":[7]})",
       R"({"iterations":2,"iteration_s":1e999,"normalized_deviation":0,"spans":[{"start_s":0,"mean_s":1,"deviation_s":0}]})"})
    EXPECT_FALSE(profile_from(text)) << text;
}

}  // namespace
}  // namespace ckpt::agent
