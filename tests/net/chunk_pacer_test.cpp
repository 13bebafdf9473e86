// When chunks leave, and what their receivers say of them.
#include "net/chunk_pacer.hpp"

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
class TestChunkPacer : public ChunkPacer {
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
  void received(const SentChunk& chunk) override {
    if (chunk.begin > chunk.end || chunk.to != 1 || !(chunk.piece == name)) in_order = false;
    sizes.put(chunk.size_bytes);
  }

  std::atomic<std::size_t> refused{0};
  std::atomic<std::size_t> most_under_way{0};
  std::atomic<bool> in_order{true};
  Mailbox<std::size_t> sizes;  // of what arrived

 private:
  std::mutex mutex_;
  Rule rule_ = [](std::size_t left_bytes, std::size_t) { return left_bytes; };
};

void wait_until(const std::function<bool()>& is_so) {
  for (const auto end = Clock::now() + wait_limit; !is_so();) {
    ASSERT_LT(Clock::now(), end);
    std::this_thread::yield();
  }
}

// Node 2 serves a piece at a pace; node 1 fetches it.
class ChunkPacerTest : public ::testing::Test {
 protected:
  explicit ChunkPacerTest(std::int64_t progress_timeout_ms = 3000, std::size_t sub_buffers = 4)
      : one_(with(1, 100, progress_timeout_ms, sub_buffers)),
        two_(with(2, 200, progress_timeout_ms, sub_buffers), &pacer_) {
    one_.knows(two_);
    two_.knows(one_);
    two_.serves(name, data_, "manifest");
  }
  static TransportOptions with(PeerId node, std::uint64_t instance, std::int64_t progress_timeout_ms,
                               std::size_t sub_buffers) {
    TransportOptions options = loopback_options(node, instance);
    options.progress_timeout_ms = progress_timeout_ms;
    options.sub_buffers = sub_buffers;
    return options;
  }
  void expect_whole(MemorySink& sink) {
    EXPECT_EQ(sink.end(), FetchEnd::complete);
    EXPECT_TRUE(sink.in_order);
    EXPECT_EQ(sink.data, data_);
  }

  const std::vector<std::byte> data_ = pattern(5 * (1u << 20) + 777, 3);
  TestChunkPacer pacer_;
  Node one_;
  Node two_;
};

TEST_F(ChunkPacerTest, ChunkCountsAsInFlightUntilItsReceiverHasIt) {
  expect_whole(*one_.fetch(2, name));
  const auto sizes = pacer_.sizes.wait_for(6);  // of 1 MiB
  ASSERT_EQ(sizes.size(), 6u);
  EXPECT_EQ(std::accumulate(sizes.begin(), sizes.end(), std::size_t{0}), data_.size());
  EXPECT_TRUE(pacer_.in_order);
  EXPECT_LE(pacer_.most_under_way, 4u);
}

TEST_F(ChunkPacerTest, SendsOneChunkAtATimeIfRequired) {
  pacer_.rule([](std::size_t left_bytes, std::size_t under_way) { return under_way == 0 ? left_bytes : 0; });
  const auto first = one_.fetch(2, name), second = one_.fetch(2, name);
  expect_whole(*first);
  expect_whole(*second);
  EXPECT_EQ(pacer_.most_under_way, 1u) << "of two pieces together";
}

TEST_F(ChunkPacerTest, CutsChunksToTheAllowanceInWholeGrains) {
  pacer_.rule([](std::size_t, std::size_t) { return 3 * grain + 5; });
  expect_whole(*one_.fetch(2, name));
  const std::size_t whole = data_.size() / (3 * grain);
  const auto sizes = pacer_.sizes.wait_for(whole + 1);
  ASSERT_EQ(sizes.size(), whole + 1);
  for (std::size_t i = 0; i < whole; ++i) EXPECT_EQ(sizes[i], 3 * grain);
  EXPECT_EQ(sizes.back(), data_.size() % (3 * grain));
}

TEST_F(ChunkPacerTest, SendsNothingUntilItIsAllowed) {
  std::atomic<std::size_t> allowed{2 * grain};
  pacer_.rule(
      [&](std::size_t left_bytes, std::size_t) { return std::min<std::size_t>(left_bytes, allowed.exchange(0)); });
  const auto sink = one_.fetch(2, name);
  EXPECT_EQ(sink->arrivals.wait_for(1).size(), 1u);
  const std::size_t refused = pacer_.refused;
  wait_until([&] { return pacer_.refused > refused + 20; });
  EXPECT_EQ(sink->arrivals.count(), 1u);
  EXPECT_EQ(sink->received_bytes, 2 * grain);
  pacer_.rule([](std::size_t left_bytes, std::size_t) { return left_bytes; });
  expect_whole(*sink);
}

TEST_F(ChunkPacerTest, UrgentFetchIgnoresThePacer) {
  pacer_.rule([](std::size_t, std::size_t) { return 0; });
  const auto patient = one_.fetch(2, name);
  wait_until([&] { return pacer_.refused > 0; });
  expect_whole(*one_.fetch(2, name, FetchPart{.urgent = true}));
  EXPECT_EQ(patient->arrivals.count(), 0u);
  pacer_.rule([](std::size_t left_bytes, std::size_t) { return left_bytes; });
  expect_whole(*patient);
}

// Loses interest after the first chunk.
class FickleSink : public MemorySink {
 public:
  bool wanted() const override { return !has_enough; }
  void received(std::size_t offset_bytes, std::size_t size_bytes) override {
    has_enough = true;
    MemorySink::received(offset_bytes, size_bytes);
  }
  std::atomic<bool> has_enough{false};
};

TEST_F(ChunkPacerTest, RefusedFetchEndsWithoutWaiting) {
  std::atomic<std::size_t> allowed{grain};
  pacer_.rule([&](std::size_t, std::size_t) { return allowed.exchange(0); });
  const auto sink = std::make_shared<FickleSink>();
  one_.transport->fetch(2, name, sink, 25000);
  EXPECT_EQ(sink->end(), FetchEnd::refused);
  EXPECT_EQ(sink->received_bytes, grain);
}

TEST_F(ChunkPacerTest, UrgentFetchPassesManyWaitingOnes) {
  pacer_.rule([](std::size_t, std::size_t) { return 0; });
  std::vector<std::shared_ptr<MemorySink>> patient;
  for (int i = 0; i < 20; ++i) patient.push_back(one_.fetch(2, name));
  wait_until([&] { return pacer_.refused > 0; });
  expect_whole(*one_.fetch(2, name, FetchPart{.urgent = true}));
  pacer_.rule([](std::size_t left_bytes, std::size_t) { return left_bytes; });
  for (const auto& sink : patient) expect_whole(*sink);
}

// Says how much of what arrived it has not dealt with.
class BusySink : public MemorySink {
 public:
  std::size_t backlog() const override { return arrived_ - std::min<std::size_t>(done, arrived_); }
  void received(std::size_t offset_bytes, std::size_t size_bytes) override {
    ++arrived_;
    MemorySink::received(offset_bytes, size_bytes);
  }
  std::atomic<std::size_t> done{0};

 private:
  std::atomic<std::size_t> arrived_{0};
};

class ImpatientChunkPacerTest : public ChunkPacerTest {
 protected:
  ImpatientChunkPacerTest() : ChunkPacerTest(1000) {}
};

class HurriedChunkPacerTest : public ChunkPacerTest {
 protected:
  HurriedChunkPacerTest() : ChunkPacerTest(600) {}
};

TEST_F(ImpatientChunkPacerTest, AskerKeepsWaitingForASourceThatReportsWaiting) {
  const auto opened_at = Clock::now() + std::chrono::milliseconds(2500);
  pacer_.rule([=](std::size_t left_bytes, std::size_t) { return Clock::now() < opened_at ? 0 : left_bytes; });
  expect_whole(*one_.fetch(2, name, 1500));  // in all, and 1000 ms without a sign of life
}

TEST_F(HurriedChunkPacerTest, HangingAskerDelaysNoOther) {
  pacer_.rule([](std::size_t left_bytes, std::size_t under_way) { return under_way == 0 ? left_bytes : 0; });
  const auto hanging = std::make_shared<BusySink>();
  one_.transport->fetch(2, name, hanging, 25000);
  EXPECT_EQ(hanging->arrivals.wait_for(4).size(), 4u);
  expect_whole(*one_.fetch(2, name));
  EXPECT_EQ(hanging->ends.count(), 0u);
  EXPECT_EQ(hanging->end(), FetchEnd::timed_out) << "in the end";
  EXPECT_EQ(hanging->arrivals.count(), 4u) << "as many as there are buffers";
}

class SubBufferTest : public ChunkPacerTest {
 protected:
  SubBufferTest() : ChunkPacerTest(3000, 2) {}
};

TEST_F(SubBufferTest, SendsNoMoreThanTheReceiverHasRoomFor) {
  pacer_.rule([](std::size_t left_bytes, std::size_t under_way) {
    return under_way == 0 ? std::min(left_bytes, 4 * grain) : 0;
  });
  const auto sink = std::make_shared<BusySink>();
  one_.transport->fetch(2, name, sink, 25000);
  EXPECT_EQ(sink->arrivals.wait_for(2).size(), 2u);
  EXPECT_EQ(pacer_.sizes.wait_for(2).size(), 2u) << "they are off the wire all the same";
  for (std::size_t done = 1; done <= 5; ++done) {
    sink->done = done;
    EXPECT_EQ(pacer_.sizes.wait_for(done + 2).size(), done + 2);
    EXPECT_EQ(sink->arrivals.wait_for(done + 2).size(), done + 2);
  }
  sink->done = SIZE_MAX / 2;
  expect_whole(*sink);
}

}  // namespace
}  // namespace ckpt::net::testing
