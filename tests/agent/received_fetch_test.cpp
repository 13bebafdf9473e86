#include "gpu_replication/received_fetch.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>

#include <atomic>

#include "parity_group.hpp"

namespace ckpt::agent {
namespace {

using core::FetchResult;
using testing::Fate;

// A piece on node 5, and a receive buffer here whose second place it has come to, as far as a test says.
class ReceivedFetchTest : public ::testing::Test {
 protected:
  static constexpr core::NodeId owner = 5;
  static constexpr std::size_t leaf = kernels::leaf_size_bytes;
  static constexpr std::size_t length_bytes = 20 * leaf + 1234;
  static constexpr CheckpointId checkpoint{3, 70};

  ReceivedFetchTest() {
    receive_buffer_->make_places({0, length_bytes});
    trainers_.find_places();
    write_piece(theirs_->writable_slot(0), piece_);
    network_.index(owner).add({core::held_rank, "shard", 0}, theirs_, piece_.manifest);
  }
  ~ReceivedFetchTest() override {
    network_.drain();
    pool_.drain();
  }

  void land(std::uint64_t size_bytes) {
    trainers_.begin(1, checkpoint);
    std::copy_n(piece_.data.begin(), size_bytes, trainers_.bytes(1).data());
    trainers_.received(1, size_bytes);
  }
  void start(std::int64_t receive_timeout_ms, std::int64_t timeout_ms = 30'000) {
    fetch_ = std::make_shared<ReceivedFetch>(
        FetchDestination(ours_, 0, piece_info(piece_.manifest)),
        ReceivedFetch::Order{owner, false, timeout_ms, receive_timeout_ms}, receive_buffer_, 1, pool_, port_,
        [this](ReceivedFetch::Outcome outcome) { outcomes_.put(std::move(outcome)); });
    fetch_->start();
  }
  ReceivedFetch::Outcome fetch(std::int64_t receive_timeout_ms = 30'000) {
    start(receive_timeout_ms);
    while (outcomes_.empty()) fetch_->look();
    return outcomes_.take();
  }
  void expect_whole(const ReceivedFetch::Outcome& outcome, std::uint64_t gpu_received_bytes) {
    EXPECT_EQ(outcome.result, FetchResult::complete);
    EXPECT_EQ(outcome.manifest, piece_.manifest);
    EXPECT_EQ(outcome.gpu_received_bytes, gpu_received_bytes);
    EXPECT_EQ(ours_->slot(0).read(), piece_.manifest);
    EXPECT_TRUE(std::equal(piece_.data.begin(), piece_.data.end(), ours_->slot(0).data()));
  }
  void expect_nothing(const ReceivedFetch::Outcome& outcome, FetchResult result) {
    EXPECT_EQ(outcome.result, result);
    EXPECT_EQ(outcome.manifest, std::nullopt);
    EXPECT_EQ(ours_->slot(0).read(), std::nullopt);
  }

  test::TemporaryDirectory directory_{test::in_memory};
  arena::NodeArena arena_{directory_.path() + "/node", "job", "node"};
  const testing::Piece piece_ = testing::make_piece("shard", checkpoint, length_bytes);
  std::shared_ptr<arena::Segment> theirs_ = std::make_shared<arena::Segment>(
      arena_.create_segment(testing::segment_spec(core::held_rank, "shard", length_bytes), 1));
  std::shared_ptr<arena::Segment> ours_ = std::make_shared<arena::Segment>(
      arena_.create_segment(testing::segment_spec(core::held_rank, "shard", length_bytes), 1));
  std::shared_ptr<arena::ReceiveBuffer> receive_buffer_ =
      std::make_shared<arena::ReceiveBuffer>(arena::ReceiveBuffer::create(directory_.path(), 0, {1, 0, 2}));
  arena::ReceiveBuffer trainers_ =
      arena::ReceiveBuffer::attach(UniqueFd(::fcntl(receive_buffer_->fd(), F_DUPFD_CLOEXEC, 0)));
  testing::Mailbox<ReceivedFetch::Outcome> outcomes_;
  WorkerPool pool_{2};
  testing::FakeNetwork network_{100'000, false};
  const std::unique_ptr<net::Transport> transport_ = testing::transport_over(network_);
  std::shared_ptr<TransportPort> port_ = std::make_shared<TransportPort>(*transport_);
  std::shared_ptr<ReceivedFetch> fetch_;
};

TEST_F(ReceivedFetchTest, FetchesNoBytesThatGpusHaveDelivered) {
  land(length_bytes);
  expect_whole(fetch(), length_bytes);
  EXPECT_EQ(network_.bytes_sent(), 0u);
}

TEST_F(ReceivedFetchTest, TakesBytesAsGpusDeliverThem) {
  land(3 * leaf + 5);
  start(30'000);
  for (const std::uint64_t gpu_received_bytes : {4 * leaf, 11 * leaf + 1, length_bytes}) {
    EXPECT_TRUE(outcomes_.empty());
    land(gpu_received_bytes);
    fetch_->look();
  }
  while (outcomes_.empty()) fetch_->look();
  expect_whole(outcomes_.take(), length_bytes);
  EXPECT_EQ(network_.bytes_sent(), 0u);
}

TEST_F(ReceivedFetchTest, FetchesTheRestFromTheNodeAfterTheDeadline) {
  land(7 * leaf + 100);
  expect_whole(fetch(0), 7 * leaf);
  EXPECT_EQ(network_.bytes_sent(), length_bytes - 7 * leaf);
}

// However much arrives, and however often.
TEST_F(ReceivedFetchTest, TakesNothingFromGpusAfterTheTotalDeadline) {
  land(7 * leaf);
  start(30'000, 0);
  expect_whole(outcomes_.take(), 0);
  EXPECT_EQ(network_.bytes_sent(), length_bytes);
}

TEST_F(ReceivedFetchTest, FetchesTheRestImmediatelyWhenGpusHaveStopped) {
  land(3 * leaf);
  start(600'000, 600'000);
  fetch_->stop_waiting();
  expect_whole(outcomes_.take(), 3 * leaf);
  EXPECT_EQ(network_.bytes_sent(), length_bytes - 3 * leaf);
}

TEST_F(ReceivedFetchTest, FetchesEverythingFromTheNodeIfGpusDeliverNothing) {
  expect_whole(fetch(0), 0);
  EXPECT_EQ(network_.bytes_sent(), length_bytes);
}

TEST_F(ReceivedFetchTest, IgnoresDeliveredBytesOfAnotherCheckpoint) {
  land(length_bytes);
  trainers_.begin(1, CheckpointId(3, 71));
  trainers_.received(1, length_bytes);
  expect_whole(fetch(0), 0);
}

TEST_F(ReceivedFetchTest, RefetchesLeavesThatGpusDeliveredDamaged) {
  land(length_bytes);
  for (const std::size_t bad : {std::size_t{4}, std::size_t{9}}) trainers_.bytes(1)[bad * leaf + 17] ^= std::byte{1};
  expect_whole(fetch(), length_bytes - 2 * leaf);
  EXPECT_EQ(network_.bytes_sent(), 6 * leaf) << "from the first bad leaf to the last";
}

TEST_F(ReceivedFetchTest, SurvivesConcurrentWritesToTheReceiveBuffer) {
  land(length_bytes);
  std::atomic<bool> stop{false};
  std::jthread trainer([&] {
    for (int value = 0; !stop; ++value) {
      trainers_.begin(1, CheckpointId(3, 71 + value % 2));
      std::fill_n(trainers_.bytes(1).data(), length_bytes, static_cast<std::byte>(value));
      land(length_bytes);
    }
  });
  for (int i = 0; i < 20; ++i) {
    const auto outcome = fetch(1);
    EXPECT_EQ(outcome.result, FetchResult::complete);
    EXPECT_TRUE(std::equal(piece_.data.begin(), piece_.data.end(), ours_->slot(0).data()));
  }
  stop = true;
}

TEST_F(ReceivedFetchTest, CompletesAnEmptyPieceWithoutDelivery) {
  const auto empty = testing::make_piece("empty", checkpoint, 0);
  auto segment =
      std::make_shared<arena::Segment>(arena_.create_segment(testing::segment_spec(core::held_rank, "empty", 0), 1));
  write_piece(segment->writable_slot(0), empty);
  network_.index(owner).add({core::held_rank, "empty", 0}, segment, empty.manifest);
  auto fetch = std::make_shared<ReceivedFetch>(
      FetchDestination(segment, 1, piece_info(empty.manifest)), ReceivedFetch::Order{owner, false, 30'000, 30'000},
      receive_buffer_, 0, pool_, port_, [this](ReceivedFetch::Outcome outcome) { outcomes_.put(std::move(outcome)); });
  fetch->start();
  EXPECT_EQ(outcomes_.take().result, FetchResult::complete);
  EXPECT_EQ(segment->slot(1).read(), empty.manifest);
}

TEST_F(ReceivedFetchTest, FailsWithoutTheNodesManifest) {
  land(length_bytes);
  network_.rule([](auto, const auto&, const auto&) { return Fate{.end = net::FetchEnd::timed_out}; });
  expect_nothing(fetch(), FetchResult::failed);
  network_.rule([](auto, const auto&, const auto&) { return Fate{.wrong_byte = 40}; });
  expect_nothing(fetch(), FetchResult::corrupt);
}

TEST_F(ReceivedFetchTest, FailsIfTheRestCannotBeFetchedOrIsDamaged) {
  land(leaf);
  network_.rule([](auto, const auto&, const auto& part) {
    return part.manifest ? Fate{} : Fate{.end = net::FetchEnd::peer_failed};
  });
  expect_nothing(fetch(0), FetchResult::failed);
  network_.rule([](auto, const auto&, const auto& part) { return part.manifest ? Fate{} : Fate{.wrong_byte = 3}; });
  expect_nothing(fetch(0), FetchResult::corrupt);
}

TEST_F(ReceivedFetchTest, CancelledFetchEndsOnceAndMakesNothing) {
  land(3 * leaf);
  start(30'000);
  fetch_->cancel();
  expect_nothing(outcomes_.take(), FetchResult::failed);
  fetch_->look();
  fetch_->cancel();
  network_.drain();
  pool_.drain();
  EXPECT_TRUE(outcomes_.empty());
}

}  // namespace
}  // namespace ckpt::agent
