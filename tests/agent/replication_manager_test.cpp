#include "gpu_replication/replication_manager.hpp"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/parity_pieces.hpp"
#include "support.hpp"

namespace ckpt::agent {
namespace {

using core::NodeId;
using core::Rank;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Rank r on node 10 + r, and the trainer's side of its receive buffer.
struct ReplicationNode {
  ReplicationNode(const std::string& directory, std::uint64_t budget_bytes)
      : arena(directory, "job", "node"),
        segments(arena, {budget_bytes, 3, 2}, index, *queue, [](const SegmentKey&) { return false; }) {}

  arena::NodeArena arena;
  PieceIndex index;
  std::shared_ptr<CoreQueue> queue = std::make_shared<CoreQueue>(100);
  Segments segments;
  std::vector<std::string> notices;
  std::size_t rings = 0, looks = 0;
  std::uint64_t bytes_to_come = 0;
  std::unique_ptr<ReplicationManager> manager;
  std::optional<arena::ReceiveBuffer> trainer;
};

class ReplicationManagerTest : public ::testing::Test {
 protected:
  static constexpr Rank ranks = 3;
  static constexpr std::uint64_t this_incarnation = 5;
  static constexpr std::uint64_t piece_bytes = 100'000;

  static std::string shard(Rank rank) { return "rank" + std::to_string(rank); }
  static core::PieceInfo piece(Rank rank, std::int64_t iteration, std::uint64_t length_bytes = piece_bytes) {
    return {shard(rank), CheckpointId(this_incarnation, iteration), length_bytes, 10, 1, 2};
  }

  struct Letter {
    NodeId from = 0, to = 0;
    core::ReplicationUpdate update;
  };

  void open(std::uint64_t budget_bytes = 0) {
    for (Rank rank = 0; rank < ranks; ++rank) {
      nodes_[rank] = std::make_unique<ReplicationNode>(directory_.path() + "/" + std::to_string(rank), budget_bytes);
      start(rank);
    }
  }
  // Its agent, or the one after it.
  void start(Rank rank, std::uint64_t incarnation = this_incarnation) {
    ReplicationNode& node = *nodes_[rank];
    if (node.manager == nullptr) {
      node.manager = std::make_unique<ReplicationManager>(
          ReplicationManager::Dependencies{node.arena.directory(), node.segments, *node.queue,
                                           [this, rank](NodeId to, const core::ReplicationUpdate& update) {
                                             letters_.push_back({10 + rank, to, update});
                                           },
                                           [&node](Rank) { ++node.rings; }, [&node] { ++node.looks; },
                                           [&node](const std::string& sentence) { node.notices.push_back(sentence); },
                                           [&node](std::uint64_t) { return node.bytes_to_come; }});
    }
    node.manager->notify({rank, incarnation, group(rank)});
  }
  core::ReplicationGroup group(Rank rank) const {
    core::ReplicationGroup group{{}, rank, "", rows_};
    for (Rank each = 0; each < ranks; ++each) group.members.push_back({10 + each, each, shard(each)});
    return group;
  }
  void attach(Rank rank) {
    const auto fd = manager(rank).receive_buffer_fd(rank);
    ASSERT_TRUE(fd);
    nodes_[rank]->trainer = arena::ReceiveBuffer::attach(UniqueFd(::fcntl(*fd, F_DUPFD_CLOEXEC, 0)));
  }
  ReplicationManager& manager(Rank rank) { return *nodes_[rank]->manager; }
  arena::ReceiveBuffer& trainer(Rank rank) { return *nodes_[rank]->trainer; }

  void notify(Rank rank, const arena::ReplicationState& word) {
    trainer(rank).page().publish(word);
    manager(rank).look(rank);
  }
  static arena::ReplicationState word(std::uint64_t bytes, CheckpointId checkpoint = {}) {
    arena::ReplicationState word;
    word.piece_bytes = bytes;
    word.state = {checkpoint.word(), bytes, 4096, 1, false};
    return word;
  }
  void deliver() {
    while (!letters_.empty()) {
      const Letter letter = letters_.front();
      letters_.pop_front();
      if (nodes_[letter.to - 10]->manager != nullptr) manager(letter.to - 10).received(letter.from, letter.update);
    }
  }
  void run_tasks(Rank rank) {
    while (const auto task = nodes_[rank]->queue->take(Deadline::in_ms(0))) (*task)();
  }
  // All have told how large their pieces are, and exchange this checkpoint.
  void live(CheckpointId checkpoint = CheckpointId(this_incarnation, 1)) {
    for (Rank rank = 0; rank < ranks; ++rank) attach(rank);
    for (Rank rank = 0; rank < ranks; ++rank) notify(rank, word(piece_bytes, checkpoint));
    deliver();
    for (Rank rank = 0; rank < ranks; ++rank) {
      ASSERT_TRUE(testing::eventually([&] {
        run_tasks(rank);
        return trainer(rank).find_places() &&
               (!checkpoint || manager(rank).place_of(piece((rank + 1) % ranks, 1), 10 + (rank + 1) % ranks));
      }));
    }
  }
  // The parity that the rank's GPU makes of pieces of this length.
  static core::PieceInfo parity_of(Rank rank, std::int64_t iteration, std::uint64_t length_bytes) {
    std::vector<std::string> shards;
    core::ParityManifest parity_manifest{1, rank, {}};
    for (Rank each = 0; each < ranks; ++each) {
      shards.push_back(shard(each));
      parity_manifest.sources.push_back({shard(each), length_bytes, 10, 1});
    }
    return {core::parity_name(1, shards, rank),
            CheckpointId(this_incarnation, iteration),
            core::layout_of(parity_manifest).parity_bytes_of(rank),
            0,
            0,
            2,
            parity_manifest};
  }
  CheckpointId taken(Rank rank, std::size_t place) { return trainer(rank).page().taken(place); }

  std::uint32_t rows_ = 0;  // of parity
  test::TemporaryDirectory directory_{test::in_memory};
  std::deque<Letter> letters_;
  std::map<Rank, std::unique_ptr<ReplicationNode>> nodes_;
};

TEST_F(ReplicationManagerTest, OtherMembersReadATrainersState) {
  open();
  for (Rank rank = 0; rank < ranks; ++rank) attach(rank);
  arena::ReplicationState first = word(7);
  first.id.emplace().fill(std::byte{9});
  notify(0, first);
  deliver();
  for (const Rank rank : {1u, 2u}) {
    EXPECT_EQ(trainer(rank).page().state_of(0), first);
    EXPECT_EQ(trainer(rank).page().state_of(3 - rank), std::nullopt);
    EXPECT_EQ(nodes_[rank]->rings, 1u);
  }
}

// Its own place is large enough for the parity of the largest pieces, with the proof. Nothing else arrives.
TEST_F(ReplicationManagerTest, ParityArrivesInTheRanksOwnPlace) {
  rows_ = 1;
  open();
  for (Rank rank = 0; rank < ranks; ++rank) attach(rank);
  for (Rank rank = 0; rank < ranks; ++rank) notify(rank, word(piece_bytes, CheckpointId(this_incarnation, 1)));
  deliver();
  for (Rank rank = 0; rank < ranks; ++rank) {
    const auto parity = parity_of(rank, 1, piece_bytes);
    ASSERT_TRUE(testing::eventually([&] {
      run_tasks(rank);
      return trainer(rank).find_places() && manager(rank).place_of(parity, core::parity_node);
    }));
    const auto place = manager(rank).place_of(parity, core::parity_node);
    EXPECT_EQ(place->rank, rank);
    EXPECT_EQ(place->number, rank);
    for (Rank other = 0; other < ranks; ++other) {
      EXPECT_EQ(trainer(rank).bytes(other).empty(), other != rank);
      EXPECT_FALSE(manager(rank).place_of(piece(other, 1), 10 + other));
      if (other == rank) continue;
      EXPECT_FALSE(manager(rank).place_of(parity_of(other, 1, piece_bytes), core::parity_node));
    }
    EXPECT_FALSE(manager(rank).place_of(parity_of(rank, 1, 10 * piece_bytes), core::parity_node)) << "it does not fit";
    manager(rank).fetched(parity, core::parity_node);
    EXPECT_EQ(taken(rank, rank), CheckpointId(this_incarnation, 1));
    EXPECT_FALSE(manager(rank).place_of(parity, core::parity_node)) << "the trainer may overwrite it";
    EXPECT_TRUE(manager(rank).place_of(parity_of(rank, 2, piece_bytes), core::parity_node));
  }
}

TEST_F(ReplicationManagerTest, ResendsLostStates) {
  open();
  for (Rank rank = 0; rank < ranks; ++rank) attach(rank);
  notify(0, word(7));
  letters_.clear();
  ASSERT_TRUE(testing::eventually([&] {
    manager(0).tick();
    deliver();
    return trainer(1).page().state_of(0) == word(7);
  }));
  EXPECT_TRUE(manager(0).tick_wanted_at());
}

TEST_F(ReplicationManagerTest, LateOlderStateDoesNotReplaceANewerOne) {
  open();
  for (Rank rank = 0; rank < ranks; ++rank) attach(rank);
  const arena::ReplicationState older = word(7, CheckpointId(this_incarnation, 1)),
                                newer = word(7, CheckpointId(this_incarnation, 2));
  notify(0, older);
  const auto late = letters_;
  notify(0, newer);
  deliver();
  letters_ = late;
  deliver();
  EXPECT_EQ(trainer(1).page().state_of(0), newer);
}

TEST_F(ReplicationManagerTest, AcceptsStatesOnlyFromMembersOfThisIncarnationOnTheirNodes) {
  open();
  for (Rank rank = 0; rank < ranks; ++rank) attach(rank);
  const core::ReplicationUpdate good{this_incarnation, 0, 1, {}, 1, 2, 3, 4, 5, false};
  const auto is_accepted = [&](NodeId from, const core::ReplicationUpdate& update) {
    manager(1).received(from, update);
    return trainer(1).page().state_of(0) || trainer(1).page().state_of(1) || trainer(1).page().state_of(2);
  };
  const auto with = [&](auto change) {
    core::ReplicationUpdate update = good;
    change(update);
    return update;
  };
  EXPECT_FALSE(is_accepted(11, good));
  EXPECT_FALSE(is_accepted(12, good));
  EXPECT_FALSE(
      is_accepted(10, with([](core::ReplicationUpdate& update) { update.incarnation = this_incarnation - 1; })));
  EXPECT_FALSE(
      is_accepted(10, with([](core::ReplicationUpdate& update) { update.incarnation = this_incarnation + 1; })));
  EXPECT_FALSE(is_accepted(10, with([](core::ReplicationUpdate& update) { update.from = 2; })));
  EXPECT_FALSE(is_accepted(11, with([](core::ReplicationUpdate& update) { update.from = 1; })));
  EXPECT_FALSE(is_accepted(10, with([](core::ReplicationUpdate& update) { update.from = 9; })));
  EXPECT_FALSE(is_accepted(10, with([](core::ReplicationUpdate& update) { update.to = 7; })));
  EXPECT_TRUE(is_accepted(10, good));
}

TEST_F(ReplicationManagerTest, MakesPlacesOnceAllPieceSizesAreKnown) {
  open();
  live();
  const auto used = nodes_[1]->segments.bytes_used();
  EXPECT_EQ(used, arena::ReceiveBuffer::file_bytes(std::vector<std::uint64_t>{piece_bytes, 0, piece_bytes}));
  EXPECT_EQ(trainer(1).bytes(0).size(), piece_bytes);
  EXPECT_TRUE(trainer(1).bytes(1).empty());
  EXPECT_TRUE(manager(1).status(1).has_begun);
  manager(1).gone(1);
  EXPECT_EQ(nodes_[1]->segments.bytes_used(), 0u);
}

TEST_F(ReplicationManagerTest, FallsBackToHostsWithANoticeIfPlacesDoNotFit) {
  open(200'000);
  for (Rank rank = 0; rank < ranks; ++rank) attach(rank);
  for (Rank rank = 0; rank < ranks; ++rank) notify(rank, word(piece_bytes, CheckpointId(this_incarnation, 1)));
  deliver();
  EXPECT_FALSE(manager(0).status(0).is_device);
  EXPECT_THAT(manager(0).status(0).trouble, HasSubstr("arena_bytes"));
  EXPECT_THAT(nodes_[0]->notices, Contains(HasSubstr("from host to host")));
  EXPECT_FALSE(manager(0).place_of(piece(1, 1), 11));
  EXPECT_LT(nodes_[0]->segments.bytes_used(), piece_bytes);
}

// Who waits for the rank would wait until a deadline.
TEST_F(ReplicationManagerTest, NotifiesAllMembersIfPlacesDoNotFitOnOneNode) {
  open();
  nodes_[0]->bytes_to_come = 1ull << 60;
  for (Rank rank = 0; rank < ranks; ++rank) attach(rank);
  for (Rank rank = 0; rank < ranks; ++rank) notify(rank, word(piece_bytes));
  deliver();
  EXPECT_TRUE(trainer(0).page().state_of(1)->state.has_given_up);
  for (const Rank rank : {1u, 2u}) {
    EXPECT_TRUE(trainer(rank).page().state_of(0)->state.has_given_up);
    EXPECT_THAT(manager(rank).status(rank).trouble, HasSubstr("given up GPU replication"));
  }
}

// It found out before it met anybody.
TEST_F(ReplicationManagerTest, MakesNoPlacesIfAMemberCannotTakePart) {
  open();
  for (Rank rank = 0; rank < ranks; ++rank) attach(rank);
  for (const Rank rank : {1u, 2u}) notify(rank, word(piece_bytes));
  arena::ReplicationState last = word(piece_bytes);
  last.state.has_given_up = true;
  notify(0, last);
  deliver();
  for (Rank rank = 0; rank < ranks; ++rank) EXPECT_LT(nodes_[rank]->segments.bytes_used(), piece_bytes) << rank;
}

TEST_F(ReplicationManagerTest, ResendsUnchangedStatesLessAndLessOften) {
  open();
  for (Rank rank = 0; rank < ranks; ++rank) attach(rank);
  notify(0, word(7));
  const auto said_in = [&](int ticks) {
    letters_.clear();
    for (int tick = 0; tick < ticks; ++tick) {
      while (!manager(0).tick_wanted_at()->passed()) std::this_thread::yield();
      manager(0).tick();
    }
    return letters_.size() / (ranks - 1);
  };
  EXPECT_EQ(said_in(10), 10u);
  EXPECT_EQ(said_in(20), 2u);
}

TEST_F(ReplicationManagerTest, NotifiesAllMembersIfANodeRefuses) {
  open();
  for (Rank rank = 0; rank < ranks; ++rank) attach(rank);
  manager(0).refuse(0, "too many open files");
  deliver();
  EXPECT_EQ(manager(0).status(0).trouble, "too many open files");
  EXPECT_TRUE(trainer(1).page().state_of(0)->state.has_given_up);
}

TEST_F(ReplicationManagerTest, NotifiesAMemberThatComesAfterTheEnd) {
  open();
  nodes_[0]->bytes_to_come = 1ull << 60;
  for (Rank rank = 0; rank < ranks; ++rank) attach(rank);
  for (Rank rank = 0; rank < ranks; ++rank) notify(rank, word(piece_bytes));
  deliver();
  manager(2).gone(2);
  letters_.clear();
  start(2);
  attach(2);
  notify(2, word(piece_bytes, CheckpointId(this_incarnation, 1)));
  deliver();
  EXPECT_TRUE(trainer(2).page().state_of(0)->state.has_given_up);
}

TEST_F(ReplicationManagerTest, WaitsForNoDeliveryBeforeTheTrainerHasBegunACheckpoint) {
  open();
  live(CheckpointId());
  EXPECT_FALSE(manager(0).place_of(piece(1, 1), 11));
  notify(0, word(piece_bytes, CheckpointId(this_incarnation, 1)));
  EXPECT_TRUE(testing::eventually([&] {
    run_tasks(0);
    return manager(0).place_of(piece(1, 1), 11).has_value();
  }));
}

// And is tried again, twice as seldom each time, until it comes.
TEST_F(ReplicationManagerTest, WaitsLessOftenAfterMissedDeliveries) {
  open();
  live();
  std::int64_t iteration = 0;
  const auto waits = [&] { return manager(0).place_to_wait_for(piece(1, iteration + 1), 11).has_value(); };
  const auto fetch = [&](std::uint64_t gpu_received_bytes) {
    const bool has_waited = waits();
    const auto next = piece(1, ++iteration);
    manager(0).fetching(next, 11);
    manager(0).brought(next, 11, has_waited ? std::optional(gpu_received_bytes) : std::nullopt);
    manager(0).fetched(next, 11);
    return has_waited;
  };
  const auto fetches_between = [&] {
    int fetches = 0;
    while (!fetch(piece_bytes / 3)) ++fetches;
    return fetches;
  };
  EXPECT_EQ(fetches_between(), 0);
  for (const int immediate : {1, 3, 7, 15, 31, 63, 63}) EXPECT_EQ(fetches_between(), immediate);
  EXPECT_TRUE(manager(0).place_to_wait_for(piece(2, 1), 12)) << "another member is another matter";
  EXPECT_FALSE(waits());
  EXPECT_TRUE(manager(0).place_of(piece(1, iteration + 1), 11)) << "a fetch that has begun to wait goes on";
  while (!waits()) fetch(0);
  EXPECT_TRUE(fetch(piece_bytes));
  EXPECT_TRUE(fetch(piece_bytes)) << "all is forgiven";
}

TEST_F(ReplicationManagerTest, AcceptsAPieceOnlyFromItsMemberInItsIncarnationIfItFits) {
  open();
  live();
  EXPECT_EQ(manager(0).place_of(piece(2, 7), 12)->number, 2u);
  EXPECT_FALSE(manager(0).place_of(piece(2, 7), 11));
  EXPECT_FALSE(manager(0).place_of(piece(0, 7), 10));
  EXPECT_FALSE(manager(0).place_of(piece(9, 7), 12));
  EXPECT_FALSE(manager(0).place_of(piece(2, 7, piece_bytes + 1), 12));
  core::PieceInfo older = piece(2, 7);
  older.checkpoint = CheckpointId(this_incarnation - 1, 7);
  EXPECT_FALSE(manager(0).place_of(older, 12));
}

TEST_F(ReplicationManagerTest, AfterAFailureWaitsForNothingAndNotifiesAllMembers) {
  open();
  live();
  const std::size_t looks = nodes_[0]->looks;
  trainer(0).page().fail("NCCL has hung");
  arena::ReplicationState last = word(piece_bytes, CheckpointId(this_incarnation, 1));
  last.state.has_given_up = true;
  notify(0, last);
  EXPECT_FALSE(manager(0).place_of(piece(1, 1), 11));
  EXPECT_GT(nodes_[0]->looks, looks);
  EXPECT_EQ(manager(0).status(0).trouble, "NCCL has hung");
  deliver();
  EXPECT_FALSE(manager(1).place_of(piece(0, 1), 10));
  EXPECT_THAT(manager(1).status(1).trouble, HasSubstr("rank 0 has given up GPU replication"));
  EXPECT_EQ(nodes_[1]->notices.size(), 1u);
  EXPECT_TRUE(trainer(1).page().state_of(0)->state.has_given_up);
}

TEST_F(ReplicationManagerTest, ReleasesAPlaceWhenItsFetchEndedOrNeverComes) {
  open();
  live();
  manager(0).fetching(piece(1, 4), 11);
  EXPECT_EQ(taken(0, 1), CheckpointId(this_incarnation, 3)) << "what is older is not fetched any more";
  manager(0).committed(CheckpointId(this_incarnation, 4));
  EXPECT_EQ(taken(0, 1), CheckpointId(this_incarnation, 3)) << "it is still being taken";
  EXPECT_EQ(taken(0, 2), CheckpointId(this_incarnation, 4)) << "no fetch of it came";
  manager(0).brought(piece(1, 4), 11, piece_bytes - 1234);
  manager(0).fetched(piece(1, 4), 11);
  EXPECT_EQ(taken(0, 1), CheckpointId(this_incarnation, 4));
  EXPECT_EQ(manager(0).status(0).gpu_received_bytes, piece_bytes - 1234);
  EXPECT_FALSE(manager(0).place_of(piece(1, 4), 11)) << "it may have been overwritten";
  EXPECT_TRUE(manager(0).place_of(piece(1, 5), 11));
}

TEST_F(ReplicationManagerTest, RestartedAgentKeepsUsingTheTrainersReceiveBuffer) {
  open();
  live();
  manager(0).fetched(piece(1, 4), 11);
  nodes_[0]->manager.reset();
  start(0);
  EXPECT_EQ(taken(0, 1), CheckpointId(this_incarnation, 4));
  EXPECT_TRUE(manager(0).place_of(piece(1, 5), 11)) << "the places are there";
  notify(1, word(piece_bytes, CheckpointId(this_incarnation, 6)));
  deliver();
  EXPECT_EQ(trainer(0).page().state_of(1), word(piece_bytes, CheckpointId(this_incarnation, 6)));
}

TEST_F(ReplicationManagerTest, NextIncarnationGetsItsOwnReceiveBuffer) {
  open();
  live();
  start(0, this_incarnation + 1);
  EXPECT_FALSE(manager(0).place_of(piece(1, 5), 11));
  const arena::ReceiveBuffer next = arena::ReceiveBuffer::attach(nodes_[0]->arena.directory(), 0);
  EXPECT_EQ(next.group().incarnation, this_incarnation + 1);
  EXPECT_EQ(next.page().own_state(), std::nullopt);
  trainer(0).page().publish(word(9));  // one that does not know yet that it is over
  EXPECT_EQ(next.page().own_state(), std::nullopt);
}

TEST_F(ReplicationManagerTest, RemovesTheReceiveBufferOfAGoneTrainerAndNotifiesMembers) {
  open();
  live();
  manager(0).gone(0);
  EXPECT_FALSE(std::filesystem::exists(nodes_[0]->arena.directory() + "/rank-0.receive_buffer"));
  EXPECT_FALSE(manager(0).receive_buffer_fd(0));
  deliver();
  EXPECT_TRUE(trainer(1).page().state_of(0)->state.has_given_up);
  EXPECT_FALSE(manager(1).status(1).has_begun);
}

TEST_F(ReplicationManagerTest, ReportsOnceWhyThereIsNoGroup) {
  open();
  manager(0).notify({0, this_incarnation + 1, {{}, 0, "no other node holds a copy of its shard"}});
  EXPECT_FALSE(manager(0).receive_buffer_fd(0));
  EXPECT_EQ(manager(0).status(0).trouble, "no other node holds a copy of its shard");
  EXPECT_EQ(nodes_[0]->notices.size(), 1u);
  EXPECT_EQ(nodes_[0]->segments.bytes_used(), 0u);
  EXPECT_FALSE(std::filesystem::exists(nodes_[0]->arena.directory() + "/rank-0.receive_buffer"));
}

TEST_F(ReplicationManagerTest, ReportsNothingForRanksThatDidNotAsk) {
  open();
  EXPECT_FALSE(manager(0).status(7).is_device);
  EXPECT_EQ(manager(0).status(7).trouble, "");
  manager(0).look(7);
  manager(0).fetching(piece(7, 1), 17);
  manager(0).fetched(piece(7, 1), 17);
  EXPECT_THAT(nodes_[0]->notices, IsEmpty());
}

}  // namespace
}  // namespace ckpt::agent
