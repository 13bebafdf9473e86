#include "agent/pieces/chunk_buffers.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <set>
#include <thread>

#include "agent/pieces/worker_pool.hpp"

namespace ckpt::agent {
namespace {

using Buffers = std::vector<ChunkBuffers::Buffer>;

// Asks, and shows whether and what was granted.
struct Asking {
  Asking(ChunkBuffers& buffers, std::size_t wanted) {
    buffers.ask(wanted, [this](Buffers granted) {
      ++grants;
      mine = std::move(granted);
    });
  }
  Asking(const Asking&) = delete;
  Asking& operator=(const Asking&) = delete;
  int grants = 0;
  Buffers mine;
};

TEST(ChunkBuffers, AreDistinctFullSizeAndPageAligned) {
  ChunkBuffers buffers;
  Asking all(buffers, ChunkBuffers::count);
  ASSERT_EQ(all.mine.size(), ChunkBuffers::count);
  std::set<std::byte*> different(all.mine.begin(), all.mine.end());
  EXPECT_EQ(different.size(), ChunkBuffers::count);
  for (std::byte* buffer : all.mine) {
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(buffer) % 4096, 0u);
    std::fill_n(buffer, ChunkBuffers::size_bytes, std::byte{1});
  }
  buffers.give_back(std::move(all.mine));
}

TEST(ChunkBuffers, AreReused) {
  ChunkBuffers buffers;
  std::set<std::byte*> seen;
  for (std::size_t round = 0; round < 3 * ChunkBuffers::count; ++round) {
    Asking two(buffers, 2);
    ASSERT_EQ(two.mine.size(), 2u);
    seen.insert(two.mine.begin(), two.mine.end());
    buffers.give_back(std::move(two.mine));
  }
  EXPECT_EQ(seen.size(), 2u);
}

TEST(ChunkBuffers, AreGrantedAllOrNone) {
  ChunkBuffers buffers;
  Asking most(buffers, ChunkBuffers::count - 1);
  Asking two(buffers, 2);
  EXPECT_EQ(two.grants, 0);
  buffers.give_back({most.mine.back()});
  most.mine.pop_back();
  EXPECT_EQ(two.mine.size(), 2u);
  EXPECT_EQ(two.grants, 1);
  buffers.give_back(std::move(two.mine));
  buffers.give_back(std::move(most.mine));
}

TEST(ChunkBuffers, AreGrantedFirstComeFirstServed) {
  ChunkBuffers buffers;
  Asking all(buffers, ChunkBuffers::count);
  Asking many(buffers, 10), few(buffers, 1), none(buffers, 0);
  // The few would be there, but the many came before.
  buffers.give_back(Buffers(all.mine.begin(), all.mine.begin() + 9));
  EXPECT_EQ(many.grants + few.grants + none.grants, 0);
  buffers.give_back({all.mine[9]});
  EXPECT_EQ(many.grants, 1);
  EXPECT_EQ(few.grants + none.grants, 0);
  buffers.give_back({all.mine[10]});
  EXPECT_EQ(few.grants, 1);
  EXPECT_EQ(none.grants, 1);
  EXPECT_TRUE(none.mine.empty());
  all.mine.erase(all.mine.begin(), all.mine.begin() + 11);
  for (Asking* each : {&all, &many, &few}) buffers.give_back(std::move(each->mine));
}

TEST(ChunkBuffers, NeverExceedTheirBoundWithManyThreads) {
  ChunkBuffers buffers;
  std::atomic<std::size_t> out{0}, most{0}, granted{0};
  constexpr std::size_t askings = 500;
  {
    WorkerPool users(2);  // what is granted stays with one of them for a while
    const auto grant = [&](Buffers mine) {
      const std::size_t now = out += mine.size();
      for (std::size_t before = most; before < now && !most.compare_exchange_weak(before, now);) {
      }
      ++granted;
      users.submit([&, mine = std::move(mine)] {
        out -= mine.size();
        buffers.give_back(mine);
      });
    };
    const auto ask = [&](std::size_t first) {
      for (std::size_t i = 0; i < askings; ++i) {
        buffers.ask((first + i * 7) % ChunkBuffers::count, grant);
      }
    };
    std::vector<std::jthread> threads;
    for (std::size_t t = 0; t < 4; ++t) threads.emplace_back(ask, t * 5);
  }
  EXPECT_EQ(granted, 4 * askings);
  EXPECT_LE(most, ChunkBuffers::count);
  EXPECT_EQ(out, 0u);
}

}  // namespace
}  // namespace ckpt::agent
