#include "arena/comm_log.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <latch>
#include <memory>
#include <random>
#include <thread>

namespace ckpt::arena {
namespace {

using Events = std::vector<CommEvent>;

Clock::time_point at_us(std::int64_t us) { return Clock::time_point(std::chrono::microseconds(us)); }

class CommLogTest : public testing::Test {
 protected:
  // What read() returns and appends to nothing.
  struct Read {
    bool complete = false;
    Events events;
    bool operator==(const Read&) const = default;
  };
  Read read() { return read(reader_); }
  static Read read(CommReader& reader) {
    Read result;
    result.complete = reader.read(result.events);
    return result;
  }
  void iterations(int first, int count) {
    for (int i = 0; i < count; ++i) writer_.iteration(at_us(first + i));
  }
  static Events iteration_events(int first, int count) {
    Events events;
    for (int i = 0; i < count; ++i) events.push_back({first + i, CommKind::iteration, 0});
    return events;
  }

  std::unique_ptr<CommWords> words_ = std::make_unique<CommWords>();
  CommWriter writer_{*words_};
  CommReader reader_{*words_};
};

TEST_F(CommLogTest, ReadsEachEventOnceAndInOrder) {
  writer_.begin(3, at_us(10));
  writer_.begin(7, at_us(20));
  EXPECT_TRUE(writer_.end(3, at_us(30)));
  EXPECT_EQ(read(), (Read{true, {{10, CommKind::begin, 3}, {20, CommKind::begin, 7}, {30, CommKind::end, 3}}}));
  EXPECT_EQ(read(), (Read{true, {}}));
  EXPECT_TRUE(writer_.end(7, at_us(40)));
  writer_.iteration(at_us(50));
  Events appended = {{1, CommKind::iteration, 0}};
  EXPECT_TRUE(reader_.read(appended));
  EXPECT_EQ(appended, (Events{{1, CommKind::iteration, 0}, {40, CommKind::end, 7}, {50, CommKind::iteration, 0}}));
}

TEST_F(CommLogTest, KnowsTheLastOfferedIteration) {
  EXPECT_EQ(reader_.offered(), -1);
  writer_.offered(0);
  EXPECT_EQ(reader_.offered(), 0);
  writer_.offered(41);
  EXPECT_EQ(reader_.offered(), 41);
}

TEST_F(CommLogTest, PauseKeepsItsNameUntilTheLastOneEnds) {
  EXPECT_EQ(reader_.paused(), std::nullopt);
  EXPECT_FALSE(writer_.resume());
  writer_.pause("eval");
  EXPECT_EQ(reader_.paused(), "eval");
  writer_.pause("");
  EXPECT_EQ(reader_.paused(), "");
  EXPECT_TRUE(writer_.resume());
  EXPECT_NE(reader_.paused(), std::nullopt);
  EXPECT_TRUE(writer_.resume());
  EXPECT_EQ(reader_.paused(), std::nullopt);
  EXPECT_FALSE(writer_.resume());
}

TEST_F(CommLogTest, ReadsLongOrUnprintableNamesAsBoundedPrintableText) {
  writer_.pause(std::string(40, 'x'));
  EXPECT_EQ(reader_.paused(), std::string(32, 'x'));
  writer_.pause("a\n\x80");
  EXPECT_EQ(reader_.paused(), "a??");
}

// Whoever dies between two stores leaves the earlier pause, or none, or the whole new one.
TEST_F(CommLogTest, PauseCountsOnceItsNameIsWritten) {
  CommWords before{}, after{};
  CommWriter(after).pause("an evaluation of training");
  CommReader reader(before);
  for (std::size_t word = 0; word < pause_name_words; ++word) {
    before.pauses.name[word].store(after.pauses.name[word]);
    EXPECT_EQ(reader.paused(), std::nullopt);
  }
  before.pauses.begun.store(after.pauses.begun);
  EXPECT_EQ(reader.paused(), "an evaluation of training");
}

TEST_F(CommLogTest, WordsMatchTheDocumentedLayout) {
  writer_.begin(5, at_us(0x123456789abc));
  writer_.end(5, at_us(0x123456789abd));
  writer_.iteration(at_us(0x123456789abe));
  EXPECT_EQ(words_->written, 3u);
  EXPECT_EQ(words_->channels[5].begun, 1u);
  EXPECT_EQ(words_->channels[5].ended, 1u);
  EXPECT_EQ(words_->events[0], 0x01a4'1234'5678'9abcu);
  EXPECT_EQ(words_->events[1], 0x01a8'1234'5678'9abdu);
  EXPECT_EQ(words_->events[2], 0x010c'1234'5678'9abeu);
  iterations(0, comm_events_max);
  EXPECT_EQ(words_->events[2], 0x020c'0000'0000'0fffu);
}

TEST_F(CommLogTest, TimesComeFromTheMonotonicClock) {
  timespec time{};
  ASSERT_EQ(::clock_gettime(CLOCK_MONOTONIC, &time), 0);
  const std::int64_t before_us = time.tv_sec * 1'000'000 + time.tv_nsec / 1000;
  writer_.iteration(Clock::now());
  ASSERT_EQ(::clock_gettime(CLOCK_MONOTONIC, &time), 0);
  const Read result = read();
  EXPECT_GE(result.events.at(0).at_us, before_us);
  EXPECT_LE(result.events.at(0).at_us, time.tv_sec * 1'000'000 + time.tv_nsec / 1000);
}

TEST_F(CommLogTest, ChannelIsBusyFromItsFirstBeginToItsLastEnd) {
  EXPECT_FALSE(reader_.is_busy());
  writer_.begin(0, at_us(1));
  EXPECT_TRUE(reader_.is_busy());
  writer_.begin(0, at_us(2));
  writer_.end(0, at_us(3));
  EXPECT_TRUE(reader_.is_busy());
  writer_.end(0, at_us(4));
  EXPECT_FALSE(reader_.is_busy());
}

TEST_F(CommLogTest, OneBusyChannelMakesTheTrainerBusy) {
  for (std::uint32_t channel = 0; channel < comm_channels_max; ++channel) {
    writer_.begin(channel, at_us(1));
    EXPECT_TRUE(reader_.is_busy()) << channel;
    writer_.end((channel + 1) % comm_channels_max, at_us(2));
    EXPECT_TRUE(reader_.is_busy()) << channel;
    writer_.end(channel, at_us(3));
    EXPECT_FALSE(reader_.is_busy()) << channel;
  }
}

TEST_F(CommLogTest, EndWithoutABeginWritesNothing) {
  EXPECT_FALSE(writer_.end(2, at_us(1)));
  writer_.begin(2, at_us(2));
  EXPECT_FALSE(writer_.end(1, at_us(3)));
  EXPECT_TRUE(writer_.end(2, at_us(4)));
  EXPECT_FALSE(writer_.end(2, at_us(5)));
  EXPECT_EQ(words_->written, 2u);
  EXPECT_EQ(words_->channels[1].ended, 0u);
  EXPECT_EQ(words_->channels[2].ended, 1u);
  EXPECT_EQ(read(), (Read{true, {{2, CommKind::begin, 2}, {4, CommKind::end, 2}}}));
}

TEST_F(CommLogTest, CountersMayWrapAround) {
  words_->channels[4].begun = 0xffff'ffff;
  words_->channels[4].ended = 0xffff'ffff;
  EXPECT_FALSE(reader_.is_busy());
  EXPECT_FALSE(writer_.end(4, at_us(0)));
  const std::uint64_t before = reader_.begun_total();
  writer_.begin(4, at_us(1));
  EXPECT_NE(reader_.begun_total(), before);
  EXPECT_TRUE(reader_.is_busy());
  EXPECT_TRUE(writer_.end(4, at_us(2)));
  EXPECT_FALSE(reader_.is_busy());
}

TEST_F(CommLogTest, OnlyBeginsChangeTheTotal) {
  std::uint64_t total = reader_.begun_total();
  for (std::uint32_t channel = 0; channel < comm_channels_max; ++channel) {
    writer_.begin(channel, at_us(1));
    EXPECT_NE(reader_.begun_total(), total);
    total = reader_.begun_total();
    writer_.end(channel, at_us(2));
    writer_.iteration(at_us(3));
    EXPECT_EQ(reader_.begun_total(), total);
  }
}

TEST_F(CommLogTest, GpuPlaceIsBusyWhileItsBegunAndEndedNumbersDiffer) {
  for (const std::uint32_t place : {0u, 5u, comm_gpu_max - 1}) {
    const std::uint64_t total = reader_.begun_total();
    words_->on_gpu[place].begun = 7 * comm_gpu_max + place;
    EXPECT_TRUE(reader_.is_busy());
    EXPECT_NE(reader_.begun_total(), total);
    words_->on_gpu[place].ended = 7 * comm_gpu_max + place;
    EXPECT_FALSE(reader_.is_busy());
    words_->on_gpu[place].ended = 8 * comm_gpu_max + place;
    EXPECT_TRUE(reader_.is_busy());
    words_->on_gpu[place].begun = 8 * comm_gpu_max + place;
    EXPECT_FALSE(reader_.is_busy());
  }
}

TEST_F(CommLogTest, GpuEventsAreLoggedWithoutMakingTheTrainerBusy) {
  writer_.happened(CommKind::begin, 3, at_us(5));
  EXPECT_FALSE(reader_.is_busy());
  EXPECT_EQ(read(), (Read{true, {{5, CommKind::begin, 3}}}));
}

TEST_F(CommLogTest, NewReaderSkipsEarlierEvents) {
  iterations(0, 5);
  CommReader later(*words_);
  EXPECT_EQ(read(later), (Read{true, {}}));
  iterations(5, 2);
  EXPECT_EQ(read(later), (Read{true, iteration_events(5, 2)}));
}

TEST_F(CommLogTest, FastReaderLosesNoEventWhenTheRingWraps) {
  constexpr int total = 300 * comm_events_max;  // laps are counted modulo 256
  constexpr int step = comm_events_max - 7;
  Events all;
  int first = 0;
  for (; first + step <= total; first += step) {
    iterations(first, step);
    ASSERT_TRUE(reader_.read(all));
    ASSERT_EQ(all, iteration_events(first, step));
    all.clear();
  }
}

TEST_F(CommLogTest, BubblesAndUpdatesDoNotMakeTheNetworkBusy) {
  writer_.bubble_begin(at_us(10));
  writer_.bubble_end(at_us(20));
  writer_.update(at_us(30));
  const Events expected = {{10, CommKind::bubble_begin, 0}, {20, CommKind::bubble_end, 0}, {30, CommKind::update, 0}};
  EXPECT_EQ(read(), (Read{true, expected}));
  EXPECT_FALSE(reader_.is_busy());
  for (const CommEvent& event : expected) {
    EXPECT_FALSE(mark_of(event, at_us(100)));
    EXPECT_TRUE(device_mark_of(event, at_us(100)));
  }
  for (const CommKind kind : {CommKind::begin, CommKind::end}) {
    EXPECT_TRUE(mark_of({10, kind, 0}, at_us(100)));
    EXPECT_FALSE(device_mark_of({10, kind, 0}, at_us(100)));
  }
  EXPECT_EQ(device_mark_of({40, CommKind::iteration, 0}, at_us(30))->at_s, 30e-6) << "not later than now";
}

TEST_F(CommLogTest, ReadsAFullRingAndReportsLossBeyondIt) {
  iterations(0, comm_events_max);
  EXPECT_EQ(read(), (Read{true, iteration_events(0, comm_events_max)}));
  iterations(0, comm_events_max + 1);
  EXPECT_EQ(read(), (Read{false, {}}));
  EXPECT_EQ(read(), (Read{true, {}}));
  iterations(9, 3);
  EXPECT_EQ(read(), (Read{true, iteration_events(9, 3)}));
}

TEST_F(CommLogTest, ReportsAnOverrunDuringARead) {
  iterations(0, 3);
  // The writer has counted no further yet, and is a lap ahead in the ring.
  words_->events[1] = words_->events[1] + (std::uint64_t{1} << 56);
  EXPECT_FALSE(read().complete);
  iterations(9, 1);
  EXPECT_EQ(read(), (Read{true, iteration_events(9, 1)}));
}

TEST_F(CommLogTest, WaitsForAnEventThatIsCountedButNotStored) {
  for (const std::uint64_t lap_before : {0, 1, 255, 256, 1000}) {
    const auto words = std::make_unique<CommWords>();
    CommWriter writer(*words);
    words->written = lap_before * comm_events_max;
    CommReader reader(*words);
    for (int i = 0; i < 3; ++i) writer.iteration(at_us(i));
    const std::uint64_t stored = words->events[1];
    words->events[1] = lap_before == 0 ? 0 : stored - (std::uint64_t{1} << 56);  // wraps at 256 as laps do
    EXPECT_EQ(read(reader), (Read{true, iteration_events(0, 1)})) << lap_before;
    EXPECT_EQ(read(reader), (Read{true, {}})) << lap_before;
    words->events[1] = stored;
    EXPECT_EQ(read(reader), (Read{true, iteration_events(1, 2)})) << lap_before;
  }
}

TEST_F(CommLogTest, TreatsInvalidEventsAsALossAndContinues) {
  for (const std::uint64_t nonsense : {std::uint64_t{1} << 63, ~std::uint64_t{0}, std::uint64_t{comm_events_max + 1}}) {
    words_->written += nonsense;
    EXPECT_EQ(read(), (Read{false, {}}));
    iterations(4, 2);
    EXPECT_EQ(read(), (Read{true, iteration_events(4, 2)}));
  }
  iterations(0, 1);
  words_->written -= 3;  // backwards
  EXPECT_EQ(read(), (Read{false, {}}));
  const auto put = [&](std::uint64_t kind, std::uint64_t channel) {
    const std::uint64_t index = words_->written++;
    words_->events[index % comm_events_max] = (index / comm_events_max + 1) << 56 | channel << 53 | kind << 50;
  };
  put(0, 0);
  EXPECT_EQ(read(), (Read{false, {}}));
  put(1, comm_channels_max - 1);
  EXPECT_EQ(read(), (Read{true, {{0, CommKind::begin, comm_channels_max - 1}}}));
}

TEST_F(CommLogTest, SurvivesArbitraryContents) {
  std::mt19937_64 random(7);  // NOLINT: the same every time
  for (int round = 0; round < 300; ++round) {
    for (Word64& event : words_->events) event = random();
    for (auto& channel : words_->channels) channel.begun = static_cast<std::uint32_t>(random());
    words_->written = round % 3 == 0 ? random() : words_->written + random() % (comm_events_max + 2);
    const Events events = read().events;
    EXPECT_LE(events.size(), comm_events_max);
    for (const CommEvent& event : events) {
      EXPECT_LT(event.channel, comm_channels_max);
      EXPECT_GE(event.kind, CommKind::begin);
      EXPECT_LE(event.kind, CommKind::copy);
    }
  }
}

// Each thread with a stream of its own and one that all share.
TEST_F(CommLogTest, ConcurrentWritersLoseNoEvents) {
  constexpr std::uint32_t threads = 4;
  constexpr int rounds = 30'000;
  std::atomic<std::uint32_t> running = threads;
  std::latch together(threads);
  std::vector<std::jthread> writers;
  for (std::uint32_t own = 1; own <= threads; ++own)
    writers.emplace_back([&, own] {
      together.arrive_and_wait();
      for (int i = 0; i < rounds; ++i) {
        for (const std::uint32_t channel : {own, 0u}) {
          writer_.begin(channel, at_us(i));
          EXPECT_TRUE(reader_.is_busy());
          EXPECT_TRUE(writer_.end(channel, at_us(i)));
        }
      }
      --running;
    });
  // What is read of each thread's own stream is a part of what it wrote, in its order; all of it where nothing is lost.
  std::vector<std::int64_t> newest(threads + 1, -1);
  Events events;
  bool last = false;
  while (!last) {
    last = running == 0;
    events.clear();
    static_cast<void>(reader_.read(events));
    for (const CommEvent& event : events) {
      ASSERT_LE(event.channel, threads);
      if (event.channel == 0) continue;
      EXPECT_GE(event.at_us, newest[event.channel]);
      newest[event.channel] = event.at_us;
    }
  }
  EXPECT_EQ(words_->written, std::uint64_t{threads} * rounds * 4);
  for (std::uint32_t channel = 0; channel <= threads; ++channel) {
    EXPECT_EQ(words_->channels[channel].begun, words_->channels[channel].ended);
    EXPECT_EQ(words_->channels[channel].begun, (channel == 0 ? threads : 1) * rounds);
  }
  EXPECT_FALSE(reader_.is_busy());
}

TEST_F(CommLogTest, ThreadsOnOneChannelCountEachBeginAndEnd) {
  constexpr int threads = 2, calls = 1'000'000;
  const auto on_all_threads = [&](auto call) {
    std::latch together(threads);
    std::vector<std::jthread> all;
    for (int thread = 0; thread < threads; ++thread)
      all.emplace_back([&] {
        together.arrive_and_wait();
        for (int i = 0; i < calls; ++i) call();
      });
  };
  on_all_threads([&] { writer_.begin(6, at_us(0)); });
  EXPECT_EQ(words_->channels[6].begun, threads * calls);
  std::atomic<int> refused = 0;
  on_all_threads([&] { refused += writer_.end(6, at_us(0)) ? 0 : 1; });
  EXPECT_EQ(refused, 0);
  EXPECT_EQ(words_->channels[6].ended, threads * calls);
  EXPECT_EQ(words_->written, std::uint64_t{2} * threads * calls);
}

TEST_F(CommLogTest, ReadsAllEventsOfThreadsThatFitTheRing) {
  constexpr int threads = 4, rounds = comm_events_max / threads / 2;
  {
    std::vector<std::jthread> writers;
    for (int thread = 0; thread < threads; ++thread)
      writers.emplace_back([&, thread] {
        for (int i = 0; i < rounds; ++i) {
          writer_.begin(thread, at_us(i));
          writer_.end(thread, at_us(i));
        }
      });
  }
  const Read result = read();
  EXPECT_TRUE(result.complete);
  for (int thread = 0; thread < threads; ++thread) {
    Events own, expected;
    std::copy_if(result.events.begin(), result.events.end(), std::back_inserter(own),
                 [&](const CommEvent& event) { return event.channel == thread; });
    for (int i = 0; i < rounds; ++i)
      for (const CommKind kind : {CommKind::begin, CommKind::end})
        expected.push_back({i, kind, static_cast<std::uint8_t>(thread)});
    EXPECT_EQ(own, expected);
  }
}

}  // namespace
}  // namespace ckpt::arena
