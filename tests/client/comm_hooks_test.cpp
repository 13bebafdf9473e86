// What the agent reads of an engine's communication: the words themselves, through its own mapping of the control file.

#include "arena/comm_log.hpp"
#include "engine_fixture.hpp"

namespace ckpt::client {
namespace {

using arena::CommKind;
using testing::HasSubstr;

// Kinds and streams; times are asked to be those of the calls.
struct Mark {
  CommKind kind;
  int channel;
  bool operator==(const Mark&) const = default;
};
std::ostream& operator<<(std::ostream& out, const Mark& mark) {
  return out << "kind " << int(mark.kind) << " of channel " << mark.channel;
}

std::int64_t now_us() {
  return std::chrono::duration_cast<std::chrono::microseconds>(Clock::now().time_since_epoch()).count();
}

class CommHooksTest : public EngineTest {
 protected:
  // An engine that may snapshot.
  std::unique_ptr<Engine> ready_engine() {
    auto engine = host_engine();
    register_all(*engine, tensors_);
    restore(*engine);
    return engine;
  }
  arena::CommReader reader() { return arena::CommReader(agent_->control().comm()); }
  // What `call` makes the reader see of the network and of iterations.
  std::vector<Mark> marks_of(arena::CommReader& reader, const std::function<void()>& call) {
    std::vector<arena::CommEvent> events;
    EXPECT_TRUE(reader.read(events));
    events.clear();
    const std::int64_t before_us = now_us();
    call();
    const std::int64_t after_us = now_us();
    EXPECT_TRUE(reader.read(events));
    std::vector<Mark> result;
    for (const arena::CommEvent& event : events) {
      if (!arena::mark_of(event, Clock::now())) continue;
      EXPECT_GE(event.at_us, before_us);
      EXPECT_LE(event.at_us, after_us);
      result.push_back({event.kind, event.channel});
    }
    return result;
  }

  std::vector<TestTensor> tensors_ = {test_tensor("weight", CKPT_F32, {300, 70})};
};

TEST_F(CommHooksTest, BeginAndEndSetTheGateAndLogEvents) {
  auto engine = ready_engine();
  auto reader = this->reader();
  EXPECT_EQ(marks_of(reader, [&] { engine->comm_begin(3); }), (std::vector<Mark>{{CommKind::begin, 3}}));
  EXPECT_TRUE(reader.is_busy());
  EXPECT_EQ(marks_of(reader, [&] { EXPECT_EQ(engine->comm_end(3).status, CKPT_OK); }),
            (std::vector<Mark>{{CommKind::end, 3}}));
  EXPECT_FALSE(reader.is_busy());
}

TEST_F(CommHooksTest, EverySnapshotInOrderEndsAnIteration) {
  auto engine = ready_engine();
  auto reader = this->reader();
  const std::vector<Mark> once = {{CommKind::iteration, 0}};
  const std::vector<Mark> nothing;
  EXPECT_EQ(marks_of(reader, [&] { ASSERT_EQ(engine->snapshot(0).status, CKPT_OK); }), once);
  EXPECT_EQ(marks_of(reader, [&] { ASSERT_EQ(engine->before_update().status, CKPT_OK); }), nothing);
  EXPECT_EQ(marks_of(reader, [&] { ASSERT_EQ(engine->snapshot(1).status, CKPT_OK); }), once);
  EXPECT_EQ(marks_of(reader, [&] { ASSERT_EQ(engine->before_update().status, CKPT_SKIPPED); }), nothing);
  auto large = test_tensor("large", CKPT_F32, {1000, 1000});
  engine->register_tensor(large.abi());
  agent_->answer_with("reserve", {{"status", CKPT_ERR_NO_SPACE}, {"message", "the arena is full"}});
  agent_->grant();
  EXPECT_EQ(marks_of(reader, [&] { EXPECT_EQ(caught([&] { engine->snapshot(2); }).status, CKPT_ERR_NO_SPACE); }), once);
  EXPECT_EQ(marks_of(reader, [&] { EXPECT_EQ(caught([&] { engine->snapshot(2); }).status, CKPT_ERR_INVALID); }),
            nothing);
  EXPECT_EQ(marks_of(reader, [&] { EXPECT_EQ(caught([&] { engine->snapshot(-1); }).status, CKPT_ERR_INVALID); }),
            nothing);
}

TEST_F(CommHooksTest, AcceptsHooksBeforeRestoreWithoutWriting) {
  auto engine = host_engine();
  for (int i = 0; i < 2; ++i) {
    engine->comm_begin(0);
    EXPECT_EQ(engine->comm_end(0).status, CKPT_OK);
    EXPECT_EQ(engine->comm_end(0).status, CKPT_OK);
  }
  EXPECT_EQ(agent_->control().comm().written, 0u);
  register_all(*engine, tensors_);
  restore(*engine);
  EXPECT_EQ(agent_->control().comm().written, 0u);
  engine->comm_begin(0);
  EXPECT_EQ(agent_->control().comm().written, 1u);
}

TEST_F(CommHooksTest, ReportsWrongUseAndWritesNothing) {
  auto engine = ready_engine();
  auto reader = this->reader();
  EXPECT_EQ(marks_of(reader,
                     [&] {
                       const Outcome early = engine->comm_end(0);
                       EXPECT_EQ(early.status, CKPT_ERR_INVALID);
                       EXPECT_THAT(early.text, HasSubstr("without a comm_begin()"));
                       for (const std::uint32_t channel : {8u, 9u, 1u << 31}) {
                         const Caught begin = caught([&] { engine->comm_begin(channel); });
                         EXPECT_EQ(begin.status, CKPT_ERR_INVALID);
                         EXPECT_THAT(begin.sentence, HasSubstr("use 0 to 7"));
                         EXPECT_EQ(caught([&] { engine->comm_end(channel); }).status, CKPT_ERR_INVALID);
                       }
                     }),
            (std::vector<Mark>{}));
  EXPECT_FALSE(reader.is_busy());
}

// What is under way when the agent dies and a new one comes is neither lost nor left open.
TEST_F(CommHooksTest, NewAgentSeesOngoingCommunicationEnd) {
  auto engine = ready_engine();
  ASSERT_EQ(engine->snapshot(0).status, CKPT_OK);
  ASSERT_EQ(engine->before_update().status, CKPT_OK);
  engine->comm_begin(1);
  engine->comm_begin(2);
  agent_.reset();
  EXPECT_EQ(engine->comm_end(1).status, CKPT_OK);
  agent_.emplace(directory_.path());
  EXPECT_TRUE(reader().is_busy());
  for (const Deadline deadline = Deadline::in_ms(60'000); agent_->hellos() == 0 && !deadline.passed();)
    std::this_thread::yield();  // until the engine is connected again
  EXPECT_EQ(agent_->last_hello().at("incarnation"), 1);
  auto reader = this->reader();
  EXPECT_TRUE(reader.is_busy());
  const std::vector<Mark> again = marks_of(reader, [&] {
    EXPECT_EQ(engine->comm_end(2).status, CKPT_OK);
    engine->comm_begin(5);
    EXPECT_EQ(engine->comm_end(5).status, CKPT_OK);
  });
  EXPECT_EQ(again, (std::vector<Mark>{{CommKind::end, 2}, {CommKind::begin, 5}, {CommKind::end, 5}}));
  EXPECT_FALSE(reader.is_busy());
}

// Hooks that run while the agent comes and goes write to memory that is there, and every begin gets its end.
TEST_F(CommHooksTest, ThreadsWriteWhileTheAgentIsReplaced) {
  auto engine = ready_engine();
  std::atomic<bool> stop{false};
  std::vector<std::jthread> threads;
  for (std::uint32_t channel = 0; channel < 3; ++channel)
    threads.emplace_back([&, channel] {
      while (!stop) {
        engine->comm_begin(channel);
        EXPECT_EQ(engine->comm_end(channel).status, CKPT_OK);
      }
    });
  for (int i = 0; i < 3; ++i) {
    agent_.reset();
    agent_.emplace(directory_.path());
    const Deadline deadline = Deadline::in_ms(20'000);
    while (agent_->hellos() == 0 && !deadline.passed()) std::this_thread::yield();
    ASSERT_GT(agent_->hellos(), 0);
  }
  stop = true;
  threads.clear();
  EXPECT_FALSE(reader().is_busy());
  EXPECT_GT(agent_->control().comm().written, 0u);
}

TEST(CommHooks, FollowsANewFileAndUnmapsTheOldOne) {
  const test::TemporaryDirectory directory{test::in_memory};
  CommHooks hooks;
  auto engines = std::make_shared<arena::Control>(arena::Control::create(directory.path(), 0));
  const arena::Control first = arena::Control::attach(directory.path(), 0);
  hooks.follow(engines);
  const std::weak_ptr<arena::Control> mapped = std::exchange(engines, nullptr);
  // The same file, mapped anew, changes nothing.
  hooks.follow(std::make_shared<arena::Control>(arena::Control::attach(directory.path(), 0)));
  EXPECT_FALSE(mapped.expired());
  hooks.begin(4);
  EXPECT_EQ(first.comm().channels[4].begun, 1u);
  auto second = std::make_shared<arena::Control>(arena::Control::create(directory.path(), 0));
  hooks.follow(second);
  EXPECT_TRUE(mapped.expired()) << "no hook uses it any more";
  EXPECT_FALSE(hooks.end(4));
  hooks.begin(4);
  EXPECT_TRUE(hooks.end(4));
  hooks.iteration(Clock::now());
  EXPECT_EQ(first.comm().written, 1u);
  EXPECT_EQ(second->comm().written, 3u);
}

TEST(CommHooks, WriteNothingWithoutAnIncarnation) {
  const test::TemporaryDirectory directory{test::in_memory};
  CommHooks hooks;
  auto control = std::make_shared<arena::Control>(arena::Control::create(directory.path(), 0));
  hooks.follow(control);
  hooks.leave();
  EXPECT_EQ(control.use_count(), 1);
  hooks.begin(4);
  EXPECT_TRUE(hooks.end(4));
  EXPECT_EQ(control->comm().written, 0u);
  hooks.follow(control);  // the same file again
  hooks.begin(4);
  EXPECT_EQ(control->comm().written, 1u);
}

// A hook that was suspended between its look at the file and its write, while the engine rejoined.
TEST(CommHooks, HooksOnOtherThreadsNeverWriteToAnUnmappedFile) {
  const test::TemporaryDirectory directory{test::in_memory};
  CommHooks hooks;
  std::atomic<bool> stop{false};
  std::thread training([&] {
    while (!stop.load()) {
      hooks.begin(2);
      hooks.end(2);
    }
  });
  for (int i = 0; i < 200; ++i) {
    hooks.leave();
    hooks.follow(std::make_shared<arena::Control>(arena::Control::create(directory.path(), 0)));
  }
  stop.store(true);
  training.join();
}

}  // namespace
}  // namespace ckpt::client
