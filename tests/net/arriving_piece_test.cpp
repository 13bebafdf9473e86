// A node that sends on a piece while it still receives the piece itself.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "net_support.hpp"

namespace ckpt::net::testing::arriving {
namespace {

constexpr std::size_t chunk = 1u << 20;  // of loopback_options
constexpr std::size_t piece_bytes = 4 * chunk + 4321;
constexpr std::size_t given_up = SIZE_MAX;
const PieceName name{"layers", 9};
const FetchPart urgent{.urgent = true};

class ArrivingPieceOverEachTransport : public ::testing::TestWithParam<const char*> {
 protected:
  ArrivingPieceOverEachTransport() : one_(loopback_options(1, 100, GetParam())) {
    Transport::Handlers handlers;
    handlers.serve = [this](PeerId, const PieceName&) -> std::optional<ServedPiece> {
      asked_.fetch_add(1);
      if (!is_here_) return std::nullopt;
      return ServedPiece{{}, piece_, nullptr, [this]() -> std::optional<std::size_t> {
                           const std::size_t ready = ready_bytes_;
                           return ready == given_up ? std::nullopt : std::optional(ready);
                         }};
    };
    source_ = Transport::create(loopback_options(2, 200, GetParam()), std::move(handlers));
    one_.transport->set_peer(2, 200, source_->address());
  }
  void wait_until_asked() const {
    for (int i = 0; i < 2000 && asked_ == 0; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    ASSERT_NE(asked_, 0);
  }

  const std::vector<std::byte> piece_ = pattern(piece_bytes, 1);
  std::atomic<bool> is_here_ = true;
  std::atomic<std::size_t> ready_bytes_ = 0;
  std::atomic<int> asked_ = 0;
  Node one_;
  std::unique_ptr<Transport> source_;
};
INSTANTIATE_TEST_SUITE_P(, ArrivingPieceOverEachTransport, ::testing::Values("tcp", "shm"),
                         [](const auto& tested) { return std::string(tested.param); });

TEST_P(ArrivingPieceOverEachTransport, ChunksLeaveAsSoonAsTheyAreReadyAndNoSooner) {
  ready_bytes_ = 2 * chunk + 1;
  const auto sink = one_.fetch(2, name, urgent);
  ASSERT_EQ(sink->receive_buffers.wait_for(2).size(), 2u);
  // The source has looked at all requests again when it has served another one.
  ASSERT_EQ(one_.fetch(2, name, FetchPart{.size_bytes = chunk, .urgent = true})->end(), FetchEnd::complete);
  EXPECT_EQ(sink->receive_buffers.count(), 2u) << "a part of the third chunk is ready, not all of it";
  ready_bytes_ = 3 * chunk;
  EXPECT_EQ(sink->receive_buffers.wait_for(3).size(), 3u);
  EXPECT_EQ(sink->ends.count(), 0u);
  ready_bytes_ = piece_bytes;
  EXPECT_EQ(sink->end(), FetchEnd::complete);
  EXPECT_TRUE(sink->data == piece_);
}

TEST_P(ArrivingPieceOverEachTransport, TheAskerLearnsAtOnceThatNoMoreWillCome) {
  ready_bytes_ = chunk;
  const auto sink = one_.fetch(2, name, urgent);
  ASSERT_EQ(sink->receive_buffers.wait_for(1).size(), 1u);
  ready_bytes_ = given_up;
  EXPECT_EQ(sink->end(), FetchEnd::not_there);
}

TEST_P(ArrivingPieceOverEachTransport, ARangeOfItWaitsForItsOwnBytesOnly) {
  ready_bytes_ = 3 * chunk;
  const auto sink = one_.fetch(2, name, FetchPart{.first_byte = chunk, .size_bytes = 2 * chunk, .urgent = true});
  EXPECT_EQ(sink->end(), FetchEnd::complete);
  EXPECT_TRUE(std::equal(sink->data.begin(), sink->data.end(), piece_.begin() + chunk));
}

TEST_P(ArrivingPieceOverEachTransport, AnUrgentRequestWaitsForOneThatIsAboutToArrive) {
  is_here_ = false;
  ready_bytes_ = piece_bytes;
  const auto sink = one_.fetch(2, name, urgent);
  wait_until_asked();
  is_here_ = true;
  EXPECT_EQ(sink->end(), FetchEnd::complete);
}

TEST_P(ArrivingPieceOverEachTransport, NoRequestWaitsForEverForOneThatDoesNotArrive) {
  is_here_ = false;
  EXPECT_EQ(one_.fetch(2, name, FetchPart{})->end(), FetchEnd::not_there);
  EXPECT_EQ(asked_, 1);
  EXPECT_EQ(one_.fetch(2, name, urgent)->end(), FetchEnd::not_there);
}

}  // namespace
}  // namespace ckpt::net::testing::arriving
