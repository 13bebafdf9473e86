#include "src/gpu_replication/agreement.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

namespace ckpt::schedule {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::Optional;

// Members whose GPUs do as NCCL does: a step ends on one when all have issued it.
class World {
 public:
  World(std::uint64_t seed, std::uint32_t members) : random_(seed) {
    for (std::uint32_t member = 0; member < members; ++member)
      members_.push_back({Agreement(members, member), 0, 0, 0});
  }

  void run(int actions) {
    for (int i = 0; i < actions; ++i) act(static_cast<std::uint32_t>(below(members_.size())));
  }
  void offer_to_all(std::uint64_t checkpoint) {
    for (Member& member : members_) member.agreement.offer(checkpoint, 1, 1);
  }
  // Until nobody has anything to do or to say that the others have not heard.
  void settle() {
    for (int calm = 0; calm < 3; ++calm) {
      for (std::uint32_t from = 0; from < members_.size(); ++from) {
        for (Member& to : members_) to.agreement.receive(from, members_[from].agreement.own());
      }
      for (std::uint32_t member = 0; member < members_.size(); ++member) {
        while (issue(member)) calm = 0;
        while (end(member)) calm = 0;
      }
    }
  }
  std::vector<std::uint64_t> checkpoints() const {
    std::vector<std::uint64_t> checkpoints;
    for (const Member& member : members_) checkpoints.push_back(member.agreement.own().checkpoint);
    return checkpoints;
  }
  // By checkpoint, of each member.
  const std::map<std::uint64_t, std::vector<std::uint64_t>>& issued() const { return issued_; }

 private:
  struct Member {
    Agreement agreement;
    std::uint64_t checkpoint, ended;  // as of the last look
    std::uint64_t offered;
  };
  struct Message {
    std::uint32_t from, to;
    Agreement::State state;
  };
  static constexpr std::uint64_t steps = 5;

  std::uint64_t below(std::uint64_t limit) { return random_() % limit; }
  void act(std::uint32_t number) {
    Member& member = members_[number];
    switch (below(7)) {
      case 0:
        // A checkpoint may be offered again, with other chunks, as long as it is next.
        if (below(4) == 0) member.offered += 1 + below(2);
        if (member.offered > member.agreement.own().checkpoint)
          member.agreement.offer(member.offered, 1 + below(9), 1 + below(9));
        break;
      case 1:
        member.agreement.promise(member.agreement.own().checkpoint, below(steps + 2));
        break;
      case 2: {
        const auto to = static_cast<std::uint32_t>(below(members_.size()));
        if (to != number) messages_.push_back({number, to, member.agreement.own()});
        break;
      }
      case 3:
      case 4:
        deliver();
        break;
      case 5:
        issue(number);
        break;
      default:
        end(number);
    }
  }
  // Any of them, lost or repeated now and then.
  void deliver() {
    if (messages_.empty()) return;
    const auto at = messages_.begin() + static_cast<std::ptrdiff_t>(below(messages_.size()));
    if (below(4) != 0) members_[at->to].agreement.receive(at->from, at->state);
    if (below(4) != 0) messages_.erase(at);
  }
  void look(Member& member) const {
    if (member.checkpoint == member.agreement.own().checkpoint) return;
    member.checkpoint = member.agreement.own().checkpoint;
    member.ended = 0;
  }
  // All that issue a checkpoint cut it the same way.
  void check_terms(const Agreement& agreement) {
    const auto terms = agreement.terms();
    if (!terms) return;
    const std::pair said(terms->lengths_bytes, terms->chunk_bytes);
    const auto [known, is_new] = terms_.emplace(agreement.own().checkpoint, said);
    EXPECT_TRUE(is_new || known->second == said) << "checkpoint " << agreement.own().checkpoint;
  }
  bool issue(std::uint32_t number) {
    Member& member = members_[number];
    look(member);
    check_terms(member.agreement);
    if (member.checkpoint == 0) return false;
    auto& counts = issued_[member.checkpoint];
    counts.resize(members_.size());
    if (counts[number] >= std::min(member.agreement.allowed(), steps)) return false;
    ++counts[number];
    return true;
  }
  bool end(std::uint32_t number) {
    Member& member = members_[number];
    look(member);
    const auto found = issued_.find(member.checkpoint);
    if (found == issued_.end()) return false;
    if (*std::min_element(found->second.begin(), found->second.end()) <= member.ended) return false;
    member.agreement.ended(member.checkpoint, ++member.ended, steps);
    if (below(4) == 0) member.agreement.ended(member.checkpoint, member.ended, steps);  // said late
    return true;
  }

  std::mt19937_64 random_;
  std::vector<Member> members_;
  std::vector<Message> messages_;
  std::map<std::uint64_t, std::vector<std::uint64_t>> issued_;
  std::map<std::uint64_t, std::pair<std::vector<std::uint64_t>, std::uint64_t>> terms_;  // by checkpoint
};

TEST(Agreement, AllMembersIssueTheSameStepsAndNoneFallsBehind) {
  std::uint64_t exchanged = 0;
  for (std::uint64_t seed = 0; seed < 3000; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    World world(seed, 2 + static_cast<std::uint32_t>(seed % 3));
    world.run(600);
    world.settle();
    for (const auto& [checkpoint, counts] : world.issued()) {
      ASSERT_THAT(counts, Each(counts.front())) << "checkpoint " << checkpoint;
      exchanged += counts.front();
    }
    world.offer_to_all(1'000'000);
    world.settle();
    ASSERT_THAT(world.checkpoints(), Each(1'000'000u));
  }
  EXPECT_GT(exchanged, 3000u);
}

TEST(Agreement, NothingIsExchangedBeforeAllMembersOfferTheCheckpoint) {
  Agreement one(3, 0);
  one.offer(7, 100, 16);
  one.promise(7, 4);
  one.receive(1, {7, 50, 16, 4, false});
  one.receive(2, {6, 50, 16, 4, false});
  EXPECT_FALSE(one.terms());
  EXPECT_EQ(one.allowed(), 0u);
  one.receive(2, {7, 20, 16, 2, false});
  ASSERT_TRUE(one.terms());
  EXPECT_THAT(one.terms()->lengths_bytes, ElementsAre(100, 50, 20));
  EXPECT_EQ(one.allowed(), 2u);
}

TEST(Agreement, AllMembersUseTheSmallestChunkThatAnyWants) {
  Agreement one(2, 0), other(2, 1);
  one.offer(7, 100, 16);
  other.offer(7, 50, 8);
  one.receive(1, other.own());
  other.receive(0, one.own());
  ASSERT_TRUE(one.terms() && other.terms());
  EXPECT_EQ(one.terms()->chunk_bytes, 8u);
  EXPECT_EQ(other.terms()->chunk_bytes, 8u);
  one.promise(7, 1);
  one.offer(8, 100, 4);
  ASSERT_TRUE(one.terms());
  EXPECT_EQ(one.terms()->chunk_bytes, 8u) << "that of the next checkpoint counts once that is exchanged";
}

TEST(Agreement, KeepsItsPromiseBeforeTheNextCheckpoint) {
  Agreement one(2, 0);
  one.offer(7, 100, 16);
  one.promise(7, 2);
  one.offer(8, 100, 16);
  EXPECT_EQ(one.own().checkpoint, 7u);
  one.receive(1, {7, 50, 16, 3, false});
  EXPECT_EQ(one.allowed(), 2u);
  one.ended(7, 1, 9);
  EXPECT_EQ(one.own().checkpoint, 7u);
  one.ended(7, 2, 9);
  EXPECT_EQ(one.own().checkpoint, 8u);
  EXPECT_EQ(one.allowed(), 0u);
}

// The other one has seen the end of it, and this one has yet to.
TEST(Agreement, FinishesAllowedStepsBeforeTheNextCheckpoint) {
  Agreement one(2, 0);
  one.offer(7, 100, 16);
  one.promise(7, 5);
  one.receive(1, {7, 50, 16, 3, false});
  one.offer(8, 100, 16);
  one.receive(1, {8, 50, 16, 0, false});
  EXPECT_EQ(one.own().checkpoint, 7u);
  EXPECT_EQ(one.allowed(), 3u);
  one.ended(7, 3, 9);
  EXPECT_EQ(one.own().checkpoint, 8u);
}

TEST(Agreement, IgnoresLateCallsForAnotherCheckpoint) {
  Agreement one(2, 0);
  one.offer(7, 100, 16);
  one.promise(7, 3);
  one.receive(1, {7, 50, 16, 3, false});
  one.offer(8, 100, 16);
  one.ended(7, 3, 9);
  ASSERT_EQ(one.own().checkpoint, 8u);
  one.promise(7, 5);
  EXPECT_EQ(one.own().promised, 0u);
  one.promise(8, 3);
  one.receive(1, {8, 50, 16, 3, false});
  one.offer(9, 100, 16);
  one.ended(7, 3, 9);
  EXPECT_EQ(one.own().checkpoint, 8u) << "nothing of it was issued";
}

TEST(Agreement, ContinuesWithTheNewestOfSeveralOffers) {
  Agreement one(2, 0);
  one.offer(7, 100, 16);
  one.promise(7, 2);
  one.offer(8, 100, 16);
  one.offer(9, 100, 16);
  one.receive(1, {9, 50, 16, 0, false});
  EXPECT_EQ(one.own().checkpoint, 9u);
}

TEST(Agreement, IgnoresStatesOlderThanTheLastReceived) {
  Agreement one(2, 0);
  one.offer(8, 100, 16);
  one.promise(8, 5);
  one.receive(1, {8, 50, 16, 3, false});
  one.receive(1, {8, 50, 16, 1, false});
  one.receive(1, {7, 60, 16, 9, false});
  ASSERT_TRUE(one.terms());
  EXPECT_THAT(one.terms()->lengths_bytes, ElementsAre(100, 50));
  EXPECT_EQ(one.allowed(), 3u);
}

TEST(Agreement, OneMemberThatGivesUpEndsTheExchangeForAll) {
  Agreement one(2, 0), other(2, 1);
  one.offer(8, 100, 16);
  one.promise(8, 5);
  other.offer(8, 100, 16);
  other.give_up();
  other.promise(8, 5);
  one.receive(1, other.own());
  EXPECT_TRUE(one.has_given_up());
  EXPECT_EQ(one.allowed(), 0u);
  one.receive(1, {8, 100, 16, 5, false});  // overtaken
  EXPECT_EQ(one.allowed(), 0u);
  other.ended(8, 0, 0);
  other.offer(9, 100, 16);
  EXPECT_TRUE(other.own().has_given_up);
}

TEST(Agreement, IgnoresUnknownMembersAndItsOwnState) {
  Agreement one(2, 0);
  one.offer(8, 100, 16);
  one.receive(0, {9, 1, 16, 1, true});
  one.receive(7, {9, 1, 16, 1, true});
  EXPECT_EQ(one.own(), (Agreement::State{8, 100, 16, 0, false}));
  EXPECT_FALSE(one.has_given_up());
}

}  // namespace
}  // namespace ckpt::schedule
