#include "agent/store_poller.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "../coord/memory_store.hpp"
#include "core/leader/rank_assignments.hpp"
#include "core/record_codec.hpp"
#include "support.hpp"

namespace ckpt::agent {
namespace {

using Clock = std::chrono::steady_clock;

class FlakyStore : public test::MemoryStore {
 public:
  std::optional<coord::Entry> get(const std::string& key) override {
    if (broken) throw Failure(CKPT_ERR_SYSTEM, "the store is broken");
    if (vanished) return std::nullopt;
    check_damage(key);
    return MemoryStore::get(key);
  }
  std::optional<std::uint64_t> put_if(const std::string& key, const std::string& value,
                                      std::uint64_t expected) override {
    if (read_only) throw Failure(CKPT_ERR_SYSTEM, "the store is read-only");
    if (before_put) before_put(key);
    return MemoryStore::put_if(key, value, expected);
  }
  std::unique_ptr<coord::Watch> watch(std::function<void(const coord::Entry&)> on_change) override {
    if (!tells) return nullptr;
    notify = on_change;
    return MemoryStore::watch([this, on_change](const coord::Entry& entry) {
      if (!silent) on_change(entry);
    });
  }
  std::vector<coord::Entry> list(const std::string& prefix) override {
    ++lists;
    if (cannot_list) throw Failure(CKPT_ERR_SYSTEM, "the store cannot be listed");
    if (one_is_damaged) check_damage("nodes/damaged");
    return MemoryStore::list(prefix);
  }
  std::vector<std::string> keys(const std::string& prefix) override {
    std::vector<std::string> found;
    for (const coord::Entry& entry : MemoryStore::list(prefix)) found.push_back(entry.key);
    return found;
  }
  void check_damage(const std::string& key) const {
    if (one_is_damaged && key == "nodes/damaged") throw Failure(CKPT_ERR_CORRUPT, "the record " + key + " is damaged");
  }
  std::function<void(const std::string& key)> before_put;  // set before anything is put
  std::function<void(const coord::Entry&)> notify;         // what a watch would
  std::atomic<int> lists{0};
  std::atomic<bool> broken{false}, vanished{false}, read_only{false}, tells{false}, silent{false}, cannot_list{false},
      one_is_damaged{false};
};

class StorePollerTest : public ::testing::Test {
 protected:
  void start(std::int64_t lease_ms = 2000) {
    poller_.emplace(
        store_, lease_ms,
        StorePoller::Handlers{[this](const core::LeaderRecordRead& read) { leaders_.put(read); },
                              [this](const core::IncarnationRecordRead& read) { incarnation_records_.put(read); },
                              [this](const core::AssignmentsRead& read) { assignments_.put(read); },
                              [this](const auto& nodes) { nodes_.put(nodes); }},
        silent_log());
  }
  // What is read from now on.
  core::LeaderRecordRead next_leader_that(const std::function<bool(const core::LeaderRecordRead&)>& fits) {
    for (;;)
      if (const auto read = leaders_.take(); fits(read)) return read;
  }

  FlakyStore store_;
  std::atomic<bool> flag_{false};
  testing::Mailbox<core::LeaderRecordRead> leaders_;
  testing::Mailbox<core::IncarnationRecordRead> incarnation_records_;
  // The incarnation's record, with rank assignments that take three records.
  static core::SwapIncarnationRecord incarnation_with_assignments(std::uint64_t incarnation,
                                                                  std::uint64_t expected_revision) {
    std::vector<core::RankAssignment> assignments(2 * core::assignments_per_record + 1);
    for (std::size_t i = 0; i < assignments.size(); ++i) {
      const auto rank = static_cast<core::Rank>(i);
      assignments[i] = {rank, rank, 1, "", "model", "rank" + std::to_string(rank) + ".private"};
    }
    core::IncarnationRecord incarnation_record;
    incarnation_record.incarnation = incarnation;
    incarnation_record.assignments = core::name_of(incarnation, assignments);
    return {expected_revision, incarnation_record, assignments};
  }
  void wait_for_incarnation_record(const core::IncarnationRecord& incarnation_record) {
    for (core::IncarnationRecordRead read; read.record != incarnation_record;) read = incarnation_records_.take();
  }

  testing::Mailbox<core::AssignmentsRead> assignments_;
  testing::Mailbox<std::vector<coord::NodeEntry>> nodes_;
  std::optional<StorePoller> poller_;
};

TEST_F(StorePollerTest, ReportsMissingRecords) {
  start();
  EXPECT_EQ(leaders_.take().revision, 0u);
  EXPECT_EQ(incarnation_records_.take().revision, 0u);
  EXPECT_TRUE(nodes_.take().empty());
}

TEST_F(StorePollerTest, AnswersASwapWithTheRecordWhetherItWonOrNot) {
  start();
  poller_->carry_out(core::SwapLeaderRecord{0, {1, 5, 0}});
  const auto won = next_leader_that([](const auto& read) { return read.revision == 1; });
  EXPECT_EQ(won.record, (core::LeaderRecord{1, 5, 0}));
  poller_->carry_out(core::SwapLeaderRecord{0, {2, 6, 0}});
  const auto lost = leaders_.take();
  EXPECT_EQ(lost.record, (core::LeaderRecord{1, 5, 0}));
  core::IncarnationRecord incarnation_record;
  incarnation_record.incarnation = 3;
  poller_->carry_out(core::SwapIncarnationRecord{0, incarnation_record});
  for (core::IncarnationRecordRead read; read.revision == 0;) {
    read = incarnation_records_.take();
    EXPECT_TRUE(read.revision == 0 || read.record == incarnation_record);
  }
}

TEST_F(StorePollerTest, WritesAssignmentsBeforeTheRecordThatNamesThemAndReadsThemBack) {
  store_.before_put = [this](const std::string& key) {
    if (key == "incarnation" && store_.keys("rank_assignments/").size() != 3) flag_ = true;
  };
  start();
  const auto swap = incarnation_with_assignments(1, 0);
  poller_->carry_out(swap);
  wait_for_incarnation_record(swap.record);
  EXPECT_FALSE(flag_) << "the incarnation came first";
  poller_->carry_out(core::ReadAssignments{swap.record.assignments});
  const auto read = assignments_.take();
  EXPECT_EQ(read.name, swap.record.assignments);
  EXPECT_EQ(read.assignments, swap.assignments);
}

TEST_F(StorePollerTest, DoesNotWriteARecordIfAnAssignmentCannotBeWritten) {
  flag_ = true;
  store_.before_put = [this](const std::string& key) {
    if (flag_ && key.ends_with(".1")) throw Failure(CKPT_ERR_SYSTEM, "the store is full");
  };
  start();
  const auto swap = incarnation_with_assignments(1, 0);
  poller_->carry_out(swap);
  ASSERT_TRUE(testing::eventually([&] { return !poller_->trouble().empty(); }));
  flag_ = false;
  poller_->carry_out(core::SwapLeaderRecord{0, {1, 5, 0}});
  next_leader_that([](const auto& read) { return read.revision == 1; });
  EXPECT_EQ(store_.get("incarnation"), std::nullopt);
  poller_->carry_out(swap);  // with those that are there already
  wait_for_incarnation_record(swap.record);
  EXPECT_EQ(store_.keys("rank_assignments/").size(), 3u);
}

TEST_F(StorePollerTest, TheLeaderRenewsItsRecordWhileAssignmentsAreWritten) {
  store_.before_put = [this](const std::string& key) {
    if (key.ends_with(".0")) poller_->carry_out(core::SwapLeaderRecord{0, {1, 5, 0}});
    if (key.ends_with(".1")) flag_ = store_.get("leader").has_value();
  };
  start();
  const auto swap = incarnation_with_assignments(1, 0);
  poller_->carry_out(swap);
  wait_for_incarnation_record(swap.record);
  EXPECT_TRUE(flag_);
}

TEST_F(StorePollerTest, RemovesAssignmentsOfEarlierIncarnationsOnly) {
  start();
  const auto first = incarnation_with_assignments(1, 0), second = incarnation_with_assignments(2, 1);
  poller_->carry_out(first);
  wait_for_incarnation_record(first.record);
  poller_->carry_out(second);
  wait_for_incarnation_record(second.record);
  ASSERT_EQ(store_.keys("rank_assignments/").size(), 6u);
  poller_->carry_out(core::RemoveAssignments{2});
  ASSERT_TRUE(testing::eventually([&] { return store_.keys("rank_assignments/").size() == 3; }));
  poller_->carry_out(core::ReadAssignments{second.record.assignments});
  EXPECT_EQ(assignments_.take().assignments, second.assignments);
}

TEST_F(StorePollerTest, ReportsVanishedAssignmentsUnlessALaterIncarnationBegan) {
  start();
  const auto first = incarnation_with_assignments(1, 0), second = incarnation_with_assignments(2, 1);
  poller_->carry_out(first);
  wait_for_incarnation_record(first.record);
  poller_->carry_out(core::ReadAssignments{second.record.assignments});  // as somebody may who knows an older record
  poller_->carry_out(core::ReadAssignments{first.record.assignments});
  EXPECT_EQ(assignments_.take().name, first.record.assignments);
  EXPECT_EQ(poller_->trouble(), "");
  poller_.reset();
  start();  // of another agent, which never knew them
  store_.remove(core::assignments_key(first.record.assignments, 1));
  poller_->carry_out(core::ReadAssignments{first.record.assignments});
  ASSERT_TRUE(testing::eventually([&] { return !poller_->trouble().empty(); }));
}

TEST_F(StorePollerTest, WritesVanishedAssignmentsAgainIfItKnowsThem) {
  start();
  const auto incarnation_record = incarnation_with_assignments(1, 0);
  poller_->carry_out(incarnation_record);
  wait_for_incarnation_record(incarnation_record.record);
  for (std::size_t number = 0; number < 3; ++number)
    store_.remove(core::assignments_key(incarnation_record.record.assignments, number));
  poller_->carry_out(core::ReadAssignments{incarnation_record.record.assignments});
  EXPECT_EQ(assignments_.take().assignments, incarnation_record.assignments);
  EXPECT_EQ(store_.keys("rank_assignments/").size(), 3u);
}

TEST_F(StorePollerTest, ReportsWrongAssignmentsUntilThereAreOthers) {
  start();
  auto first = incarnation_with_assignments(1, 0);
  first.assignments[7].arena_id ^= 1;  // not those that the name is of
  poller_->carry_out(first);
  wait_for_incarnation_record(first.record);
  poller_->carry_out(core::ReadAssignments{first.record.assignments});
  ASSERT_TRUE(testing::eventually([&] { return !poller_->trouble().empty(); }));
  while (!leaders_.empty()) leaders_.take();
  for (int poll = 0; poll < 3; ++poll) {
    leaders_.take();
    EXPECT_THAT(poller_->trouble(), ::testing::HasSubstr("ckptctl gc --records"));
  }
  EXPECT_TRUE(assignments_.empty());
  const auto second = incarnation_with_assignments(2, 1);
  poller_->carry_out(second);
  wait_for_incarnation_record(second.record);
  poller_->carry_out(core::ReadAssignments{second.record.assignments});
  EXPECT_EQ(assignments_.take().assignments, second.assignments);
  EXPECT_EQ(poller_->trouble(), "");
}

TEST_F(StorePollerTest, SeesChangesByOtherAgents) {
  start();
  leaders_.take();
  ASSERT_TRUE(store_.put_if("leader", to_text(core::LeaderRecord{4, 2, 9}), 0));
  EXPECT_EQ(next_leader_that([](const auto& read) { return read.revision == 1; }).record.heartbeat, 9u);
  const coord::NodeEntry node{"b", 1, 2, 3, 4, "address"};
  coord::register_node(store_, node);
  for (std::vector<coord::NodeEntry> nodes; nodes.empty();) nodes = nodes_.take();
}

TEST_F(StorePollerTest, AnOutageEndsByItself) {
  start();
  leaders_.take();
  store_.broken = true;
  poller_->carry_out(core::SwapLeaderRecord{0, {1, 5, 0}});
  ASSERT_TRUE(testing::eventually([&] { return !leaders_.empty() || store_.MemoryStore::get("leader").has_value(); }));
  store_.broken = false;
  EXPECT_EQ(next_leader_that([](const auto& read) { return read.revision == 1; }).record.node, 5u);
}

TEST_F(StorePollerTest, ReadOnlyStoreStaysInTroubleUntilAWriteSucceeds) {
  store_.read_only = true;
  start();
  leaders_.take();
  EXPECT_EQ(poller_->trouble(), "");
  poller_->carry_out(core::SwapLeaderRecord{0, {1, 5, 0}});
  ASSERT_TRUE(testing::eventually([&] { return !poller_->trouble().empty(); }));
  while (!leaders_.empty()) leaders_.take();
  leaders_.take();  // two polls that succeed
  leaders_.take();
  EXPECT_THAT(poller_->trouble(), ::testing::HasSubstr("read-only"));
  store_.read_only = false;
  poller_->carry_out(core::SwapLeaderRecord{0, {1, 5, 0}});
  EXPECT_TRUE(testing::eventually([&] { return poller_->trouble().empty(); }));
}

// Another agent may lead the job by the time that the store can be written again.
TEST_F(StorePollerTest, WriteTroubleEndsWhenAnotherAgentWrites) {
  store_.read_only = true;
  start();
  poller_->carry_out(core::SwapLeaderRecord{0, {1, 5, 0}});
  ASSERT_TRUE(testing::eventually([&] { return !poller_->trouble().empty(); }));
  store_.read_only = false;
  store_.put_if("leader", to_text(core::LeaderRecord{2, 6, 0}), 0);
  EXPECT_TRUE(testing::eventually([&] { return poller_->trouble().empty(); }));
}

TEST_F(StorePollerTest, ReportsVanishedRecords) {
  core::IncarnationRecord incarnation_record;
  incarnation_record.incarnation = 3;
  ASSERT_TRUE(store_.put_if("incarnation", to_text(incarnation_record), 0));
  start();
  incarnation_records_.take();
  EXPECT_EQ(poller_->trouble(), "");
  store_.vanished = true;
  ASSERT_TRUE(testing::eventually([&] { return !poller_->trouble().empty(); }));
  EXPECT_THAT(poller_->trouble(), ::testing::HasSubstr("are gone"));
  store_.vanished = false;
  EXPECT_TRUE(testing::eventually([&] { return poller_->trouble().empty(); }));
}

TEST_F(StorePollerTest, TreatsAnUnreadableRecordAsAnOutage) {
  ASSERT_TRUE(store_.put_if("leader", "{\"epoch\": 1}", 0));
  start();
  ASSERT_TRUE(store_.put_if("leader", to_text(core::LeaderRecord{4, 2, 9}), 1));
  EXPECT_EQ(next_leader_that([](const auto&) { return true; }).record.heartbeat, 9u) << "the broken one is never told";
}

TEST_F(StorePollerTest, UsesWatchEventsWithoutReadingTheStore) {
  store_.tells = true;
  start(3'600'000);
  nodes_.take();
  store_.broken = true;
  for (std::uint64_t heartbeat = 1; heartbeat <= 20; ++heartbeat) {
    ASSERT_TRUE(store_.put_if("leader", to_text(core::LeaderRecord{4, 2, heartbeat}), heartbeat - 1));
    EXPECT_EQ(next_leader_that([&](const auto& read) { return read.revision == heartbeat; }).record.heartbeat,
              heartbeat);
  }
  core::IncarnationRecord incarnation_record;
  incarnation_record.incarnation = 3;
  ASSERT_TRUE(store_.put_if("incarnation", to_text(incarnation_record), 0));
  for (core::IncarnationRecordRead read; read.revision == 0;) read = incarnation_records_.take();
  store_.broken = false;
  const coord::NodeEntry first{"a", 1, 2, 3, 4, "address"}, second{"b", 5, 6, 7, 8, "address"};
  coord::register_node(store_, first);
  std::vector<coord::NodeEntry> listed;
  while (listed.empty()) listed = nodes_.take();  // polls from before had found none
  EXPECT_EQ(listed, std::vector{first});
  coord::register_node(store_, second);
  EXPECT_EQ(nodes_.take(), std::vector{second}) << "and those that did not change are not told again";
}

// All agents would list all nodes at once, when a leader dies.
TEST_F(StorePollerTest, DelaysListingNodesWhenTheWatchFallsSilent) {
  using std::chrono::milliseconds;
  store_.tells = true;
  start(400);  // a watch that is silent for 200 ms is not trusted, and the nodes are listed at least 600 ms later
  nodes_.take();
  int lists = 0;
  auto last = Clock::now();
  std::uint64_t heartbeat = 0;
  for (auto since = last, begin = last; Clock::now() - since < milliseconds(1200); ++heartbeat) {
    ASSERT_LT(Clock::now() - begin, testing::wait_limit);
    const auto before = std::exchange(last, Clock::now());
    lists = store_.lists;
    ASSERT_TRUE(store_.put_if("leader", to_text(core::LeaderRecord{4, 2, heartbeat}), heartbeat));
    if (Clock::now() - before > milliseconds(150)) since = Clock::now();  // it may have been taken for silent
    std::this_thread::sleep_for(milliseconds(5));
  }
  ASSERT_TRUE(testing::eventually([&] { return store_.lists > lists; }));
  EXPECT_GE(Clock::now() - last, milliseconds(600));
}

TEST_F(StorePollerTest, DelaysTheRetryOfAFailedListing) {
  using std::chrono::milliseconds;
  store_.tells = store_.cannot_list = true;
  const auto begin = Clock::now();
  start(400);
  for (int poll = 0; poll < 8; ++poll) leaders_.take();
  EXPECT_LE(store_.lists, 1 + (Clock::now() - begin) / milliseconds(600));
}

TEST_F(StorePollerTest, ReadsTheStoreWhenItsWatchFallsSilent) {
  store_.tells = true;
  start(200);
  ASSERT_TRUE(store_.put_if("leader", to_text(core::LeaderRecord{4, 2, 1}), 0));
  next_leader_that([](const auto& read) { return read.revision == 1; });
  store_.silent = true;
  ASSERT_TRUE(store_.put_if("leader", to_text(core::LeaderRecord{4, 2, 2}), 1));
  EXPECT_EQ(next_leader_that([](const auto& read) { return read.revision == 2; }).record.heartbeat, 2u);
  const coord::NodeEntry node{"b", 1, 2, 3, 4, "address"};
  coord::register_node(store_, node);
  for (std::vector<coord::NodeEntry> nodes; nodes.empty();) nodes = nodes_.take();
}

TEST_F(StorePollerTest, ReportsADamagedRecordUntilRepairedAndReadsTheOthers) {
  const coord::NodeEntry node{"b", 1, 2, 3, 4, "address"};
  coord::register_node(store_, node);
  ASSERT_TRUE(store_.put_if("nodes/damaged", "x", 0));
  store_.one_is_damaged = true;
  start();
  for (int poll = 0; poll < 3; ++poll) {
    EXPECT_EQ(nodes_.take(), std::vector{node});
    while (!leaders_.empty()) leaders_.take();
    leaders_.take();  // a poll that succeeds in all else
    EXPECT_THAT(poller_->trouble(), ::testing::HasSubstr("nodes/damaged is damaged"));
  }
  store_.one_is_damaged = false;
  EXPECT_TRUE(testing::eventually([&] { return poller_->trouble().empty(); }));
}

// ---- The records of the agent's own node ----

class OwnRecords : public StorePollerTest {
 protected:
  ~OwnRecords() override { poller_.reset(); }  // before what its thread writes into

  void start_own() {
    poller_.emplace(
        store_, 3'600'000,
        StorePoller::Handlers{[this](const core::LeaderRecordRead& read) { leaders_.put(read); },
                              [this](const core::IncarnationRecordRead& read) { incarnation_records_.put(read); },
                              [](const core::AssignmentsRead&) {}, [this](const auto& nodes) { nodes_.put(nodes); },
                              [this](const std::string& sentence) { notices_.put(sentence); }},
        silent_log(), StorePoller::Own{own_, "secret"});
  }
  void write_own() {
    coord::register_node(store_, own_);
    coord::take_number(store_, own_);
    ASSERT_TRUE(store_.put_if("token", "secret", 0));
  }
  std::string value_of(const std::string& key) {
    const auto entry = store_.get(key);
    return entry ? entry->value : "";
  }
  void expect_again() {
    EXPECT_TRUE(testing::eventually([&] {
      const auto entry = store_.get("nodes/a");
      return entry && coord::node_entry(*entry) == own_ && value_of("taken/3") == "a" && value_of("token") == "secret";
    }));
  }
  // Each lists all nodes, and sees to its own records then.
  void wait_for_polls(int polls) {
    while (!nodes_.empty()) nodes_.take();
    for (int poll = 0; poll < polls; ++poll) nodes_.take();
  }

  const coord::NodeEntry own_{"a", 3, 11, 100, 1, "address"};
  testing::Mailbox<std::string> notices_;
};

TEST_F(OwnRecords, AreRewrittenWithANoticeAfterTheyVanished) {
  write_own();
  start_own();
  wait_for_polls(2);
  EXPECT_TRUE(notices_.empty());
  for (const char* key : {"nodes/a", "taken/3", "token"}) {
    store_.remove(key);
    EXPECT_THAT(notices_.take(), ::testing::HasSubstr("records of node a had vanished"));
    expect_again();
  }
}

// Before anything else is read.
TEST_F(OwnRecords, AreRewrittenWhenTheWatchReportsTheirRemoval) {
  write_own();
  store_.tells = store_.cannot_list = true;
  start_own();
  store_.remove("nodes/a");
  store_.remove("taken/3");
  store_.notify({"nodes/a", "", 0});
  expect_again();
}

TEST_F(OwnRecords, AreRewrittenWhenTheIncarnationRecordVanished) {
  write_own();
  core::IncarnationRecord incarnation_record;
  incarnation_record.incarnation = 3;
  ASSERT_TRUE(store_.put_if("incarnation", to_text(incarnation_record), 0));
  store_.cannot_list = true;
  start_own();
  wait_for_incarnation_record(incarnation_record);
  for (const char* key : {"incarnation", "nodes/a", "taken/3", "token"}) store_.remove(key);
  expect_again();
}

// Where another agent started while they were gone.
TEST_F(OwnRecords, OlderOfTwoAgentsKeepsTheirSharedNumber) {
  for (const std::uint64_t agent_of_b : {200u, 50u}) {
    store_.remove("nodes/b");
    store_.remove("taken/3");
    coord::register_node(store_, {"b", 3, 12, agent_of_b, 2, "address"});
    ASSERT_TRUE(store_.put_if("taken/3", "b", 0));
    start_own();
    wait_for_polls(3);
    EXPECT_EQ(value_of("taken/3"), agent_of_b > own_.agent_id ? "a" : "b");
    poller_.reset();
  }
}

TEST_F(OwnRecords, ReportsARivalForTheNodesNameOnce) {
  write_own();
  start_own();
  for (const char* rival : {"m2 (10.0.0.2:1)", "m3 (10.0.0.3:1)"}) {
    const auto before = store_.get("rivals/a");
    ASSERT_TRUE(store_.put_if("rivals/a", rival, before ? before->revision : 0));
    EXPECT_THAT(notices_.take(), ::testing::AllOf(::testing::HasSubstr(rival), ::testing::HasSubstr("option node")));
  }
  wait_for_polls(2);
  EXPECT_TRUE(notices_.empty());
}

}  // namespace
}  // namespace ckpt::agent
