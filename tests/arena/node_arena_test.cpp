#include "arena/node_arena.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "arena/comm_log.hpp"
#include "arena/space_left.hpp"
#include "base/error.hpp"
#include "pieces.hpp"
#include "tests/support/temporary_directory.hpp"

namespace ckpt::arena {
namespace {

using test::TemporaryDirectory;
using testing::HasSubstr;

struct Refusal {
  ckpt_status status = CKPT_OK;
  std::string sentence;
};
Refusal refusal(const std::string& directory, const std::string& job, const std::string& node) {
  try {
    NodeArena arena(directory, job, node);
  } catch (const Failure& failure) {
    return {failure.status(), failure.what()};
  }
  return {};
}

TEST(NodeArena, OneAgentAtATime) {
  const TemporaryDirectory temp{test::in_memory};
  const std::string directory = temp / "job/node";
  {
    const NodeArena arena(directory, "job", "node");
    const Refusal second = refusal(directory, "job", "node");
    EXPECT_EQ(second.status, CKPT_ERR_CLAIMED);
    EXPECT_THAT(second.sentence, HasSubstr("another agent"));
    EXPECT_TRUE(inspect_arena(directory)->in_use);
  }
  EXPECT_FALSE(inspect_arena(directory)->in_use);
  EXPECT_EQ(refusal(directory, "job", "node").status, CKPT_OK);
}

TEST(NodeArena, BelongsToOneJobAndNode) {
  const TemporaryDirectory temp{test::in_memory};
  { const NodeArena arena(temp.path(), "job", "node"); }
  EXPECT_THAT(refusal(temp.path(), "other", "node").sentence, HasSubstr("belongs to node node of job job"));
  EXPECT_THAT(refusal(temp.path(), "job", "other").sentence, HasSubstr("belongs to node node of job job"));
}

TEST(NodeArena, RemembersAcrossAgentsAndNeverBackwards) {
  const TemporaryDirectory temp{test::in_memory};
  std::uint64_t id = 0;
  {
    NodeArena arena(temp.path(), "job", "node");
    id = arena.arena_id();
    arena.remember({CheckpointId(2, 7), CheckpointId(2, 9), 5, {}});
    arena.remember({CheckpointId(2, 3), CheckpointId(3, 1), 4, {}});
  }
  const NodeArena again(temp.path(), "job", "node");
  EXPECT_EQ(again.arena_id(), id);
  EXPECT_EQ(again.memory().highest_commit, CheckpointId(2, 7));
  EXPECT_EQ(again.memory().newest_seen, CheckpointId(3, 1));
  EXPECT_EQ(again.memory().highest_epoch, 5u);
  EXPECT_EQ(inspect_arena(temp.path())->job, "job");
}

TEST(NodeArena, RecreatesARemovedArenaWithItsMemory) {
  TemporaryDirectory directory{test::in_memory};
  const std::string path = directory / "node";
  NodeArena arena(path, "job", "a");
  arena.remember({{2, 7}, {2, 8}, 5, {}});
  const auto id = arena.arena_id();
  EXPECT_FALSE(arena.is_removed());
  std::filesystem::remove_all(path);
  EXPECT_TRUE(arena.is_removed());
  arena.make_again();
  EXPECT_FALSE(arena.is_removed());
  EXPECT_EQ(arena.arena_id(), id);
  EXPECT_EQ(arena.memory().highest_commit, CheckpointId(2, 7));
  const auto seen = inspect_arena(path);
  ASSERT_TRUE(seen);
  EXPECT_TRUE(seen->in_use);
  EXPECT_EQ(seen->node, "a");
  EXPECT_EQ(seen->memory.newest_seen, CheckpointId(2, 8));
  EXPECT_EQ(seen->memory.highest_epoch, 5u);
}

bool is_claimed(NodeArena& removed) {
  try {
    removed.make_again();
    return false;
  } catch (const Failure& failure) {
    return failure.status() == CKPT_ERR_CLAIMED;
  }
}

TEST(NodeArena, LeavesAnArenaThatAnotherAgentCreated) {
  TemporaryDirectory directory{test::in_memory};
  const std::string path = directory / "node";
  NodeArena removed(path, "job", "a");
  std::filesystem::remove_all(path);
  {
    NodeArena another(path, "job", "a");
    EXPECT_TRUE(removed.is_removed());
    EXPECT_TRUE(is_claimed(removed));
  }
  EXPECT_TRUE(is_claimed(removed)) << "it may have left checkpoints there";
}

TEST(NodeArena, RemembersItsNumberAndToken) {
  const TemporaryDirectory temp{test::in_memory};
  const std::string token = "00112233445566778899aabbccddeeff0123456789abcdef0fedcba987654321";
  {
    NodeArena arena(temp.path(), "job", "node");
    EXPECT_EQ(arena.number(), std::nullopt);
    EXPECT_EQ(arena.token(), "");
    arena.remember_place(0, token);
  }
  NodeArena again(temp.path(), "job", "node");
  EXPECT_EQ(again.number(), 0u);
  EXPECT_EQ(again.token(), token);
  again.remember_place(7, "");
  EXPECT_EQ(again.number(), 7u);
  EXPECT_EQ(again.token(), "");
}

std::string bytes_of(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

void put_bytes(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

// Half a flipped commit would be "committed but lost" to the whole job.
TEST(NodeArena, NoFlippedBitChangesWhatANodeRemembers) {
  const TemporaryDirectory temp{test::in_memory};
  {
    NodeArena arena(temp.path(), "job", "node");
    arena.remember_place(3, "");
    arena.remember({CheckpointId(2, 7), CheckpointId(2, 9), 5, CheckpointId(2, 8)});
  }
  const std::string whole = bytes_of(temp / "node");
  constexpr std::size_t begin = offsetof(NodeHeader, copies), end = begin + sizeof(NodeHeader::copies);
  for (std::size_t bit = 0; bit < 8 * (end - begin); ++bit) {
    std::string damaged = whole;
    char& byte = damaged[begin + bit / 8];
    byte = static_cast<char>(byte ^ 1 << bit % 8);
    put_bytes(temp / "node", damaged);
    const NodeArena arena(temp.path(), "job", "node");
    ASSERT_EQ(arena.memory().highest_commit, CheckpointId(2, 7)) << bit;
    ASSERT_EQ(arena.memory().newest_seen, CheckpointId(2, 9)) << bit;
    ASSERT_EQ(arena.memory().newest_damaged, CheckpointId(2, 8)) << bit;
    ASSERT_EQ(arena.memory().highest_epoch, 5u) << bit;
    ASSERT_EQ(arena.number(), 3u) << bit;
    const bool is_checked = bit / 8 % sizeof(NodeWords) < offsetof(NodeWords, check) + sizeof(Word64);
    ASSERT_EQ(!arena.damage().empty(), is_checked) << bit;
  }
}

// An agent that dies between the two copies leaves both whole, and one of them older.
TEST(NodeArena, UsesTheNewerOfTwoValidCopies) {
  const TemporaryDirectory temp{test::in_memory};
  { NodeArena(temp.path(), "job", "node").remember({CheckpointId(2, 7), CheckpointId(2, 9), 5, {}}); }
  const std::string older = bytes_of(temp / "node");
  { NodeArena(temp.path(), "job", "node").remember({CheckpointId(2, 8), CheckpointId(2, 9), 5, {}}); }
  std::string bytes = bytes_of(temp / "node");
  constexpr std::size_t first = offsetof(NodeHeader, copies);  // it is written after the second one
  std::copy_n(older.begin() + first, sizeof(NodeWords), bytes.begin() + first);
  put_bytes(temp / "node", bytes);
  const NodeArena arena(temp.path(), "job", "node");
  EXPECT_EQ(arena.memory().highest_commit, CheckpointId(2, 8));
  EXPECT_EQ(arena.damage(), "");
}

TEST(NodeArena, ReportsOnceThatBothCopiesAreDamaged) {
  const TemporaryDirectory temp{test::in_memory};
  std::uint64_t id = 0;
  {
    NodeArena arena(temp.path(), "job", "node");
    id = arena.arena_id();
    arena.remember({CheckpointId(2, 7), CheckpointId(2, 9), 5, {}});
  }
  std::string bytes = bytes_of(temp / "node");
  for (std::size_t copy = 0; copy < 2; ++copy)
    bytes[offsetof(NodeHeader, copies) + copy * sizeof(NodeWords) + offsetof(NodeWords, highest_commit) + 7] = 'x';
  put_bytes(temp / "node", bytes);
  {
    const NodeArena arena(temp.path(), "job", "node");
    EXPECT_EQ(arena.memory().highest_commit, CheckpointId());
    EXPECT_EQ(arena.memory().highest_epoch, 0u);
    EXPECT_EQ(arena.arena_id(), id);
    EXPECT_THAT(arena.damage(), HasSubstr("no longer knows which checkpoints"));
  }
  EXPECT_EQ(NodeArena(temp.path(), "job", "node").damage(), "");
}

TEST(NodeArena, KeepsMemoryOfThePreviousFormat) {
  const TemporaryDirectory temp{test::in_memory};
  std::uint64_t id = 0;
  {
    NodeArena arena(temp.path(), "job", "node");
    id = arena.arena_id();
  }
  std::string bytes = bytes_of(temp / "node");
  auto& header = *reinterpret_cast<NodeHeader*>(bytes.data());
  header.format = 3;
  header.format_3[0] = CheckpointId(2, 7).word();
  header.format_3[1] = CheckpointId(2, 9).word();
  header.format_3[2] = 5;
  std::fill_n(bytes.data() + offsetof(NodeHeader, copies), sizeof(header.copies), '\0');
  put_bytes(temp / "node", bytes);
  EXPECT_EQ(inspect_arena(temp.path())->memory.highest_commit, CheckpointId(2, 7));
  for (int i = 0; i < 2; ++i) {
    const NodeArena arena(temp.path(), "job", "node");
    EXPECT_EQ(arena.arena_id(), id);
    EXPECT_EQ(arena.memory().highest_commit, CheckpointId(2, 7));
    EXPECT_EQ(arena.memory().newest_seen, CheckpointId(2, 9));
    EXPECT_EQ(arena.memory().highest_epoch, 5u);
    EXPECT_EQ(arena.damage(), "");
  }
}

TEST(NodeArena, GivesEachArenaItsOwnId) {
  const TemporaryDirectory one{test::in_memory};
  const TemporaryDirectory two{test::in_memory};
  EXPECT_NE(NodeArena(one.path(), "job", "node").arena_id(), NodeArena(two.path(), "job", "node").arena_id());
}

TEST(NodeArena, AttachesWholeSegmentsAndRemovesTheRest) {
  const TemporaryDirectory temp{test::in_memory};
  {
    NodeArena arena(temp.path(), "job", "node");
    auto kept = arena.create_segment({SegmentKind::local, 0, 3, "rank0", 5000, 4096}, 1);
    store_piece(kept.writable_slot(2), "rank0", CheckpointId(1, 4), 5000);
    auto cut_off = arena.create_segment({SegmentKind::held, 0, 2, "rank1", 5000, 4096}, 1);
    reinterpret_cast<SegmentHeader*>(cut_off.mapping().data())->ready = 0;
    std::ofstream(temp / "7.segment") << "nonsense";
    arena.create_segment({SegmentKind::held, 0, 2, "gone", 5000, 4096}, 1);
  }
  std::filesystem::remove(temp / "2.segment");
  NodeArena arena(temp.path(), "job", "node");
  std::vector<std::string> removed;
  const auto segments = arena.attach_segments(removed);
  ASSERT_EQ(segments.size(), 1u);
  EXPECT_EQ(segments[0].spec().shard, "rank0");
  EXPECT_EQ(segments[0].slot(2).checkpoint(), CheckpointId(1, 4));
  EXPECT_EQ(removed.size(), 2u);
  EXPECT_FALSE(std::filesystem::exists(temp / "1.segment"));
  // New names do not collide with old ones.
  EXPECT_EQ(arena.create_segment({SegmentKind::held, 0, 2, "rank2", 1, 1}, 1).path(), temp / "8.segment");
}

TEST(NodeArena, RemovedSegmentsAreGone) {
  const TemporaryDirectory temp{test::in_memory};
  NodeArena arena(temp.path(), "job", "node");
  auto segment = arena.create_segment({SegmentKind::held, 0, 2, "rank2", 1, 1}, 1);
  const std::string path = segment.path();
  NodeArena::remove_segment(std::move(segment));
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST(NodeArena, SpaceLeftIsNoMoreThanTheFileSystemHas) {
  const TemporaryDirectory temp{test::in_memory};
  const auto left = space_left_bytes(temp.path());
  EXPECT_GT(left, 0u);
  EXPECT_LE(left, std::filesystem::space(temp.path()).available);
}

TEST(Control, EachSideReadsTheOthersValues) {
  const TemporaryDirectory temp{test::in_memory};
  Control agent = Control::create(temp.path(), 5);
  Control trainer = Control::attach(UniqueFd(::dup(agent.fd())), 5);
  EXPECT_EQ(trainer.grant().sequence, 0u);
  EXPECT_EQ(agent.attempted(), -1);

  const std::uint32_t seen = trainer.agent_doorbell();
  agent.share({5, 7, 3});
  agent.grant({9, {2, 1, 0, 15}});
  agent.resume_at(17);
  agent.committed(CheckpointId(3, 16));
  agent.fence(4);
  EXPECT_EQ(trainer.agent_doorbell(), seen + 4);
  EXPECT_EQ(trainer.grant().sequence, 9u);
  EXPECT_EQ(trainer.grant().slots, (std::array<std::uint8_t, 4>{2, 1, 0, 15}));
  EXPECT_EQ(trainer.share(), (core::Share{5, 7, 3}));
  EXPECT_EQ(trainer.resume_at(), 17);
  EXPECT_EQ(trainer.committed(), CheckpointId(3, 16));
  EXPECT_EQ(trainer.fenced(), 4u);

  trainer.attempted(20);
  trainer.capturing(CheckpointId(3, 20));
  trainer.used_grant(9);
  trainer.ring_agent();
  EXPECT_EQ(agent.trainer_doorbell(), 1u);
  EXPECT_EQ(agent.attempted(), 20);
  EXPECT_EQ(agent.capturing(), CheckpointId(3, 20));
  EXPECT_EQ(agent.used_grant(), 9u);
}

TEST(Control, GrantNamesASpareSlotAndTheTrainerReportsTheUsedOne) {
  const Grant grant{7, {1, 2, 3, 15}, 15};
  EXPECT_EQ(Grant::from_word(grant.word()).spare, 15);
  EXPECT_EQ(Grant::from_word(grant.word()).slots, grant.slots);
  EXPECT_EQ(Grant::from_word(grant.word()).sequence, 7u);
  EXPECT_FALSE(Grant::from_word(Grant{7, {1}}.word()).spare);
  test::TemporaryDirectory directory(test::in_memory);
  Control control = Control::create(directory.path(), 0);
  EXPECT_FALSE(control.used_spare());
  control.used_grant(7, true);
  EXPECT_TRUE(control.used_spare());
  control.used_grant(8);
  EXPECT_FALSE(control.used_spare());
}

TEST(Control, NewIncarnationFencesTheOldTrainer) {
  const TemporaryDirectory temp{test::in_memory};
  Control first = Control::create(temp.path(), 5);
  first.grant({9, {2, 1}});
  const Control kept = Control::attach(temp.path(), 5);
  EXPECT_TRUE(kept.same_as(first));
  EXPECT_EQ(kept.grant().sequence, 9u);
  const Control second = Control::create(temp.path(), 5);
  EXPECT_FALSE(second.same_as(first));
  EXPECT_EQ(Control::attach(temp.path(), 5).grant().sequence, 0u);
  first.used_grant(9);
  EXPECT_EQ(second.used_grant(), 0u);
}

TEST(Control, ForeignPagesAreRefused) {
  const TemporaryDirectory temp{test::in_memory};
  const Control control = Control::create(temp.path(), 5);
  EXPECT_THROW(Control::attach(UniqueFd(::dup(control.fd())), 6), Failure);
  std::ofstream(temp / "rank-7.control") << std::string(control_file_bytes, 'x');
  EXPECT_THROW(Control::attach(temp.path(), 7), Failure);
  std::ofstream(temp / "rank-8.control") << "short";
  EXPECT_THROW(Control::attach(temp.path(), 8), Failure);
  EXPECT_THROW(Control::attach(temp.path(), 9), Failure);
}

TEST(Control, PagesOfAnotherFormatOrLengthAreRefused) {
  const TemporaryDirectory temp{test::in_memory};
  const auto attaches = [&](auto change) {
    Control::create(temp.path(), 5);
    change(temp / "rank-5.control");
    try {
      Control::attach(temp.path(), 5);
    } catch (const Failure& failure) {
      EXPECT_EQ(failure.status(), CKPT_ERR_CORRUPT);
      return false;
    }
    return true;
  };
  const auto with_format = [](std::uint32_t format) {
    return [format](const std::string& path) {
      std::fstream(path, std::ios::in | std::ios::out | std::ios::binary)
          .seekp(offsetof(RankControl, format))
          .write(reinterpret_cast<const char*>(&format), sizeof(format));
    };
  };
  const auto resized_to = [](std::size_t bytes) {
    return [bytes](const std::string& path) { std::filesystem::resize_file(path, bytes); };
  };
  EXPECT_TRUE(attaches([](const std::string&) {}));
  EXPECT_TRUE(attaches(with_format(control_format_version)));
  EXPECT_FALSE(attaches(with_format(control_format_version - 1)));
  EXPECT_FALSE(attaches(with_format(control_format_version + 1)));
  EXPECT_TRUE(attaches(resized_to(control_file_bytes)));
  EXPECT_FALSE(attaches(resized_to(page_bytes)));  // all that format 1 had
  EXPECT_FALSE(attaches(resized_to(control_file_bytes - 1)));
  EXPECT_FALSE(attaches(resized_to(control_file_bytes + page_bytes)));
}

TEST(Control, CommunicationLogIsSharedThroughTheFileAndOutlivesBothSides) {
  const TemporaryDirectory temp{test::in_memory};
  {
    Control agent = Control::create(temp.path(), 5);
    CommReader reader(agent.comm());
    Control trainer = Control::attach(UniqueFd(::dup(agent.fd())), 5);
    CommWriter writer(trainer.comm());
    const Control moved = std::move(trainer);
    writer.begin(3, Clock::now());
    EXPECT_TRUE(reader.is_busy());
    std::vector<CommEvent> events;
    EXPECT_TRUE(reader.read(events));
    EXPECT_EQ(events.size(), 1u);
  }
  Control again = Control::attach(temp.path(), 5);
  CommReader reader(again.comm());
  EXPECT_TRUE(reader.is_busy());
  EXPECT_TRUE(CommWriter(again.comm()).end(3, Clock::now()));
  EXPECT_FALSE(reader.is_busy());
  // A new incarnation starts with a fresh file.
  const Control fresh = Control::create(temp.path(), 5);
  EXPECT_EQ(fresh.comm().written, 0u);
  EXPECT_EQ(fresh.comm().channels[3].begun, 0u);
}

}  // namespace
}  // namespace ckpt::arena
