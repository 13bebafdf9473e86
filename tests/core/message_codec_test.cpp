#include "core/message_codec.hpp"

#include <gtest/gtest.h>

#include <random>

namespace ckpt::core {
namespace {

PieceInfo some_piece(std::uint64_t n) { return {"shard" + std::to_string(n), {n + 1, 7}, n << 33, 200 + n, ~n, 16}; }

PieceInfo some_parity() {
  PieceInfo piece = some_piece(3);
  piece.parity_manifest = {2, 1, {{"rank0", 100, 7, 8}, {}, {"rank2", UINT32_MAX, 0, UINT64_MAX}}};
  return piece;
}

Report some_report() {
  Report report;
  report.node = 3;
  report.arena_id = UINT64_MAX;
  report.agent_id = 0x0123456789abcdef;
  report.sequence = 42;
  report.epoch = 5;
  report.highest_commit = {2, 100};
  report.newest_seen = {2, CheckpointId::iteration_max};
  report.ranks = {{0, 99, 2, 16, "rank0", "rank0.private", true, 101, -1, 7},
                  {held_rank - 1, 1, 0, 16, "dp.shard-1", "x.private", false, -1, 102, 0}};
  report.pieces = {some_piece(0), some_piece(1), some_parity()};
  report.storage = true;
  report.written = {{2, 90}, 4, {"rank0"}, "no space"};
  report.damaged = {{1, 80}};
  report.read_trouble = "a server is away";
  report.ranks[0].is_stopped = true;
  report.ranks[1].failed = 5;
  report.protection = {2, 8, 2};
  report.fetch_trouble = FetchTrouble::corrupt;
  report.fetch_source = 6;
  report.newest_known_incarnation = 17;
  report.coordination_fails = true;
  report.ranks[1].computing_ms = 250;
  report.ranks[1].freeze = {7, Freeze::captured, 101};
  report.ranks[0].freeze_at = 101;
  report.ranks[1].reports_trouble = true;
  report.in_trouble = {{0, 2, RankTrouble::stopped, 'T', 100, 7, 3200, 0},
                       {1, 2, RankTrouble::dead, 0, -1, std::nullopt, INT64_MAX, 0}};
  return report;
}

Directive some_directive() {
  Directive directive;
  directive.leader = 1;
  directive.epoch = 9;
  directive.sequence = 8;
  directive.relay = 5;
  directive.incarnation = 3;
  directive.decision.verdict = Verdict::restore;
  directive.decision.checkpoint = {2, 100};
  directive.decision.behind = true;
  directive.decision.text = "iteration 101 is lost:\nnodes \"a\" and b are missing";
  directive.committed = {3, 101};
  directive.abandoned = {{3, 102}, {3, 104}};
  directive.resume_at = 105;
  directive.decision.cuts = {{"model", 8}};
  directive.admitted = {{0, 99, {}, ReplicationGroup{{}, 0, "ranks share it"}},
                        {1, 98, Share{7, 8, 2}, ReplicationGroup{{{3, 1, "a"}, {4, 9, "b"}}, 1, ""}}};
  directive.health = {Standing::degraded,
                      Cause::rank_fails,
                      3,
                      7,
                      5,
                      "so it said",
                      {3, 100},
                      12,
                      1,
                      2,
                      3,
                      4,
                      5000,
                      6000,
                      7000,
                      8000,
                      9,
                      1000,
                      true};
  directive.refused = {{2, 97, true, 3, "rank 2 was superseded"}};
  directive.fetches = {{some_piece(4), {0, 2, 5}, {}}, {some_piece(5), {}, {}}};
  const PieceInfo parity = some_parity();
  directive.fetches.push_back({parity, {parity_node}, CodingInputs{parity.parity_manifest, {{"dp.0of2", 7}}}});
  directive.parity_now = 2;
  directive.wanted = {"shard1", "shard2"};
  directive.missing_ranks = {4, 5};
  directive.missing_nodes = {6};
  directive.copies_now = 2;
  directive.alarm = "ranks disagree";
  directive.suspicion = {{{6, {3, 2, RankTrouble::slow, 'R', 40, 6, 0, 1000}}}, 17, 2, 40, 7, true, 200};
  directive.halt = {3,
                    8,
                    40,
                    {{6, {3, 2, RankTrouble::dead, 0, 40, 6, 100, 0}}},
                    16,
                    14,
                    {{3, 6, Freeze::none, -1}, {5, 7, Freeze::refused, 39}},
                    true,
                    4,
                    7};
  return directive;
}

const std::vector<WireMessage> all_kinds = {
    some_report(),
    Report{},
    some_directive(),
    Directive{},
    VerifyRequest{"shard", {1, 2}},
    ReplicationUpdate{3, 1, 2, std::vector<std::uint8_t>(128, 7), 4, 5, 6, 7, 8, true},
    ReplicationUpdate{},
    ReportBatch{{some_report(), {}}},
    ReportBatch{},
    DirectiveBatch{{{4, some_directive()}, {5, {}}}},
    DirectiveBatch{}};

TEST(MessageCodec, DecodesEveryMessageAsEncoded) {
  for (const WireMessage& message : all_kinds) EXPECT_EQ(decode(encode(message)), message) << message.index();
}

TEST(MessageCodec, RefusesTruncatedMessages) {
  for (const WireMessage& message : all_kinds) {
    const auto bytes = encode(message);
    for (std::size_t length = 0; length < bytes.size(); ++length)
      EXPECT_EQ(decode(std::span(bytes).first(length)), std::nullopt) << length;
  }
}

TEST(MessageCodec, RefusesTrailingBytes) {
  for (const WireMessage& message : all_kinds) {
    auto bytes = encode(message);
    bytes.push_back(std::byte{0});
    EXPECT_EQ(decode(bytes), std::nullopt);
  }
}

TEST(MessageCodec, OtherFormatsAndKindsAreRefused) {
  auto bytes = encode(VerifyRequest{"shard", {1, 2}});
  for (const int position : {0, 1}) {
    auto other = bytes;
    other[static_cast<std::size_t>(position)] = std::byte{77};
    EXPECT_EQ(decode(other), std::nullopt);
  }
}

TEST(MessageCodec, RefusesInvalidShardNames) {
  for (const char* name : {"", "..", "a/b", "a b", "x\n"}) {
    EXPECT_EQ(decode(encode(VerifyRequest{name, {1, 2}})), std::nullopt) << name;
    Directive directive;
    directive.wanted = {"good", name};
    EXPECT_EQ(decode(encode(directive)), std::nullopt) << name;
  }
}

TEST(MessageCodec, RefusesACountBeyondTheMessageWithoutAllocating) {
  auto bytes = encode(Report{});
  // What follows the number of pieces.
  const std::size_t behind = bytes.size() - sizeof(Report::directive) - sizeof(Report::roll_call);
  for (std::size_t i = behind - 4; i < behind; ++i) bytes[i] = std::byte{0xff};
  EXPECT_EQ(decode(bytes), std::nullopt);
}

TEST(MessageCodec, RefusesABatchCountBeyondTheMessageWithoutAllocating) {
  for (const WireMessage& batch : {WireMessage(ReportBatch{}), WireMessage(DirectiveBatch{})}) {
    auto bytes = encode(batch);
    for (std::size_t i = bytes.size() - 4; i < bytes.size(); ++i) bytes[i] = std::byte{0xff};
    EXPECT_EQ(decode(bytes), std::nullopt);
  }
}

TEST(MessageCodec, RefusesABatchWithAnInvalidReport) {
  Report report = some_report();
  report.pieces[0].shard = "a/b";
  EXPECT_EQ(decode(encode(ReportBatch{{some_report(), report}})), std::nullopt);
  Directive directive;
  directive.wanted = {".."};
  EXPECT_EQ(decode(encode(DirectiveBatch{{{1, some_directive()}, {2, directive}}})), std::nullopt);
}

TEST(MessageCodec, RefusesImpossibleReplicationGroups) {
  const auto is_message = [](std::size_t members, std::uint32_t member, const std::string& shard,
                             std::uint32_t rows = 0) {
    Directive directive;
    directive.admitted = {{0, 1, {}, ReplicationGroup{{members, {1, 2, shard}}, member, "", rows}}};
    return decode(encode(directive)).has_value();
  };
  EXPECT_TRUE(is_message(0, 0, "a") && is_message(2, 1, "a") && is_message(32, 31, "a"));
  EXPECT_FALSE(is_message(1, 0, "a"));
  EXPECT_FALSE(is_message(33, 0, "a"));
  EXPECT_FALSE(is_message(3, 3, "a"));
  EXPECT_FALSE(is_message(3, 0, "../a"));
  EXPECT_TRUE(is_message(2, 1, "a", 1) && is_message(32, 1, "a", 4));
  EXPECT_FALSE(is_message(2, 1, "a", 2));
  EXPECT_FALSE(is_message(32, 1, "a", 5));
  EXPECT_FALSE(is_message(0, 0, "a", 1));
}

TEST(MessageCodec, RefusesImpossibleShares) {
  for (const Share share : {Share{0, 0, 0}, {2, 2, 1}, {0, 2, 3}, {0, 8, 4}, {0, 100'000, 1}}) {
    Directive directive;
    directive.admitted = {{0, 1, share}};
    EXPECT_EQ(decode(encode(directive)), std::nullopt) << share.first << " " << share.of << " " << share.stored;
  }
  Directive directive;
  directive.decision.cuts = {{"model", 0}};
  EXPECT_EQ(decode(encode(directive)), std::nullopt);
}

TEST(MessageCodec, MutatedMessagesAreRefusedOrDecodeToValidOnes) {
  std::mt19937_64 random(1);
  for (int round = 0; round < 20000; ++round) {
    auto bytes = encode(all_kinds[random() % all_kinds.size()]);
    for (std::uint64_t changes = 1 + random() % 4; changes > 0; --changes)
      bytes[random() % bytes.size()] = static_cast<std::byte>(random());
    if (const auto message = decode(bytes)) {
      EXPECT_EQ(encode(*message).size(), bytes.size());
    }
  }
}

TEST(MessageCodec, RefusesRandomBytes) {
  std::mt19937_64 random(2);
  for (int round = 0; round < 20000; ++round) {
    std::vector<std::byte> bytes(random() % 300);
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
    if (bytes.size() >= 2) bytes[0] = std::byte{1}, bytes[1] = static_cast<std::byte>(random() % 3);
    if (const auto message = decode(bytes)) {
      EXPECT_EQ(encode(*message), bytes);
    }
  }
}

}  // namespace
}  // namespace ckpt::core
