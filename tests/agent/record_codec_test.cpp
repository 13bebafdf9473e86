#include "agent/record_codec.hpp"

#include <gtest/gtest.h>

#include <functional>

#include "coord/store.hpp"

namespace ckpt::agent {
namespace {

protocol::LifeRecord some_life() {
  protocol::LifeRecord life;
  life.epoch = UINT64_MAX;
  life.incarnation = 3;
  life.world_size = 8;
  life.decision.verdict = protocol::Verdict::lost;
  life.decision.version = {2, Version::iteration_max};
  life.decision.status_unknown = true;
  life.decision.text = "nodes \"a\" and b\n are gone";
  life.restored = {2, 5};
  life.base = {2, 4};
  life.first_commit = {1, 0};
  life.seats = {3, 8, UINT64_MAX};
  life.strategy = placement::Strategy::sharded_copy;
  life.protection = {2, 8, 2};
  return life;
}

protocol::SeatsRecord some_seats() {
  protocol::SeatsRecord record;
  for (protocol::Rank rank = 0; rank < 8; ++rank)
    record.seats.push_back({rank, rank / 4, UINT64_MAX - rank, "rack 1/\"b\"", "model",
                            "rank" + std::to_string(rank) + ".private", rank + 1, rank % 2 == 1});
  return record;
}

TEST(RecordCodec, RecordsComeBackAsTheyWere) {
  EXPECT_EQ(life_record(to_text(some_life())), some_life());
  EXPECT_EQ(life_record(to_text(protocol::LifeRecord{})), protocol::LifeRecord{});
  const protocol::RootRecord root{7, 3, 1234};
  EXPECT_EQ(root_record(to_text(root)), root);
  EXPECT_EQ(root_record(to_text(protocol::RootRecord{})), protocol::RootRecord{});
  EXPECT_EQ(seats_record(to_text(some_seats())), some_seats());
  EXPECT_EQ(seats_record(to_text(protocol::SeatsRecord{})), protocol::SeatsRecord{});
}

TEST(RecordCodec, TextsThatAreNotUtf8CanBeWritten) {
  auto life = some_life();
  life.decision.text = "\xff\xfe broken";
  EXPECT_TRUE(life_record(to_text(life)));
}

TEST(RecordCodec, WhatIsNoRecordIsRefused) {
  for (const char* text :
       {"", "null", "[]", "{}", "12", "{\"epoch\": 1, \"node\": 2}", "{\"epoch\": -1, \"node\": 2, \"beat\": 3}",
        "{\"epoch\": 1, \"node\": 4294967296, \"beat\": 3}", "{\"epoch\": 1.5, \"node\": 2, \"beat\": 3}",
        "{\"epoch\": \"1\", \"node\": 2, \"beat\": 3}", "[[[[[[[["})
    EXPECT_EQ(root_record(text), std::nullopt) << text;
  EXPECT_EQ(life_record("{}"), std::nullopt);
  for (const char* text : {"", "{}", "[]", "{\"seats\": {}}", "{\"seats\": [{}]}", "{\"seats\": [1]}"})
    EXPECT_EQ(seats_record(text), std::nullopt) << text;
}

TEST(RecordCodec, EveryPrefixOfARecordIsRefused) {
  const std::string text = to_text(some_life());
  for (std::size_t length = 0; length < text.size(); ++length)
    EXPECT_EQ(life_record(text.substr(0, length)), std::nullopt) << length;
  const std::string seats = to_text(some_seats());
  for (std::size_t length = 0; length < seats.size(); ++length)
    EXPECT_EQ(seats_record(seats.substr(0, length)), std::nullopt) << length;
}

TEST(RecordCodec, SeatsNamePlainShardsAndPartsThatThereMayBe) {
  const auto with = [](const std::function<void(protocol::Seat&)>& change) {
    auto record = some_seats();
    change(record.seats[3]);
    return seats_record(to_text(record)).has_value();
  };
  EXPECT_TRUE(with([](auto&) {}));
  EXPECT_FALSE(with([](auto& seat) { seat.main_shard = "../model"; }));
  EXPECT_FALSE(with([](auto& seat) { seat.private_shard = ""; }));
  EXPECT_FALSE(with([](auto& seat) { seat.restored_parts = 0; }));
  EXPECT_FALSE(with([](auto& seat) { seat.restored_parts = protocol::parts_max + 1; }));
}

TEST(RecordCodec, AsManySeatsAsARecordHasFitIntoItWithTheLongestNames) {
  const protocol::Seat longest{UINT32_MAX,           UINT32_MAX - 1,       UINT64_MAX,         std::string(256, 'd'),
                               std::string(64, 'm'), std::string(64, 'p'), protocol::parts_max};
  const protocol::SeatsRecord record{std::vector(protocol::seats_per_record, longest)};
  EXPECT_LE(to_text(record).size(), coord::value_bytes_max);
}

TEST(RecordCodec, KeysOfSeatsTellTheirLifeAndNoOtherKeysDo) {
  const std::string key = seats_key({7, 100'000, UINT64_MAX}, 97);
  EXPECT_TRUE(coord::is_key(key)) << key;
  EXPECT_GE(key, coord::untold_from);
  EXPECT_EQ(life_of_seats(key), 7u);
  EXPECT_NE(key, seats_key({7, 100'000, UINT64_MAX}, 98));
  EXPECT_NE(key, seats_key({7, 100'000, UINT64_MAX - 1}, 97));
  for (const char* other : {"life", "seats/", "seats/7", "seats/a.b.c", "seats/.1.2", "nodes/7.1.2"})
    EXPECT_EQ(life_of_seats(other), std::nullopt) << other;
}

TEST(RecordCodec, UnknownVerdictsAndImpossibleVersionsAreRefused) {
  const std::string text = to_text(some_life());
  auto replaced = [&](const std::string& from, const std::string& to) {
    std::string other = text;
    other.replace(other.find(from), from.size(), to);
    return other;
  };
  EXPECT_TRUE(life_record(replaced("lost", "restore")));
  EXPECT_EQ(life_record(replaced("lost", "found")), std::nullopt);
  EXPECT_EQ(life_record(replaced(std::to_string(Version::iteration_max), std::to_string(Version::iteration_max + 1))),
            std::nullopt);
}

TEST(RecordCodec, ALifeThatBeganHasASeatForEveryRankAndAPlacementThatThereIs) {
  const auto with = [](const std::function<void(protocol::LifeRecord&)>& change) {
    auto life = some_life();
    life.decision.verdict = protocol::Verdict::fresh;
    change(life);
    return life_record(to_text(life)).has_value();
  };
  EXPECT_TRUE(with([](auto&) {}));
  EXPECT_TRUE(with([](auto& life) { life.strategy.reset(); }));
  EXPECT_FALSE(with([](auto& life) { life.seats.count = 7; }));
  EXPECT_FALSE(with([](auto& life) { life.seats.life = 2; }));
  EXPECT_TRUE(with([](auto& life) { life.protection = placement::Protection::of_parity(4, 1); }));
  EXPECT_FALSE(with([](auto& life) { life.protection.copies = 0; }));
  EXPECT_FALSE(with([](auto& life) { life.protection.rows = 9; }));
  EXPECT_FALSE(with([](auto& life) { life.protection.members = 2; }));
  auto text = to_text(some_life());
  const std::string strategy(placement::name(placement::Strategy::sharded_copy));
  text.replace(text.find(strategy), strategy.size(), "everywhere");
  EXPECT_EQ(life_record(text), std::nullopt);
}

}  // namespace
}  // namespace ckpt::agent
