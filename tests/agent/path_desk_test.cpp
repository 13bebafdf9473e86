#include "agent/path_desk.hpp"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support.hpp"

namespace ckpt::agent {
namespace {

using protocol::NodeId;
using protocol::Rank;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Rank r on node 10 + r, and the trainer's side of its landing.
struct PathNode {
  PathNode(const std::string& directory, std::uint64_t budget_bytes)
      : arena(directory, "job", "node"),
        segments(arena, {budget_bytes, 3, 2}, index, *queue, [](const SegmentKey&) { return false; }) {}

  arena::NodeArena arena;
  PieceIndex index;
  std::shared_ptr<CoreQueue> queue = std::make_shared<CoreQueue>(100);
  Segments segments;
  std::vector<std::string> notices;
  std::size_t rings = 0, looks = 0;
  std::uint64_t bytes_to_come = 0;
  std::unique_ptr<PathDesk> desk;
  std::optional<arena::Landing> trainer;
};

class PathDeskTest : public ::testing::Test {
 protected:
  static constexpr Rank ranks = 3;
  static constexpr std::uint64_t life = 5;
  static constexpr std::uint64_t piece_bytes = 100'000;

  static std::string shard(Rank rank) { return "rank" + std::to_string(rank); }
  static protocol::PieceInfo piece(Rank rank, std::int64_t iteration, std::uint64_t length_bytes = piece_bytes) {
    return {shard(rank), Version(life, iteration), length_bytes, 10, 1, 2};
  }

  struct Letter {
    NodeId from = 0, to = 0;
    PathTold told;
  };

  void open(std::uint64_t budget_bytes = 0) {
    for (Rank rank = 0; rank < ranks; ++rank) {
      nodes_[rank] = std::make_unique<PathNode>(directory_.path() + "/" + std::to_string(rank), budget_bytes);
      start(rank);
    }
  }
  // Its agent, or the one after it.
  void start(Rank rank, std::uint64_t incarnation = life) {
    PathNode& node = *nodes_[rank];
    if (node.desk == nullptr) {
      node.desk = std::make_unique<PathDesk>(
          PathDesk::Colleagues{node.arena.directory(), node.segments, *node.queue,
                               [this, rank](NodeId to, const PathTold& told) {
                                 letters_.push_back({10 + rank, to, told});
                               },
                               [&node](Rank) { ++node.rings; }, [&node] { ++node.looks; },
                               [&node](const std::string& sentence) { node.notices.push_back(sentence); },
                               [&node](std::uint64_t) { return node.bytes_to_come; }});
    }
    node.desk->tell({rank, incarnation, group(rank)});
  }
  static protocol::PathGroup group(Rank rank) {
    protocol::PathGroup group{{}, rank, ""};
    for (Rank each = 0; each < ranks; ++each) group.members.push_back({10 + each, each, shard(each)});
    return group;
  }
  void attach(Rank rank) {
    const auto fd = desk(rank).landing_fd(rank);
    ASSERT_TRUE(fd);
    nodes_[rank]->trainer = arena::Landing::attach(UniqueFd(::fcntl(*fd, F_DUPFD_CLOEXEC, 0)));
  }
  PathDesk& desk(Rank rank) { return *nodes_[rank]->desk; }
  arena::Landing& trainer(Rank rank) { return *nodes_[rank]->trainer; }

  void tell(Rank rank, const arena::PathWord& word) {
    trainer(rank).board().tell(word);
    desk(rank).look(rank);
  }
  static arena::PathWord word(std::uint64_t bytes, Version version = {}) {
    arena::PathWord word;
    word.piece_bytes = bytes;
    word.state = {version.word(), bytes, 4096, 1, false};
    return word;
  }
  void deliver() {
    while (!letters_.empty()) {
      const Letter letter = letters_.front();
      letters_.pop_front();
      if (nodes_[letter.to - 10]->desk != nullptr) desk(letter.to - 10).heard(letter.from, letter.told);
    }
  }
  void run_tasks(Rank rank) {
    while (const auto task = nodes_[rank]->queue->take(Deadline::in_ms(0))) (*task)();
  }
  // All have told how large their pieces are, and exchange this version.
  void live(Version version = Version(life, 1)) {
    for (Rank rank = 0; rank < ranks; ++rank) attach(rank);
    for (Rank rank = 0; rank < ranks; ++rank) tell(rank, word(piece_bytes, version));
    deliver();
    for (Rank rank = 0; rank < ranks; ++rank) {
      ASSERT_TRUE(testing::eventually([&] {
        run_tasks(rank);
        return trainer(rank).find_places() &&
               (!version || desk(rank).place_of(piece((rank + 1) % ranks, 1), 10 + (rank + 1) % ranks));
      }));
    }
  }
  Version taken(Rank rank, std::size_t place) { return trainer(rank).board().taken(place); }

  testing::ArenaDirectory directory_;
  std::deque<Letter> letters_;
  std::map<Rank, std::unique_ptr<PathNode>> nodes_;
};

TEST_F(PathDeskTest, WhatATrainerTellsTheOtherMembersRead) {
  open();
  for (Rank rank = 0; rank < ranks; ++rank) attach(rank);
  arena::PathWord first = word(7);
  first.id.emplace().fill(std::byte{9});
  tell(0, first);
  deliver();
  for (const Rank rank : {1u, 2u}) {
    EXPECT_EQ(trainer(rank).board().heard(0), first);
    EXPECT_EQ(trainer(rank).board().heard(3 - rank), std::nullopt);
    EXPECT_EQ(nodes_[rank]->rings, 1u);
  }
}

TEST_F(PathDeskTest, WhatIsLostIsSaidAgain) {
  open();
  for (Rank rank = 0; rank < ranks; ++rank) attach(rank);
  tell(0, word(7));
  letters_.clear();
  ASSERT_TRUE(testing::eventually([&] {
    desk(0).tick();
    deliver();
    return trainer(1).board().heard(0) == word(7);
  }));
  EXPECT_TRUE(desk(0).tick_wanted_at());
}

TEST_F(PathDeskTest, OlderWordsThatComeLateDoNotTakeNewerOnesBack) {
  open();
  for (Rank rank = 0; rank < ranks; ++rank) attach(rank);
  const arena::PathWord older = word(7, Version(life, 1)), newer = word(7, Version(life, 2));
  tell(0, older);
  const auto late = letters_;
  tell(0, newer);
  deliver();
  letters_ = late;
  deliver();
  EXPECT_EQ(trainer(1).board().heard(0), newer);
}

TEST_F(PathDeskTest, NobodyIsHeardButMembersOfThisLifeFromTheirOwnNodes) {
  open();
  for (Rank rank = 0; rank < ranks; ++rank) attach(rank);
  const PathTold good{life, 0, 1, {}, 1, 2, 3, 4, 5, false};
  const auto is_heard = [&](NodeId from, PathTold told) {
    desk(1).heard(from, told);
    return trainer(1).board().heard(0) || trainer(1).board().heard(1) || trainer(1).board().heard(2);
  };
  const auto with = [&](auto change) {
    PathTold told = good;
    change(told);
    return told;
  };
  EXPECT_FALSE(is_heard(11, good));
  EXPECT_FALSE(is_heard(12, good));
  EXPECT_FALSE(is_heard(10, with([](PathTold& told) { told.incarnation = life - 1; })));
  EXPECT_FALSE(is_heard(10, with([](PathTold& told) { told.incarnation = life + 1; })));
  EXPECT_FALSE(is_heard(10, with([](PathTold& told) { told.from = 2; })));
  EXPECT_FALSE(is_heard(11, with([](PathTold& told) { told.from = 1; })));
  EXPECT_FALSE(is_heard(10, with([](PathTold& told) { told.from = 9; })));
  EXPECT_FALSE(is_heard(10, with([](PathTold& told) { told.to = 7; })));
  EXPECT_TRUE(is_heard(10, good));
}

TEST_F(PathDeskTest, PlacesAreMadeOnceAllHaveSaidHowLargeTheirPiecesAre) {
  open();
  live();
  const auto used = nodes_[1]->segments.bytes_used();
  EXPECT_EQ(used, arena::Landing::file_bytes(std::vector<std::uint64_t>{piece_bytes, 0, piece_bytes}));
  EXPECT_EQ(trainer(1).bytes(0).size(), piece_bytes);
  EXPECT_TRUE(trainer(1).bytes(1).empty());
  EXPECT_TRUE(desk(1).status(1).has_begun);
  desk(1).gone(1);
  EXPECT_EQ(nodes_[1]->segments.bytes_used(), 0u);
}

TEST_F(PathDeskTest, WhereTheyDoNotFitItIsTheHostsWithASentence) {
  open(200'000);
  for (Rank rank = 0; rank < ranks; ++rank) attach(rank);
  for (Rank rank = 0; rank < ranks; ++rank) tell(rank, word(piece_bytes, Version(life, 1)));
  deliver();
  EXPECT_FALSE(desk(0).status(0).is_device);
  EXPECT_THAT(desk(0).status(0).trouble, HasSubstr("arena_bytes"));
  EXPECT_THAT(nodes_[0]->notices, Contains(HasSubstr("from host to host")));
  EXPECT_FALSE(desk(0).place_of(piece(1, 1), 11));
  EXPECT_LT(nodes_[0]->segments.bytes_used(), piece_bytes);
}

// Who waits for the rank would wait until a deadline.
TEST_F(PathDeskTest, WhereTheyDoNotFitOnOneNodeAllMembersAndItsOwnTrainerHearOfIt) {
  open();
  nodes_[0]->bytes_to_come = 1ull << 60;
  for (Rank rank = 0; rank < ranks; ++rank) attach(rank);
  for (Rank rank = 0; rank < ranks; ++rank) tell(rank, word(piece_bytes));
  deliver();
  EXPECT_TRUE(trainer(0).board().heard(1)->state.has_given_up);
  for (const Rank rank : {1u, 2u}) {
    EXPECT_TRUE(trainer(rank).board().heard(0)->state.has_given_up);
    EXPECT_THAT(desk(rank).status(rank).trouble, HasSubstr("given it up"));
  }
}

// It found out before it met anybody.
TEST_F(PathDeskTest, NobodyMakesRoomForWhoCannotTakePart) {
  open();
  for (Rank rank = 0; rank < ranks; ++rank) attach(rank);
  for (const Rank rank : {1u, 2u}) tell(rank, word(piece_bytes));
  arena::PathWord last = word(piece_bytes);
  last.state.has_given_up = true;
  tell(0, last);
  deliver();
  for (Rank rank = 0; rank < ranks; ++rank) EXPECT_LT(nodes_[rank]->segments.bytes_used(), piece_bytes) << rank;
}

TEST_F(PathDeskTest, WhatIsQuietIsSaidSeldom) {
  open();
  for (Rank rank = 0; rank < ranks; ++rank) attach(rank);
  tell(0, word(7));
  const auto said_in = [&](int ticks) {
    letters_.clear();
    for (int tick = 0; tick < ticks; ++tick) {
      while (!desk(0).tick_wanted_at()->passed()) std::this_thread::yield();
      desk(0).tick();
    }
    return letters_.size() / (ranks - 1);
  };
  EXPECT_EQ(said_in(10), 10u);
  EXPECT_EQ(said_in(20), 2u);
}

TEST_F(PathDeskTest, RefusedByItsNodeAllHearOfIt) {
  open();
  for (Rank rank = 0; rank < ranks; ++rank) attach(rank);
  desk(0).refuse(0, "too many open files");
  deliver();
  EXPECT_EQ(desk(0).status(0).trouble, "too many open files");
  EXPECT_TRUE(trainer(1).board().heard(0)->state.has_given_up);
}

TEST_F(PathDeskTest, WhoComesAfterItHasEndedHearsOfIt) {
  open();
  nodes_[0]->bytes_to_come = 1ull << 60;
  for (Rank rank = 0; rank < ranks; ++rank) attach(rank);
  for (Rank rank = 0; rank < ranks; ++rank) tell(rank, word(piece_bytes));
  deliver();
  desk(2).gone(2);
  letters_.clear();
  start(2);
  attach(2);
  tell(2, word(piece_bytes, Version(life, 1)));
  deliver();
  EXPECT_TRUE(trainer(2).board().heard(0)->state.has_given_up);
}

TEST_F(PathDeskTest, NothingIsWaitedForBeforeTheTrainerHasBegunWithAnyVersion) {
  open();
  live(Version());
  EXPECT_FALSE(desk(0).place_of(piece(1, 1), 11));
  tell(0, word(piece_bytes, Version(life, 1)));
  EXPECT_TRUE(testing::eventually([&] {
    run_tasks(0);
    return desk(0).place_of(piece(1, 1), 11).has_value();
  }));
}

// And is tried again, twice as seldom each time, until it comes.
TEST_F(PathDeskTest, WhatDidNotComeIsNotWaitedForEachTime) {
  open();
  live();
  std::int64_t iteration = 0;
  const auto waits = [&] { return desk(0).place_to_wait_for(piece(1, iteration + 1), 11).has_value(); };
  const auto fetch = [&](std::uint64_t landed_bytes) {
    const bool has_waited = waits();
    const auto next = piece(1, ++iteration);
    desk(0).fetching(next, 11);
    desk(0).brought(next, 11, has_waited ? std::optional(landed_bytes) : std::nullopt);
    desk(0).fetched(next, 11);
    return has_waited;
  };
  const auto fetches_between = [&] {
    int fetches = 0;
    while (!fetch(piece_bytes / 3)) ++fetches;
    return fetches;
  };
  EXPECT_EQ(fetches_between(), 0);
  for (const int at_once : {1, 3, 7, 15, 31, 63, 63}) EXPECT_EQ(fetches_between(), at_once);
  EXPECT_TRUE(desk(0).place_to_wait_for(piece(2, 1), 12)) << "another member is another matter";
  EXPECT_FALSE(waits());
  EXPECT_TRUE(desk(0).place_of(piece(1, iteration + 1), 11)) << "a fetch that has begun to wait goes on";
  while (!waits()) fetch(0);
  EXPECT_TRUE(fetch(piece_bytes));
  EXPECT_TRUE(fetch(piece_bytes)) << "all is forgiven";
}

TEST_F(PathDeskTest, APieceLandsOnlyFromItsMembersNodeInItsLifeAndWhereItFits) {
  open();
  live();
  EXPECT_EQ(desk(0).place_of(piece(2, 7), 12)->number, 2u);
  EXPECT_FALSE(desk(0).place_of(piece(2, 7), 11));
  EXPECT_FALSE(desk(0).place_of(piece(0, 7), 10));
  EXPECT_FALSE(desk(0).place_of(piece(9, 7), 12));
  EXPECT_FALSE(desk(0).place_of(piece(2, 7, piece_bytes + 1), 12));
  protocol::PieceInfo older = piece(2, 7);
  older.version = Version(life - 1, 7);
  EXPECT_FALSE(desk(0).place_of(older, 12));
}

TEST_F(PathDeskTest, OnceItHasFailedNothingIsWaitedForAndEverybodyIsTold) {
  open();
  live();
  const std::size_t looks = nodes_[0]->looks;
  trainer(0).board().fail("NCCL has hung");
  arena::PathWord last = word(piece_bytes, Version(life, 1));
  last.state.has_given_up = true;
  tell(0, last);
  EXPECT_FALSE(desk(0).place_of(piece(1, 1), 11));
  EXPECT_GT(nodes_[0]->looks, looks);
  EXPECT_EQ(desk(0).status(0).trouble, "NCCL has hung");
  deliver();
  EXPECT_FALSE(desk(1).place_of(piece(0, 1), 10));
  EXPECT_THAT(desk(1).status(1).trouble, HasSubstr("rank 0 has given it up"));
  EXPECT_EQ(nodes_[1]->notices.size(), 1u);
  EXPECT_TRUE(trainer(1).board().heard(0)->state.has_given_up);
}

TEST_F(PathDeskTest, APlaceMayBeOverwrittenWhenItsFetchHasEndedOrNeverComes) {
  open();
  live();
  desk(0).fetching(piece(1, 4), 11);
  EXPECT_EQ(taken(0, 1), Version(life, 3)) << "what is older is not fetched any more";
  desk(0).committed(Version(life, 4));
  EXPECT_EQ(taken(0, 1), Version(life, 3)) << "it is still being taken";
  EXPECT_EQ(taken(0, 2), Version(life, 4)) << "no fetch of it came";
  desk(0).brought(piece(1, 4), 11, piece_bytes - 1234);
  desk(0).fetched(piece(1, 4), 11);
  EXPECT_EQ(taken(0, 1), Version(life, 4));
  EXPECT_EQ(desk(0).status(0).landed_bytes, piece_bytes - 1234);
  EXPECT_FALSE(desk(0).place_of(piece(1, 4), 11)) << "it may have been overwritten";
  EXPECT_TRUE(desk(0).place_of(piece(1, 5), 11));
}

TEST_F(PathDeskTest, AnAgentThatIsStartedAgainGoesOnWithTheLandingThatTheTrainerHas) {
  open();
  live();
  desk(0).fetched(piece(1, 4), 11);
  nodes_[0]->desk.reset();
  start(0);
  EXPECT_EQ(taken(0, 1), Version(life, 4));
  EXPECT_TRUE(desk(0).place_of(piece(1, 5), 11)) << "the places are there";
  tell(1, word(piece_bytes, Version(life, 6)));
  deliver();
  EXPECT_EQ(trainer(0).board().heard(1), word(piece_bytes, Version(life, 6)));
}

TEST_F(PathDeskTest, TheNextLifeGetsALandingOfItsOwn) {
  open();
  live();
  start(0, life + 1);
  EXPECT_FALSE(desk(0).place_of(piece(1, 5), 11));
  const arena::Landing next = arena::Landing::attach(nodes_[0]->arena.directory(), 0);
  EXPECT_EQ(next.group().incarnation, life + 1);
  EXPECT_EQ(next.board().told(), std::nullopt);
  trainer(0).board().tell(word(9));  // one that does not know yet that it is over
  EXPECT_EQ(next.board().told(), std::nullopt);
}

TEST_F(PathDeskTest, WithItsTrainerALandingGoesAndTheOthersHearOfIt) {
  open();
  live();
  desk(0).gone(0);
  EXPECT_FALSE(std::filesystem::exists(nodes_[0]->arena.directory() + "/rank-0.landing"));
  EXPECT_FALSE(desk(0).landing_fd(0));
  deliver();
  EXPECT_TRUE(trainer(1).board().heard(0)->state.has_given_up);
  EXPECT_FALSE(desk(1).status(1).has_begun);
}

TEST_F(PathDeskTest, WhyThereIsNoGroupIsToldOnce) {
  open();
  desk(0).tell({0, life + 1, {{}, 0, "no other node holds a copy of its shard"}});
  EXPECT_FALSE(desk(0).landing_fd(0));
  EXPECT_EQ(desk(0).status(0).trouble, "no other node holds a copy of its shard");
  EXPECT_EQ(nodes_[0]->notices.size(), 1u);
  EXPECT_EQ(nodes_[0]->segments.bytes_used(), 0u);
  EXPECT_FALSE(std::filesystem::exists(nodes_[0]->arena.directory() + "/rank-0.landing"));
}

TEST_F(PathDeskTest, OfRanksThatAskedForNothingNothingIsSaid) {
  open();
  EXPECT_FALSE(desk(0).status(7).is_device);
  EXPECT_EQ(desk(0).status(7).trouble, "");
  desk(0).look(7);
  desk(0).fetching(piece(7, 1), 17);
  desk(0).fetched(piece(7, 1), 17);
  EXPECT_THAT(nodes_[0]->notices, IsEmpty());
}

}  // namespace
}  // namespace ckpt::agent
