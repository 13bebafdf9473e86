#include "persist/rate_limiter.hpp"

#include <gtest/gtest.h>

#include "memory_file_system.hpp"
#include "support.hpp"

namespace ckpt::persist::test {
namespace {

using namespace std::chrono_literals;

// Time that passes only while somebody sleeps.
class VirtualClock : public RateLimiterClock {
 public:
  Clock::time_point now() override { return now_; }
  void sleep(Clock::time_point until, const std::stop_token&) override {
    EXPECT_GT(until, now_);
    now_ = until;
  }
  void pass(Clock::duration time) { now_ += time; }
  Clock::duration passed() const { return now_.time_since_epoch(); }

 private:
  Clock::time_point now_{};
};

TEST(RateLimiter, NeverExceedsTheRateByMoreThanABlock) {
  constexpr std::uint64_t rate = 1'000'000;
  VirtualClock clock;
  RateLimiter rate_limiter(rate, clock);
  std::mt19937 random(7);
  std::vector<std::pair<Clock::duration, std::uint64_t>> sent;
  for (int i = 0; i < 400; ++i) {
    if (random() % 3 == 0) clock.pass(std::chrono::milliseconds(random() % 300));
    const std::uint64_t bytes = random() % 65536;
    rate_limiter.take(bytes, {});
    sent.emplace_back(clock.passed(), bytes);
  }
  for (std::size_t first = 0; first < sent.size(); ++first) {
    double total = 0;
    for (std::size_t last = first; last < sent.size(); ++last) {
      total += static_cast<double>(sent[last].second);
      const double seconds = std::chrono::duration<double>(sent[last].first - sent[first].first).count();
      ASSERT_LE(total, rate * seconds + 65536 + 1) << first << " to " << last;
    }
  }
}

TEST(RateLimiter, UsesTheFullRateWhileBusy) {
  VirtualClock clock;
  RateLimiter rate_limiter(1'000'000, clock);
  for (int i = 0; i < 101; ++i) rate_limiter.take(10'000, {});
  EXPECT_NEAR(std::chrono::duration<double>(clock.passed()).count(), 1.0, 1e-6);
}

TEST(RateLimiter, NeverSleepsWithoutALimit) {
  VirtualClock clock;
  RateLimiter rate_limiter(0, clock);
  rate_limiter.take(UINT64_MAX, {});
  EXPECT_EQ(clock.passed(), 0s);
}

TEST(RateLimiter, WriterObeysTheLimit) {
  VirtualClock clock;
  RateLimiter rate_limiter(1'000'000, clock);
  MemoryFileSystem files(std::make_shared<Disk>(), {.block_bytes = 65536});
  const Sample rank0 = sample("rank0", {1, 1}, 100'000);
  CheckpointWriter(files, "job", "node", rate_limiter).write(rank0.piece);
  const double seconds = static_cast<double>(rank0.bytes.size()) / 1e6;
  EXPECT_NEAR(std::chrono::duration<double>(clock.passed()).count(), seconds, 0.1);
}

TEST(RateLimiter, StopEndsASleep) {
  RateLimiterClock clock;
  std::stop_source stop;
  stop.request_stop();
  clock.sleep(Clock::now() + 1h, stop.get_token());
}

}  // namespace
}  // namespace ckpt::persist::test
