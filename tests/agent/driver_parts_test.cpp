// The parts of the driver, each alone: a transport that only remembers, and a core that only takes events.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "agent/local_pieces.hpp"
#include "agent/member_watch.hpp"
#include "agent/peers.hpp"
#include "core/node.hpp"
#include "support.hpp"
#include "tests/support/fake_transport.hpp"

namespace ckpt::agent {
namespace {

using core::NodeId;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using testing::wait_limit;

constexpr std::uint64_t own_agent_id = 50;

// What a transport was asked to do.
struct Asked {
  std::map<net::PeerId, std::string> addresses;
  std::vector<std::pair<net::PeerId, std::vector<std::byte>>> sent;
  std::map<net::PeerId, std::vector<std::function<void(net::Reach)>>> probes;

  void record(test::FakeTransport& transport) {
    transport.on_set_peer = [this](net::PeerId peer, const std::string& address) { addresses[peer] = address; };
    transport.on_send = [this](net::PeerId to, std::vector<std::byte> message) {
      sent.emplace_back(to, std::move(message));
      return true;
    };
    transport.on_probe = [this](net::PeerId peer, std::function<void(net::Reach)> done) {
      probes[peer].push_back(std::move(done));
    };
  }
};

class RecordingCore : public EventSink {
 public:
  void handle(core::Event event) override { events.push_back(std::move(event)); }
  std::vector<core::Event> events;
};

coord::NodeEntry entry(const std::string& name, NodeId id, std::uint64_t agent_id = 1) {
  return {name, id, id + 100, agent_id, 4711, name + ":1"};
}

// Node 0, "a", with what its parts use.
class DriverParts : public ::testing::Test {
 protected:
  DriverParts() {
    asked_.record(transport_);
    peers_.use(transport_);
  }

  bool run_tasks(std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) {
      const auto task = queue_->take(Deadline::in_ms(std::chrono::milliseconds(wait_limit).count()));
      if (!task) return false;
      (*task)();
    }
    return true;
  }
  std::vector<std::string> notices() const {
    std::vector<std::string> texts;
    for (const NoticeEntry& notice : event_log_.notices()) texts.push_back(notice.text);
    return texts;
  }

  Asked asked_;
  test::FakeTransport transport_;
  RecordingCore events_;
  std::shared_ptr<CoreQueue> queue_ = std::make_shared<CoreQueue>(100);
  EventLog event_log_{silent_log()};
  Peers peers_{{0, "a", own_agent_id}, *queue_};
};

TEST(CoreQueue, DropsRepeatedTasksWhenFullAndThrowsBeyondItsBound) {
  const auto queue = std::make_shared<CoreQueue>(1, 2);
  EXPECT_TRUE(queue->offer([] {}));
  EXPECT_FALSE(queue->offer([] {}));
  queue->post([] {});
  EXPECT_THROW(queue->post([] {}), Failure);
  EXPECT_TRUE(queue->take(Deadline::in_ms(0)).has_value());
  EXPECT_NO_THROW(queue->post([] {}));
}

using PeersTest = DriverParts;

TEST_F(PeersTest, TheTransportLearnsTheAddressOfEveryOtherNode) {
  EXPECT_EQ(peers_.take({entry("a", 0, own_agent_id), entry("b", 1), entry("c", 2)}), std::nullopt);
  EXPECT_EQ(asked_.addresses, (std::map<net::PeerId, std::string>{{1, "b:1"}, {2, "c:1"}}));
  EXPECT_EQ(peers_.name(0), "a");
  EXPECT_EQ(peers_.name(2), "c");
  EXPECT_EQ(peers_.name(7), "number 7");
}

TEST_F(PeersTest, AnAgentGivesWayToAnotherOneThatServesItsNode) {
  const auto why = peers_.take({entry("a", 0, own_agent_id + 1), entry("b", 1)});
  ASSERT_TRUE(why.has_value());
  EXPECT_THAT(*why, HasSubstr("served by another agent"));
  EXPECT_THAT(asked_.addresses, IsEmpty());
}

TEST_F(PeersTest, LaterOfTwoNodesWithTheSameNumberGivesWay) {
  EXPECT_EQ(peers_.take({entry("other", 0, own_agent_id + 1)}), std::nullopt);
  const auto why = peers_.take({entry("other", 0, own_agent_id - 1)});
  ASSERT_TRUE(why.has_value());
  EXPECT_THAT(*why, HasSubstr("has the same number as this node"));
}

class MemberWatchTest : public DriverParts {
 protected:
  MemberWatchTest() { peers_.take({entry("b", 1), entry("c", 2)}); }

  const Clock::time_point now_ = Clock::now();
  core::Node core_{core::Config{}, own_agent_id, core::Recovered{}};
  MemberWatch members_{"job", "", peers_, core_, event_log_, silent_log()};
};

TEST_F(MemberWatchTest, ReportsALostMemberAfterProbingItsListenerAndLaterChangesAfterThat) {
  members_.carry_out(core::MemberChanged{core::Change::lost, 1});
  members_.carry_out(core::MemberChanged{core::Change::replaced, 1, 2});
  EXPECT_THAT(notices(), IsEmpty());
  ASSERT_THAT(asked_.probes[1], SizeIs(1));
  asked_.probes[1].front()(net::Reach::silent);
  ASSERT_TRUE(run_tasks(1));
  EXPECT_THAT(notices(), ElementsAre(HasSubstr("node b does not answer any more: its machine answers and its agent"),
                                     HasSubstr("standby node c takes the place of node b")));
  EXPECT_EQ(members_.lost(0), (std::map<NodeId, net::Reach>{{1, net::Reach::silent}}));
  EXPECT_THAT(members_.lost(1), IsEmpty()) << "another leader may have found something else";
  members_.carry_out(core::MemberChanged{core::Change::returned, 1});
  EXPECT_THAT(members_.lost(0), IsEmpty());
}

TEST_F(MemberWatchTest, DistrustsANodeWithAnotherTokenUntilItsListenerAnswersDifferently) {
  members_.probe_silent(now_);
  ASSERT_THAT(asked_.probes[2], SizeIs(1));
  asked_.probes[1].front()(net::Reach::answers);
  asked_.probes[2].front()(net::Reach::wrong_token);
  ASSERT_TRUE(run_tasks(2));
  EXPECT_THAT(members_.distrusted(), ElementsAre(2u));
  asked_.probes[2].front()(net::Reach::answers);
  ASSERT_TRUE(run_tasks(1));
  EXPECT_THAT(members_.distrusted(), IsEmpty());
}

TEST_F(MemberWatchTest, DoesNotProbeANodeAgainImmediately) {
  members_.probe_silent(now_);
  members_.probe_silent(now_ + std::chrono::milliseconds(2900));
  EXPECT_THAT(asked_.probes[1], SizeIs(1));
  members_.probe_silent(now_ + std::chrono::seconds(3));
  EXPECT_THAT(asked_.probes[1], SizeIs(2));
}

TEST_F(MemberWatchTest, ManyNodesAreProbedInTurn) {
  std::vector<coord::NodeEntry> entries;
  for (core::NodeId node = 1; node <= 40; ++node) entries.push_back(entry("n" + std::to_string(node), node));
  peers_.take(entries);
  for (int round = 0; round < 5; ++round) members_.probe_silent(now_ + round * std::chrono::seconds(3));
  for (core::NodeId node = 1; node <= 40; ++node) EXPECT_THAT(asked_.probes[node], SizeIs(2)) << node;
}

class LocalPiecesTest : public DriverParts {
 protected:
  static constexpr CheckpointId checkpoint{1, 4};
  static constexpr std::size_t length_bytes = 200'000;

  // A whole piece of `shard` in slot 0 of rank 0.
  core::SlotRef put(const std::string& shard) {
    core::SlotRef slot{0, shard, 0};
    std::optional<Failure> failure;
    bool is_made = false;
    segments_.ensure({{{0, shard}, {length_bytes, 4096}}}, 0, [&](std::optional<Failure> why) {
      failure = std::move(why);
      is_made = true;
    });
    if (!is_made) run_tasks(1);
    EXPECT_TRUE(is_made && !failure);
    const auto piece = testing::make_piece(shard, checkpoint, length_bytes);
    const auto segment = segments_.find({0, shard});
    testing::write_piece(segment->writable_slot(0), piece);
    index_.add(slot, segment, piece.manifest);
    return slot;
  }
  void damage(const core::SlotRef& slot) {
    segments_.find({slot.rank, slot.shard})->writable_slot(slot.slot).data()[70'000] ^= std::byte{1};
  }
  std::vector<std::string> corrupt() const {
    std::vector<std::string> shards;
    for (const core::Event& event : events_.events)
      if (const auto* found = std::get_if<core::PieceCorrupt>(&event)) shards.push_back(found->slot.shard);
    return shards;
  }

  test::TemporaryDirectory directory_{test::in_memory};
  arena::NodeArena arena_{directory_.path() + "/node", "job", "a"};
  PieceIndex index_;
  Segments segments_{arena_, {0, 2, 2}, index_, *queue_, [](const SegmentKey&) { return false; }};
  WorkerPool digests_{1};
  LocalPieces pieces_{{segments_, index_, *queue_, digests_, peers_, event_log_, events_}};
};

TEST_F(LocalPiecesTest, OnlyADamagedPieceIsReportedToTheCore) {
  const auto whole = put("whole"), damaged = put("damaged");
  damage(damaged);
  std::set<std::string> verified;
  for (const auto& slot : {whole, damaged})
    pieces_.verify(slot, [&verified, shard = slot.shard] { verified.insert(shard); });
  ASSERT_TRUE(run_tasks(2));
  EXPECT_THAT(verified, ElementsAre("damaged", "whole"));
  EXPECT_THAT(corrupt(), ElementsAre("damaged"));
  EXPECT_EQ(event_log_.counters.corrupt, 1u);
}

TEST_F(LocalPiecesTest, AsksTheSourceOfADamagedPieceToVerifyIt) {
  peers_.take({entry("b", 1)});
  pieces_.source_damaged("x", checkpoint, 1, false);
  ASSERT_THAT(asked_.sent, SizeIs(1));
  EXPECT_EQ(asked_.sent.front().first, 1u);
  const auto message = core::decode(asked_.sent.front().second);
  ASSERT_TRUE(message && std::holds_alternative<core::VerifyRequest>(*message));
  EXPECT_EQ(std::get<core::VerifyRequest>(*message).shard, "x");
  EXPECT_THAT(notices(), ElementsAre(HasSubstr("arrived damaged from node b, which checks its piece now")));
}

TEST_F(LocalPiecesTest, VerifiesADamagedPieceOfThisNodeItself) {
  damage(put("x"));
  pieces_.source_damaged("x", checkpoint, 0, false);
  ASSERT_TRUE(run_tasks(1));
  EXPECT_THAT(corrupt(), ElementsAre("x"));
  EXPECT_THAT(asked_.sent, IsEmpty());
}

TEST_F(LocalPiecesTest, ADroppedSlotIsReleasedWhenItsLastReaderHasLeft) {
  const auto slot = put("x");
  Pin reader = index_.find(slot);
  pieces_.carry_out(core::DropSlot{slot});
  EXPECT_EQ(segments_.find({0, "x"})->slot(0).read(), std::nullopt) << "the next agent must not find it";
  EXPECT_EQ(queue_->take(Deadline::in_ms(0)), std::nullopt);
  reader.reset();
  ASSERT_TRUE(run_tasks(1));
  ASSERT_THAT(events_.events, SizeIs(1));
  EXPECT_EQ(std::get<core::SlotReleased>(events_.events.front()).slot, slot);
}

}  // namespace
}  // namespace ckpt::agent
