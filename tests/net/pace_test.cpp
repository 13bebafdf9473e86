// When chunks leave, and what their receivers say of them.
#include "net/pace.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <numeric>
#include <thread>

#include "net_support.hpp"

namespace ckpt::net::testing {
namespace {

constexpr std::size_t grain = 64u << 10;
const PieceName name{"layers", 7};

// Does as it is told, and remembers.
class TestPace : public Pace {
 public:
  using Rule = std::function<std::size_t(std::size_t left_bytes, std::size_t under_way)>;
  void rule(Rule rule) {
    const std::lock_guard lock(mutex_);
    rule_ = std::move(rule);
  }

  std::size_t allow(std::size_t left_bytes, std::size_t under_way) override {
    const std::lock_guard lock(mutex_);
    const std::size_t bytes = rule_(left_bytes, under_way);
    if (bytes == 0) ++refused;
    if (bytes != 0) most_under_way = std::max(most_under_way.load(), under_way + 1);
    return bytes;
  }
  void landed(const SentChunk& chunk) override {
    if (chunk.begin > chunk.end || chunk.to != 1 || !(chunk.piece == name)) in_order = false;
    sizes.put(chunk.size_bytes);
  }

  std::atomic<std::size_t> refused{0};
  std::atomic<std::size_t> most_under_way{0};
  std::atomic<bool> in_order{true};
  Mailbox<std::size_t> sizes;  // of what landed

 private:
  std::mutex mutex_;
  Rule rule_ = [](std::size_t left_bytes, std::size_t) { return left_bytes; };
};

void wait_until(const std::function<bool()>& is_so) {
  for (const auto end = Clock::now() + patience; !is_so();) {
    ASSERT_LT(Clock::now(), end);
    std::this_thread::yield();
  }
}

// Node 2 serves a piece at a pace; node 1 fetches it.
class PaceTest : public ::testing::Test {
 protected:
  explicit PaceTest(std::int64_t progress_timeout_ms = 3000, std::size_t sub_buffers = 4)
      : one(with(1, 100, progress_timeout_ms, sub_buffers)),
        two(with(2, 200, progress_timeout_ms, sub_buffers), &pace) {
    one.knows(two);
    two.knows(one);
    two.serves(name, data, "manifest");
  }
  static TransportOptions with(NodeId node, std::uint64_t instance, std::int64_t progress_timeout_ms,
                               std::size_t sub_buffers) {
    TransportOptions options = loopback_options(node, instance);
    options.progress_timeout_ms = progress_timeout_ms;
    options.sub_buffers = sub_buffers;
    return options;
  }
  void expect_whole(MemorySink& sink) {
    EXPECT_EQ(sink.end(), FetchEnd::complete);
    EXPECT_TRUE(sink.in_order);
    EXPECT_EQ(sink.data, data);
  }

  const std::vector<std::byte> data = pattern(5 * (1u << 20) + 777, 3);
  TestPace pace;
  Node one;
  Node two;
};

TEST_F(PaceTest, AChunkIsUnderWayUntilItsReceiverHasIt) {
  expect_whole(*one.fetch(2, name));
  const auto sizes = pace.sizes.wait_for(6);  // of 1 MiB
  ASSERT_EQ(sizes.size(), 6u);
  EXPECT_EQ(std::accumulate(sizes.begin(), sizes.end(), std::size_t{0}), data.size());
  EXPECT_TRUE(pace.in_order);
  EXPECT_LE(pace.most_under_way, 4u);
}

TEST_F(PaceTest, WhatMustBeAloneIsAlone) {
  pace.rule([](std::size_t left_bytes, std::size_t under_way) { return under_way == 0 ? left_bytes : 0; });
  const auto first = one.fetch(2, name), second = one.fetch(2, name);
  expect_whole(*first);
  expect_whole(*second);
  EXPECT_EQ(pace.most_under_way, 1u) << "of two pieces together";
}

TEST_F(PaceTest, ChunksAreCutToWhatIsAllowedAtMultiplesOfAGrain) {
  pace.rule([](std::size_t, std::size_t) { return 3 * grain + 5; });
  expect_whole(*one.fetch(2, name));
  const std::size_t whole = data.size() / (3 * grain);
  const auto sizes = pace.sizes.wait_for(whole + 1);
  ASSERT_EQ(sizes.size(), whole + 1);
  for (std::size_t i = 0; i < whole; ++i) EXPECT_EQ(sizes[i], 3 * grain);
  EXPECT_EQ(sizes.back(), data.size() % (3 * grain));
}

TEST_F(PaceTest, NothingLeavesThatIsNotAllowedAndItGoesOnWhenItIs) {
  std::atomic<std::size_t> allowed{2 * grain};
  pace.rule(
      [&](std::size_t left_bytes, std::size_t) { return std::min<std::size_t>(left_bytes, allowed.exchange(0)); });
  const auto sink = one.fetch(2, name);
  EXPECT_EQ(sink->landings.wait_for(1).size(), 1u);
  const std::size_t refused = pace.refused;
  wait_until([&] { return pace.refused > refused + 20; });
  EXPECT_EQ(sink->landings.count(), 1u);
  EXPECT_EQ(sink->landed_bytes, 2 * grain);
  pace.rule([](std::size_t left_bytes, std::size_t) { return left_bytes; });
  expect_whole(*sink);
}

TEST_F(PaceTest, WhatIsUrgentDoesNotWaitNorForThoseThatDo) {
  pace.rule([](std::size_t, std::size_t) { return 0; });
  const auto patient = one.fetch(2, name);
  wait_until([&] { return pace.refused > 0; });
  expect_whole(*one.fetch(2, name, FetchPart{.urgent = true}));
  EXPECT_EQ(patient->landings.count(), 0u);
  pace.rule([](std::size_t left_bytes, std::size_t) { return left_bytes; });
  expect_whole(*patient);
}

// Loses interest after the first chunk.
class FickleSink : public MemorySink {
 public:
  bool wanted() const override { return !has_enough; }
  void landed(std::size_t offset_bytes, std::size_t size_bytes) override {
    has_enough = true;
    MemorySink::landed(offset_bytes, size_bytes);
  }
  std::atomic<bool> has_enough{false};
};

TEST_F(PaceTest, WhatIsNotWantedAnyMoreIsNotWaitedFor) {
  std::atomic<std::size_t> allowed{grain};
  pace.rule([&](std::size_t, std::size_t) { return allowed.exchange(0); });
  const auto sink = std::make_shared<FickleSink>();
  one.transport->fetch(2, name, sink, 25000);
  EXPECT_EQ(sink->end(), FetchEnd::refused);
  EXPECT_EQ(sink->landed_bytes, grain);
}

TEST_F(PaceTest, ManyThatWaitDoNotKeepOutWhatIsUrgent) {
  pace.rule([](std::size_t, std::size_t) { return 0; });
  std::vector<std::shared_ptr<MemorySink>> patient;
  for (int i = 0; i < 20; ++i) patient.push_back(one.fetch(2, name));
  wait_until([&] { return pace.refused > 0; });
  expect_whole(*one.fetch(2, name, FetchPart{.urgent = true}));
  pace.rule([](std::size_t left_bytes, std::size_t) { return left_bytes; });
  for (const auto& sink : patient) expect_whole(*sink);
}

// Says how much of what landed it has not dealt with.
class BusySink : public MemorySink {
 public:
  std::size_t backlog() const override { return landings_ - std::min<std::size_t>(done, landings_); }
  void landed(std::size_t offset_bytes, std::size_t size_bytes) override {
    ++landings_;
    MemorySink::landed(offset_bytes, size_bytes);
  }
  std::atomic<std::size_t> done{0};

 private:
  std::atomic<std::size_t> landings_{0};
};

class ImpatientPaceTest : public PaceTest {
 protected:
  ImpatientPaceTest() : PaceTest(1000) {}
};

class HurriedPaceTest : public PaceTest {
 protected:
  HurriedPaceTest() : PaceTest(200) {}
};

TEST_F(ImpatientPaceTest, AnAskerDoesNotGiveUpASourceThatSaysItWaits) {
  const auto opened_at = Clock::now() + std::chrono::milliseconds(2500);
  pace.rule([=](std::size_t left_bytes, std::size_t) { return Clock::now() < opened_at ? 0 : left_bytes; });
  expect_whole(*one.fetch(2, name, 1500));  // in all, and 1000 ms without a sign of life
}

TEST_F(HurriedPaceTest, AnAskerThatHangsHoldsUpNobody) {
  pace.rule([](std::size_t left_bytes, std::size_t under_way) { return under_way == 0 ? left_bytes : 0; });
  const auto hanging = std::make_shared<BusySink>();
  one.transport->fetch(2, name, hanging, 25000);
  EXPECT_EQ(hanging->landings.wait_for(4).size(), 4u);
  expect_whole(*one.fetch(2, name));
  EXPECT_EQ(hanging->ends.count(), 0u);
  EXPECT_EQ(hanging->end(), FetchEnd::timed_out) << "in the end";
  EXPECT_EQ(hanging->landings.count(), 4u) << "as many as there are buffers";
}

class SubBufferTest : public PaceTest {
 protected:
  SubBufferTest() : PaceTest(3000, 2) {}
};

TEST_F(SubBufferTest, NoMoreIsSentThanTheReceiverHasRoomFor) {
  pace.rule([](std::size_t left_bytes, std::size_t under_way) {
    return under_way == 0 ? std::min(left_bytes, 4 * grain) : 0;
  });
  const auto sink = std::make_shared<BusySink>();
  one.transport->fetch(2, name, sink, 25000);
  EXPECT_EQ(sink->landings.wait_for(2).size(), 2u);
  EXPECT_EQ(pace.sizes.wait_for(2).size(), 2u) << "they are off the wire all the same";
  for (std::size_t done = 1; done <= 5; ++done) {
    sink->done = done;
    EXPECT_EQ(pace.sizes.wait_for(done + 2).size(), done + 2);
    EXPECT_EQ(sink->landings.wait_for(done + 2).size(), done + 2);
  }
  sink->done = SIZE_MAX / 2;
  expect_whole(*sink);
}

}  // namespace
}  // namespace ckpt::net::testing
