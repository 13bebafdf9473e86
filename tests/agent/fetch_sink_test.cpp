#include <gtest/gtest.h>

#include <random>
#include <thread>

#include "agent/transfers/peer_source.hpp"
#include "support.hpp"

namespace ckpt::agent {
namespace {

using core::FetchResult;
using net::FetchEnd;
using testing::make_piece;
using testing::Piece;

constexpr std::size_t leaf = kernels::leaf_size_bytes;

class FetchSinkTest : public ::testing::Test {
 protected:
  std::shared_ptr<FetchSink> sink_for(const Piece& piece, std::uint8_t slot = 0) {
    return std::make_shared<FetchSink>(FetchDestination(segment_, slot, piece_info(piece.manifest)), pool_,
                                       [this](FetchResult result, std::optional<arena::Manifest> manifest) {
                                         results_.put({result, std::move(manifest)});
                                       });
  }
  bool begin(FetchSink& sink, const Piece& piece) {
    const auto range = sink.begin(arena::encode(piece.manifest), piece.data.size());
    if (range) into_ = *range;
    return range.has_value();
  }
  void land(FetchSink& sink, const Piece& piece, std::size_t offset, std::size_t size) {
    std::copy_n(piece.data.begin() + static_cast<std::ptrdiff_t>(offset), size,
                into_.begin() + static_cast<std::ptrdiff_t>(offset));
    sink.received(offset, size);
  }
  FetchResult result() { return results_.take().first; }
  bool slot_is_empty(std::uint32_t slot = 0) const { return !segment_->slot(slot).checkpoint(); }

  test::TemporaryDirectory directory_{test::in_memory};
  arena::NodeArena arena_{directory_.path() + "/node", "job", "node"};
  std::shared_ptr<arena::Segment> segment_ = std::make_shared<arena::Segment>(
      arena_.create_segment(testing::segment_spec(core::held_rank, "s", 40 * leaf), 1));
  testing::Mailbox<std::pair<FetchResult, std::optional<arena::Manifest>>> results_;
  std::span<std::byte> into_;
  WorkerPool pool_{2};
};

TEST_F(FetchSinkTest, SealsACompletePieceWithItsManifest) {
  for (const std::size_t length : {std::size_t{0}, std::size_t{1}, leaf, leaf + 1, 40 * leaf, 33 * leaf + 777}) {
    const Piece piece = make_piece("s", {1, static_cast<std::int64_t>(length)}, length);
    const auto sink = sink_for(piece);
    ASSERT_TRUE(begin(*sink, piece));
    if (length != 0) land(*sink, piece, 0, length);
    sink->ended(FetchEnd::complete);
    const auto [result, manifest] = results_.take();
    EXPECT_EQ(result, FetchResult::complete) << length;
    EXPECT_EQ(manifest, piece.manifest);
    EXPECT_EQ(segment_->slot(0).read(), piece.manifest);
    EXPECT_TRUE(std::equal(piece.data.begin(), piece.data.end(), segment_->slot(0).data()));
  }
}

TEST_F(FetchSinkTest, ChunksMayArriveInAnyOrderAndSplitLeaves) {
  std::mt19937_64 random(3);
  for (int round = 0; round < 30; ++round) {
    const Piece piece = make_piece("s", {1, round + 1}, 20 * leaf + 12345);
    std::vector<std::pair<std::size_t, std::size_t>> chunks;
    for (std::size_t at = 0; at < piece.data.size();) {
      const std::size_t size = std::min<std::size_t>(1 + random() % (3 * leaf), piece.data.size() - at);
      chunks.emplace_back(at, size);
      at += size;
    }
    std::shuffle(chunks.begin(), chunks.end(), random);
    const auto sink = sink_for(piece);
    ASSERT_TRUE(begin(*sink, piece));
    for (const auto& [offset, size] : chunks) land(*sink, piece, offset, size);
    sink->ended(FetchEnd::complete);
    EXPECT_EQ(result(), FetchResult::complete);
    EXPECT_EQ(segment_->slot(0).checkpoint(), CheckpointId(1, round + 1));
  }
}

TEST_F(FetchSinkTest, OneWrongBitAnywhereIsCorrupt) {
  const Piece piece = make_piece("s", {1, 1}, 5 * leaf + 100);
  for (const std::size_t at : {std::size_t{0}, leaf - 1, leaf, 3 * leaf + 5, piece.data.size() - 1}) {
    Piece damaged = piece;
    damaged.data[at] ^= std::byte{1};
    const auto sink = sink_for(piece);
    ASSERT_TRUE(begin(*sink, piece));
    land(*sink, damaged, 0, damaged.data.size());
    sink->ended(FetchEnd::complete);
    EXPECT_EQ(result(), FetchResult::corrupt) << at;
    EXPECT_TRUE(slot_is_empty()) << at;
  }
}

TEST_F(FetchSinkTest, RejectsAnUnannouncedManifestAndKeepsTheSlot) {
  const Piece before = make_piece("s", {1, 1}, 1000), announced = make_piece("s", {1, 2}, 1000);
  write_piece(segment_->writable_slot(0), before);
  for (const Piece& other : {make_piece("s", {1, 3}, 1000), make_piece("t", {1, 2}, 1000), make_piece("s", {1, 2}, 999),
                             make_piece("s", {1, 2}, 1000, 3)}) {
    const auto sink = sink_for(announced);
    EXPECT_FALSE(begin(*sink, other));
    sink->ended(FetchEnd::refused);
    EXPECT_EQ(result(), FetchResult::corrupt);
  }
  auto garbage = arena::encode(announced.manifest);
  for (std::size_t i = 0; i < garbage.size(); i += 7) {
    auto damaged = garbage;
    damaged[i] ^= std::byte{0x10};
    const auto sink = sink_for(announced);
    EXPECT_FALSE(sink->begin(damaged, 1000)) << i;
    sink->ended(FetchEnd::refused);
    EXPECT_EQ(result(), FetchResult::corrupt);
  }
  EXPECT_EQ(segment_->slot(0).checkpoint(), CheckpointId(1, 1));
}

TEST_F(FetchSinkTest, ATransferThatBreaksOffLeavesTheSlotEmpty) {
  const Piece before = make_piece("s", {1, 1}, 4 * leaf), piece = make_piece("s", {1, 2}, 4 * leaf);
  for (const FetchEnd end : {FetchEnd::timed_out, FetchEnd::peer_failed, FetchEnd::complete}) {
    write_piece(segment_->writable_slot(0), before);
    const auto sink = sink_for(piece);
    ASSERT_TRUE(begin(*sink, piece));
    land(*sink, piece, 0, 3 * leaf);  // also "complete" with a part missing
    sink->ended(end);
    EXPECT_EQ(result(), FetchResult::failed);
    EXPECT_TRUE(slot_is_empty());
  }
}

TEST_F(FetchSinkTest, FetchThatEndsBeforeItBeginsFailsAndKeepsTheSlot) {
  const Piece before = make_piece("s", {1, 1}, 1000);
  write_piece(segment_->writable_slot(0), before);
  const auto sink = sink_for(make_piece("s", {1, 2}, 1000));
  sink->ended(FetchEnd::not_there);
  EXPECT_EQ(result(), FetchResult::failed);
  EXPECT_EQ(segment_->slot(0).checkpoint(), CheckpointId(1, 1));
}

TEST_F(FetchSinkTest, ACancelledFetchIsNeverSealed) {
  const Piece piece = make_piece("s", {1, 2}, 2 * leaf);
  const auto late = sink_for(piece);
  ASSERT_TRUE(begin(*late, piece));
  land(*late, piece, 0, 2 * leaf);
  late->cancel();
  late->ended(FetchEnd::complete);
  EXPECT_EQ(result(), FetchResult::failed);
  EXPECT_TRUE(slot_is_empty());
  const auto early = sink_for(piece);
  early->cancel();
  EXPECT_FALSE(begin(*early, piece));
}

TEST_F(FetchSinkTest, ACheckpointThatWasDroppedCanComeBackIntoItsSlot) {
  const Piece piece = make_piece("s", {1, 2}, 1000);
  write_piece(segment_->writable_slot(0), piece);
  segment_->writable_slot(0).drop(piece.manifest.checkpoint);
  ASSERT_TRUE(slot_is_empty());
  const auto sink = sink_for(piece);
  ASSERT_TRUE(begin(*sink, piece));
  land(*sink, piece, 0, 1000);
  sink->ended(FetchEnd::complete);
  EXPECT_EQ(result(), FetchResult::complete);
  EXPECT_EQ(segment_->slot(0).checkpoint(), piece.manifest.checkpoint);
}

TEST_F(FetchSinkTest, APieceLargerThanItsSlotIsRefused) {
  const Piece piece = make_piece("s", {1, 2}, 41 * leaf);
  const auto sink = sink_for(piece);
  EXPECT_FALSE(begin(*sink, piece));
}

// ---- While it arrives, others may have it ----

std::size_t await_ready(const net::ServedPiece& served, std::size_t bytes) {
  for (int i = 0; i < 2000 && served.ready_bytes() != bytes; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  return served.ready_bytes().value_or(0);
}

TEST_F(FetchSinkTest, ServesOnlyVerifiedBytesToOtherNodes) {
  const Piece piece = make_piece("s", {1, 1}, 6 * leaf + 100);
  Piece damaged = piece;
  damaged.data[4 * leaf] ^= std::byte{1};
  const auto sink = sink_for(piece);
  EXPECT_FALSE(sink->serve()) << "nothing has begun";
  ASSERT_TRUE(begin(*sink, piece));
  auto served = sink->serve();
  ASSERT_TRUE(served);
  EXPECT_EQ(std::vector(served->manifest.begin(), served->manifest.end()), arena::encode(piece.manifest));
  EXPECT_EQ(served->data.size(), piece.data.size());
  EXPECT_EQ(served->ready_bytes(), 0u);
  land(*sink, piece, leaf, leaf);  // the first leaf is not here
  land(*sink, piece, 0, leaf);
  EXPECT_EQ(await_ready(*served, 2 * leaf), 2 * leaf);
  land(*sink, damaged, 2 * leaf, 3 * leaf);
  for (int i = 0; i < 2000 && served->ready_bytes(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_FALSE(served->ready_bytes()) << "no more will come";
  EXPECT_FALSE(sink->serve());
  sink->ended(FetchEnd::complete);
  served.reset();
  EXPECT_EQ(result(), FetchResult::corrupt);
}

TEST_F(FetchSinkTest, ServesTheWholePieceToReadersAfterItEnds) {
  const Piece piece = make_piece("s", {1, 1}, 2 * leaf + 100);
  const auto sink = sink_for(piece);
  ASSERT_TRUE(begin(*sink, piece));
  const auto served = sink->serve();
  ASSERT_TRUE(served);
  land(*sink, piece, 0, piece.data.size());
  sink->ended(FetchEnd::complete);
  EXPECT_EQ(result(), FetchResult::complete) << "this node need not wait for readers";
  EXPECT_EQ(served->ready_bytes(), piece.data.size());
}

TEST_F(FetchSinkTest, TheSlotSaysWhichPieceArrivesAndHowMuchOfItIsVerified) {
  const Piece piece = make_piece("s", {1, 1}, 5 * leaf + 100);
  const auto sink = sink_for(piece);
  EXPECT_FALSE(segment_->slot(0).arrival());
  ASSERT_TRUE(begin(*sink, piece));
  const auto arrival = segment_->slot(0).arrival();
  ASSERT_TRUE(arrival);
  EXPECT_EQ(arrival->manifest, piece.manifest);
  EXPECT_EQ(segment_->slot(0).arrived_bytes(), 0u);
  land(*sink, piece, leaf, 2 * leaf);
  land(*sink, piece, 0, leaf);
  EXPECT_TRUE(testing::eventually([&] { return segment_->slot(0).arrived_bytes() == 3 * leaf; }));
  land(*sink, piece, 3 * leaf, 2 * leaf + 100);
  sink->ended(FetchEnd::complete);
  EXPECT_EQ(result(), FetchResult::complete);
  EXPECT_EQ(segment_->slot(0).arrived_bytes(), 5 * leaf + 100);
  EXPECT_TRUE(segment_->slot(0).is_arriving(arrival->number)) << "who follows it may read it to the end";
}

TEST_F(FetchSinkTest, ADamagedLeafNeverCountsAsArrived) {
  const Piece piece = make_piece("s", {1, 1}, 4 * leaf);
  Piece damaged = piece;
  damaged.data[leaf + 7] ^= std::byte{1};
  const auto sink = sink_for(piece);
  ASSERT_TRUE(begin(*sink, piece));
  land(*sink, damaged, 0, leaf);
  EXPECT_TRUE(testing::eventually([&] { return segment_->slot(0).arrived_bytes() == leaf; }));
  land(*sink, damaged, leaf, 3 * leaf);
  sink->ended(FetchEnd::complete);
  EXPECT_EQ(result(), FetchResult::corrupt);
  EXPECT_EQ(segment_->slot(0).arrived_bytes(), leaf);
  EXPECT_FALSE(segment_->slot(0).arrival()) << "it will not become whole";
}

TEST_F(FetchSinkTest, NextFetchKeepsVerifiedBytesOfAFailedOne) {
  const Piece piece = make_piece("s", {1, 1}, 4 * leaf);
  const auto sink = sink_for(piece);
  ASSERT_TRUE(begin(*sink, piece));
  const auto before = segment_->slot(0).arrival();
  land(*sink, piece, 0, 3 * leaf);
  sink->ended(FetchEnd::peer_failed);
  EXPECT_EQ(result(), FetchResult::failed);
  EXPECT_FALSE(segment_->slot(0).is_arriving(before->number));

  const auto next = sink_for(piece);
  EXPECT_EQ(next->keep_verified(*sink->unfinished()), 3 * leaf);
  ASSERT_TRUE(next->begin(arena::encode(piece.manifest), leaf));
  EXPECT_EQ(segment_->slot(0).arrived_bytes(), 3 * leaf);
  EXPECT_NE(segment_->slot(0).arrival()->number, before->number);
  next->ended(FetchEnd::peer_failed);
  EXPECT_EQ(result(), FetchResult::failed);
}

TEST_F(FetchSinkTest, FailedFetchEndsAfterItsSlotsLastReader) {
  const Piece piece = make_piece("s", {1, 1}, 2 * leaf);
  const auto sink = sink_for(piece);
  ASSERT_TRUE(begin(*sink, piece));
  auto served = sink->serve();
  ASSERT_TRUE(served);
  sink->ended(FetchEnd::peer_failed);
  EXPECT_FALSE(served->ready_bytes());
  EXPECT_TRUE(results_.empty());
  served.reset();
  EXPECT_EQ(result(), FetchResult::failed);
}

// ---- Pieces that are ordered ----

// The chain begins at node 3: behind the highest id follows the lowest.
constexpr std::uint64_t chain = 3;
constexpr net::PeerId passing_node = 5;
constexpr net::Asker node_before{4, chain}, node_after{6, chain}, node_behind_the_highest{0, chain};
const net::PieceName ordered_piece{"s", CheckpointId(1, 1).word()};

TEST_F(FetchSinkTest, AnOrderedPieceIsComingUntilItsFirstBytesOrTheEndOfItsFetch) {
  const Piece piece = make_piece("s", {1, 1}, 2 * leaf);
  ArrivingPieces arriving(passing_node);
  EXPECT_FALSE(arriving.find(ordered_piece, node_after));
  arriving.expect(ordered_piece, chain);
  ASSERT_TRUE(arriving.find(ordered_piece, node_after));
  EXPECT_TRUE(arriving.find(ordered_piece, node_after)->is_coming);
  EXPECT_FALSE(arriving.find({"t", ordered_piece.checkpoint}, node_after));
  const auto sink = sink_for(piece);
  arriving.add(ordered_piece, sink);
  ASSERT_TRUE(arriving.find(ordered_piece, node_after));
  EXPECT_TRUE(arriving.find(ordered_piece, node_after)->is_coming) << "its source has not answered";
  ASSERT_TRUE(begin(*sink, piece));
  {
    const auto served = arriving.find(ordered_piece, node_after);
    ASSERT_TRUE(served);
    EXPECT_FALSE(served->is_coming);
    EXPECT_EQ(served->data.size(), piece.data.size());
  }
  sink->ended(FetchEnd::peer_failed);
  EXPECT_EQ(result(), FetchResult::failed);
  arriving.remove(ordered_piece, nullptr);
  EXPECT_FALSE(arriving.find(ordered_piece, node_after));
}

// Otherwise nodes could wait for each other.
TEST_F(FetchSinkTest, ServesAnIncompletePieceOnlyToLaterNodesOfTheSameChain) {
  const Piece piece = make_piece("s", {1, 1}, 2 * leaf);
  ArrivingPieces arriving(passing_node);
  const auto expect_nothing = [&] {
    for (const net::Asker& asker :
         {node_before, net::Asker{3, chain}, net::Asker{passing_node, chain}, net::Asker{6, 5}, net::Asker{6}})
      EXPECT_FALSE(arriving.find(ordered_piece, asker)) << asker.node << " in chain " << asker.chain;
    EXPECT_TRUE(arriving.find(ordered_piece, node_after));
    EXPECT_TRUE(arriving.find(ordered_piece, node_behind_the_highest));
  };
  arriving.expect(ordered_piece, chain);
  expect_nothing();
  const auto sink = sink_for(piece);
  arriving.add(ordered_piece, sink);
  ASSERT_TRUE(begin(*sink, piece));
  expect_nothing();
  land(*sink, piece, 0, leaf);
  expect_nothing();
  sink->ended(FetchEnd::peer_failed);
  EXPECT_EQ(result(), FetchResult::failed);
}

TEST_F(FetchSinkTest, PieceWhoseFetchFailedIsNoLongerComing) {
  const Piece piece = make_piece("s", {1, 1}, 2 * leaf);
  ArrivingPieces arriving(passing_node);
  arriving.expect(ordered_piece, chain);
  arriving.remove(ordered_piece, nullptr);
  arriving.expect(ordered_piece, chain);
  EXPECT_FALSE(arriving.find(ordered_piece, node_after)) << "it may fail again and again";
  const auto sink = sink_for(piece);
  arriving.add(ordered_piece, sink);
  ASSERT_TRUE(begin(*sink, piece));
  EXPECT_TRUE(arriving.find(ordered_piece, node_after)) << "it has begun";
  sink->ended(FetchEnd::peer_failed);
  EXPECT_EQ(result(), FetchResult::failed);
  arriving.expect({"s", ordered_piece.checkpoint + 1}, chain);
  EXPECT_TRUE(arriving.find({"s", ordered_piece.checkpoint + 1}, node_after)) << "another checkpoint";
}

TEST_F(FetchSinkTest, PiecesStopComingIfNothingArrivesForAWhile) {
  const Piece other = make_piece("other", {1, 1}, 2 * leaf);
  std::atomic<std::int64_t> now_ms = 1;
  ArrivingPieces arriving(passing_node, [&] { return now_ms.load(); });
  arriving.expect(ordered_piece, chain);
  const auto sink = sink_for(other);
  arriving.add({"other", ordered_piece.checkpoint}, sink);
  ASSERT_TRUE(begin(*sink, other));
  now_ms += ArrivingPieces::quiet_ms - 1;
  EXPECT_TRUE(arriving.find(ordered_piece, node_after));
  now_ms += 1;
  EXPECT_FALSE(arriving.find(ordered_piece, node_after));
  land(*sink, other, 0, leaf);
  EXPECT_TRUE(arriving.find(ordered_piece, node_after)) << "its turn may come after the other piece";
  sink->ended(FetchEnd::peer_failed);
  EXPECT_EQ(result(), FetchResult::failed);
}

}  // namespace
}  // namespace ckpt::agent
