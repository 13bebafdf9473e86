#include "core/record_codec.hpp"

#include <gtest/gtest.h>

#include <functional>

#include "coord/store.hpp"

namespace ckpt::core::record_codec {
namespace {

IncarnationRecord some_record() {
  IncarnationRecord original;
  original.epoch = UINT64_MAX;
  original.incarnation = 3;
  original.world_size = 8;
  original.decision.verdict = Verdict::lost;
  original.decision.checkpoint = {2, CheckpointId::iteration_max};
  original.decision.status_unknown = true;
  original.decision.text = "nodes \"a\" and b\n are gone";
  original.restored = {2, 5};
  original.base = {2, 4};
  original.first_commit = {1, 0};
  original.assignments = {3, 8, UINT64_MAX};
  original.strategy = placement::Strategy::sharded_copy;
  original.protection = {2, 8, 2};
  return original;
}

AssignmentsRecord some_assignments() {
  AssignmentsRecord record;
  for (Rank rank = 0; rank < 8; ++rank)
    record.assignments.push_back({rank, rank / 4, UINT64_MAX - rank, "rack 1/\"b\"", "model",
                                  "rank" + std::to_string(rank) + ".private", rank + 1, rank % 2 == 1});
  return record;
}

TEST(RecordCodec, DecodesRecordsAsEncoded) {
  EXPECT_EQ(incarnation_record(to_text(some_record())), some_record());
  EXPECT_EQ(incarnation_record(to_text(IncarnationRecord{})), IncarnationRecord{});
  const LeaderRecord leader{7, 3, 1234};
  EXPECT_EQ(leader_record(to_text(leader)), leader);
  EXPECT_EQ(leader_record(to_text(LeaderRecord{})), LeaderRecord{});
  EXPECT_EQ(assignments_record(to_text(some_assignments())), some_assignments());
  EXPECT_EQ(assignments_record(to_text(AssignmentsRecord{})), AssignmentsRecord{});
}

TEST(RecordCodec, TextsThatAreNotUtf8CanBeWritten) {
  auto original = some_record();
  original.decision.text = "\xff\xfe broken";
  EXPECT_TRUE(incarnation_record(to_text(original)));
}

TEST(RecordCodec, RefusesTextsThatAreNoRecord) {
  for (const char* text :
       {"", "null", "[]", "{}", "12", "{\"epoch\": 1, \"node\": 2}", "{\"epoch\": -1, \"node\": 2, \"heartbeat\": 3}",
        "{\"epoch\": 1, \"node\": 4294967296, \"heartbeat\": 3}", "{\"epoch\": 1.5, \"node\": 2, \"heartbeat\": 3}",
        "{\"epoch\": \"1\", \"node\": 2, \"heartbeat\": 3}", "[[[[[[[["})
    EXPECT_EQ(leader_record(text), std::nullopt) << text;
  EXPECT_EQ(incarnation_record("{}"), std::nullopt);
  for (const char* text :
       {"", "{}", "[]", "{\"assignments\": {}}", "{\"assignments\": [{}]}", "{\"assignments\": [1]}"})
    EXPECT_EQ(assignments_record(text), std::nullopt) << text;
}

TEST(RecordCodec, EveryPrefixOfARecordIsRefused) {
  const std::string text = to_text(some_record());
  for (std::size_t length = 0; length < text.size(); ++length)
    EXPECT_EQ(incarnation_record(text.substr(0, length)), std::nullopt) << length;
  const std::string assignments = to_text(some_assignments());
  for (std::size_t length = 0; length < assignments.size(); ++length)
    EXPECT_EQ(assignments_record(assignments.substr(0, length)), std::nullopt) << length;
}

TEST(RecordCodec, AcceptsOnlyPossibleShardsAndPartsInAssignments) {
  const auto with = [](const std::function<void(RankAssignment&)>& change) {
    auto record = some_assignments();
    change(record.assignments[3]);
    return assignments_record(to_text(record)).has_value();
  };
  EXPECT_TRUE(with([](auto&) {}));
  EXPECT_FALSE(with([](auto& assignment) { assignment.main_shard = "../model"; }));
  EXPECT_FALSE(with([](auto& assignment) { assignment.private_shard = ""; }));
  EXPECT_FALSE(with([](auto& assignment) { assignment.restored_parts = 0; }));
  EXPECT_FALSE(with([](auto& assignment) { assignment.restored_parts = parts_max + 1; }));
  EXPECT_TRUE(with([](auto& assignment) { assignment.takes = {{"rank7", 2}}; }));
  EXPECT_FALSE(with([](auto& assignment) { assignment.takes = {{"../rank7", 2}}; }));
  EXPECT_FALSE(with([](auto& assignment) { assignment.takes = {{"rank7", 0}}; }));
}

TEST(RecordCodec, FullRecordOfAssignmentsFitsWithTheLongestNames) {
  const RankAssignment longest{UINT32_MAX,           UINT32_MAX - 1,       UINT64_MAX, std::string(256, 'd'),
                               std::string(64, 'm'), std::string(64, 'p'), parts_max};
  const AssignmentsRecord record{std::vector(assignments_per_record, longest)};
  EXPECT_LE(to_text(record).size(), coord::value_bytes_max);
  RankAssignment taking = longest;
  taking.takes.resize(taken_shards_max, {std::string(64, 's'), parts_max});
  const AssignmentsRecord smaller{std::vector(taking_assignments_per_record, taking)};
  EXPECT_LE(to_text(smaller).size(), coord::value_bytes_max);
}

TEST(RecordCodec, ReadsTheIncarnationOnlyFromKeysOfAssignments) {
  const std::string key = assignments_key({7, 100'000, UINT64_MAX}, 97);
  EXPECT_TRUE(coord::is_key(key)) << key;
  EXPECT_GE(key, coord::unwatched_from);
  EXPECT_EQ(incarnation_of_assignments(key), 7u);
  EXPECT_NE(key, assignments_key({7, 100'000, UINT64_MAX}, 98));
  EXPECT_NE(key, assignments_key({7, 100'000, UINT64_MAX - 1}, 97));
  for (const char* other : {"incarnation", "rank_assignments/", "rank_assignments/7", "rank_assignments/a.b.c",
                            "rank_assignments/.1.2", "nodes/7.1.2"})
    EXPECT_EQ(incarnation_of_assignments(other), std::nullopt) << other;
}

TEST(RecordCodec, UnknownVerdictsAndImpossibleCheckpointsAreRefused) {
  const std::string text = to_text(some_record());
  auto replaced = [&](const std::string& from, const std::string& to) {
    std::string other = text;
    other.replace(other.find(from), from.size(), to);
    return other;
  };
  EXPECT_TRUE(incarnation_record(replaced("lost", "restore")));
  EXPECT_EQ(incarnation_record(replaced("lost", "found")), std::nullopt);
  EXPECT_EQ(incarnation_record(
                replaced(std::to_string(CheckpointId::iteration_max), std::to_string(CheckpointId::iteration_max + 1))),
            std::nullopt);
}

TEST(RecordCodec, RequiresAssignmentsAndAPlacementOfABegunIncarnation) {
  const auto with = [](const std::function<void(IncarnationRecord&)>& change) {
    auto original = some_record();
    original.decision.verdict = Verdict::fresh;
    change(original);
    return incarnation_record(to_text(original)).has_value();
  };
  EXPECT_TRUE(with([](auto&) {}));
  EXPECT_TRUE(with([](auto& original) { original.strategy.reset(); }));
  EXPECT_FALSE(with([](auto& original) { original.assignments.count = 7; }));
  EXPECT_FALSE(with([](auto& original) { original.assignments.incarnation = 2; }));
  EXPECT_TRUE(with([](auto& original) { original.protection = placement::Protection::of_parity(4, 1); }));
  EXPECT_FALSE(with([](auto& original) { original.protection.copies = 0; }));
  EXPECT_FALSE(with([](auto& original) { original.protection.rows = 9; }));
  EXPECT_FALSE(with([](auto& original) { original.protection.members = 2; }));
  auto text = to_text(some_record());
  const std::string strategy(placement::name(placement::Strategy::sharded_copy));
  text.replace(text.find(strategy), strategy.size(), "everywhere");
  EXPECT_EQ(incarnation_record(text), std::nullopt);
}

}  // namespace
}  // namespace ckpt::core::record_codec
