// What the hooks around communication promise to training, one machine instruction of the shipped code at a time: no
// system call, and at every instruction a log that the agent can read.

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <vector>

#include "client/agent_session.hpp"
#include "client/layered_copy.hpp"
#include "single_step.hpp"
#include "tests/support/temporary_directory.hpp"

namespace ckpt::client {
namespace {

using arena::CommKind;

enum Phase : std::uint32_t { before, hooks, after };

TEST(HookSteps, HooksMakeNoSystemCallAndKeepTheLogReadable) {
  const test::TemporaryDirectory directory{test::in_memory};
  const arena::Control agent = arena::Control::create(directory.path(), 0);
  arena::CommReader reader(agent.comm());
  void* shared = ::mmap(nullptr, sizeof(arena::Word32), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  auto& phase = *new (shared) arena::Word32{before};

  constexpr int rounds = 3;
  LayeredCopy layered{LayeredCopy::Settings{}};
  const auto communicate = [&](const CommHooks& comm) {
    comm.begin(2);
    comm.end(2);
    comm.end(2);  // refused
    if (layered.bubble_begin()) comm.bubble_begin();
    if (layered.bubble_end() == true) comm.bubble_end();
    comm.update(Clock::now());
    comm.iteration(Clock::now());
  };
  int system_calls = 0, instructions = 0, busy = 0;
  std::vector<arena::CommEvent> events;
  const bool ended_well = testing_support::single_step(
      [&] {
        CommHooks comm;
        communicate(comm);
        comm.follow(std::make_shared<arena::Control>(arena::Control::attach(directory.path(), 0)));
        communicate(comm);  // what is resolved at the first call is resolved
        phase = hooks;
        for (int round = 0; round < rounds; ++round) communicate(comm);
        phase = after;
      },
      [&](bool was_system_call) {
        if (phase != hooks) return;
        ++instructions;
        if (was_system_call) ++system_calls;
        if (reader.is_busy()) ++busy;
        ASSERT_TRUE(reader.read(events));
      });
  ::munmap(shared, sizeof(arena::Word32));

  EXPECT_TRUE(ended_well);
  EXPECT_EQ(system_calls, 0);
  EXPECT_GT(instructions, 50 * rounds);
  EXPECT_LT(instructions, 5'000 * rounds);
  EXPECT_GT(busy, rounds);
  std::vector<CommKind> kinds, expected;
  for (const arena::CommEvent& event : events) kinds.push_back(event.kind);
  for (int round = 0; round < 1 + rounds; ++round)
    for (const CommKind kind : {CommKind::begin, CommKind::end, CommKind::bubble_begin, CommKind::bubble_end,
                                CommKind::update, CommKind::iteration})
      expected.push_back(kind);
  EXPECT_EQ(kinds, expected);
}

}  // namespace
}  // namespace ckpt::client
