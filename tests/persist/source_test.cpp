#include "persist/source.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <latch>
#include <thread>

#include "memory_file_system.hpp"
#include "persist/read_queue.hpp"
#include "persist/storage_source.hpp"
#include "support.hpp"

namespace ckpt::persist::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using Part = Choice::Part;

constexpr std::uint64_t length = 1000;

ShardOffer offer_of(const std::string& shard, std::vector<ByteRange> ranges = {{0, length}}, std::uint64_t digest = 7) {
  return {shard, length, digest, std::move(ranges)};
}
Offer whole(Version version) { return {version, 2, {offer_of("rank0"), offer_of("rank1")}}; }

std::optional<Choice> choose_of(std::vector<Listing> listings) { return choose(listings, two_shards); }

TEST(Choosing, TheNewestVersionThatIsWholeWinsWhoeverHasIt) {
  const Listing memory{{whole({1, 5})}, {}}, storage{{whole({1, 4})}, {}}, save{{whole({1, 6})}, {}};
  EXPECT_EQ(choose_of({memory, storage})->version, Version(1, 5));
  EXPECT_EQ(choose_of({{}, storage})->version, Version(1, 4));
  const auto choice = choose_of({memory, storage, save});
  EXPECT_EQ(choice->version, Version(1, 6));
  EXPECT_EQ(choice->world_size, 2u);
  EXPECT_THAT(choice->shards.at("rank1"), ElementsAre(Part{2, {0, length}}));
  EXPECT_FALSE(choose_of({{}, {}}));
}

TEST(Choosing, ANewerVersionWithAShardOrARangeMissingIsPassedOver) {
  const Listing storage{{whole({1, 4})}, {}};
  EXPECT_EQ(choose_of({{{{{1, 6}, 2, {offer_of("rank0")}}}, {}}, storage})->version, Version(1, 4));
  const Listing with_a_hole{{{{1, 6}, 2, {offer_of("rank0", {{0, 400}, {401, 599}}), offer_of("rank1")}}}, {}};
  EXPECT_EQ(choose_of({with_a_hole, storage})->version, Version(1, 4));
  const Listing beyond_the_end{{{{1, 6}, 2, {offer_of("rank0", {{1001, UINT64_MAX}}), offer_of("rank1")}}}, {}};
  EXPECT_EQ(choose_of({beyond_the_end, storage})->version, Version(1, 4));
}

TEST(Choosing, SourcesMakeUpForEachOthersGapsAndTheFirstIsPreferred) {
  const Listing parts{{{{1, 6}, 2, {offer_of("rank0", {{100, 200}, {700, 300}}), offer_of("rank1")}}}, {}};
  const Listing storage{{whole({1, 6})}, {}};
  const auto choice = choose_of({parts, storage});
  ASSERT_TRUE(choice);
  EXPECT_THAT(choice->shards.at("rank0"),
              ElementsAre(Part{1, {0, 100}}, Part{0, {100, 200}}, Part{1, {300, 400}}, Part{0, {700, 300}}));
  EXPECT_THAT(choice->shards.at("rank1"), ElementsAre(Part{0, {0, length}}));
}

TEST(Choosing, SourcesThatDisagreeOnAShardAreNotMixed) {
  const Listing a{{{{1, 6}, 2, {offer_of("rank0", {{0, 500}}, 1), offer_of("rank1")}}}, {}};
  const Listing b{{{{1, 6}, 2, {offer_of("rank0", {{500, 500}}, 2), offer_of("rank1")}}}, {}};
  EXPECT_FALSE(choose_of({a, b}));
  const Listing c{{{{1, 6}, 2, {offer_of("rank0", {{0, length}}, 2)}}}, {}};
  EXPECT_THAT(choose_of({a, b, c})->shards.at("rank0"), ElementsAre(Part{2, {0, 500}}, Part{1, {500, 500}}));
}

TEST(Choosing, AnEmptyShardNeedsNoBytesButAnOffer) {
  const Listing empty{{{{1, 6}, 2, {{"rank0", 0, 3, {}}, offer_of("rank1")}}}, {}};
  EXPECT_TRUE(choose_of({empty})->shards.at("rank0").empty());
}

TEST(Choosing, WhatProvedBadIsWithdrawnAndTheNextBestIsChosen) {
  std::vector<Listing> listings = {{{whole({1, 6}), whole({1, 5})}, {}}, {{whole({1, 6})}, {}}};
  withdraw(listings[0], "rank1", {1, 6});
  EXPECT_THAT(choose(listings, two_shards)->shards.at("rank1"), ElementsAre(Part{1, {0, length}}));
  withdraw(listings[1], "rank1", {1, 6});
  EXPECT_EQ(choose(listings, two_shards)->version, Version(1, 5));
}

// Sources may tell anything: whatever is chosen covers each shard without gap and overlap with what was offered.
TEST(Choosing, CoversEveryByteOnceWithWhatWasOffered) {
  std::mt19937_64 random(3);
  int found = 0;
  for (int round = 0; round < 3000; ++round) {
    std::vector<Listing> listings(3);
    for (Listing& listing : listings) {
      Offer& offer = listing.offers.emplace_back(Offer{{1, 6}, 2, {}});
      ShardOffer& shard = offer.shards.emplace_back(offer_of("rank0", {}));
      for (std::uint64_t i = random() % 8; i > 0; --i) {
        shard.ranges.push_back({random() % 3 == 0 ? 0 : random() % 1100, random() % 700});
      }
    }
    const std::vector<std::string> needed = {"rank0"};
    std::vector<bool> offered(length);
    const auto has = [&](std::size_t source, std::uint64_t at) {
      const auto& ranges = listings[source].offers[0].shards[0].ranges;
      return std::any_of(ranges.begin(), ranges.end(), [&](const ByteRange& range) {
        return at >= range.offset_bytes && at - range.offset_bytes < range.size_bytes;
      });
    };
    bool possible = true;
    for (std::uint64_t at = 0; at < length; ++at) possible = possible && (has(0, at) || has(1, at) || has(2, at));
    const auto choice = choose(listings, needed);
    ASSERT_EQ(choice.has_value(), possible);
    if (!choice) continue;
    ++found;
    std::uint64_t next = 0;
    for (const Part& part : choice->shards.at("rank0")) {
      ASSERT_EQ(part.range.offset_bytes, next);
      for (; next < part.range.offset_bytes + part.range.size_bytes; ++next) {
        ASSERT_TRUE(has(part.source, next));
        for (std::size_t earlier = 0; earlier < part.source; ++earlier) ASSERT_FALSE(has(earlier, next));
      }
    }
    ASSERT_EQ(next, length);
  }
  EXPECT_GT(found, 100);
}

// A source that healthy replicas might be: whole shards in memory.
class FakeSource : public Source {
 public:
  explicit FakeSource(std::vector<Sample> samples) : samples_(std::move(samples)) {}
  std::string name() const override { return "the replicas"; }
  Listing list() override {
    Listing listing;
    for (const Sample& sample : samples_) {
      const arena::Manifest& manifest = *sample.piece.manifest;
      if (listing.offers.empty() || listing.offers.back().version != manifest.version)
        listing.offers.push_back({manifest.version, manifest.world_size, {}});
      listing.offers.back().shards.push_back(
          {manifest.shard, manifest.length_bytes, manifest.root_digest, {{0, manifest.length_bytes}}});
    }
    return listing;
  }
  arena::Manifest manifest(const std::string& shard, Version version) override {
    return *find(shard, version).manifest;
  }
  void read(const std::string& shard, Version version, ByteRange range, std::byte* destination) override {
    std::memcpy(destination, find(shard, version).data + range.offset_bytes, range.size_bytes);
  }

 private:
  const Piece& find(const std::string& shard, Version version) const {
    for (const Sample& sample : samples_)
      if (sample.piece.manifest->shard == shard && sample.piece.manifest->version == version) return sample.piece;
    throw Failure(CKPT_ERR_LOST, "the replicas have no such shard");
  }
  std::vector<Sample> samples_;
};

class Restoring : public testing::Test {
 protected:
  std::shared_ptr<Disk> disk_ = std::make_shared<Disk>();
  MemoryFileSystem files_{disk_};

  std::unique_ptr<Source> storage() const {
    return std::make_unique<StorageSource>(std::make_unique<MemoryFileSystem>(disk_), "job");
  }

  // As an agent does it: the version and the bytes of both shards, and what was withdrawn on the way.
  std::optional<Version> restore(const std::vector<Source*>& sources, std::vector<std::string>& problems) const {
    std::vector<Listing> listings;
    for (Source* source : sources) listings.push_back(source->list());
    for (;;) {
      const auto choice = choose(listings, two_shards);
      if (!choice) return std::nullopt;
      if (brings_home(*choice, sources, listings, problems)) return choice->version;
    }
  }

  static bool brings_home(const Choice& choice, const std::vector<Source*>& sources, std::vector<Listing>& listings,
                          std::vector<std::string>& problems) {
    for (const auto& [shard, parts] : choice.shards) {
      for (const Part& part : parts) {
        std::vector<std::byte> bytes(part.range.size_bytes);
        try {
          sources[part.source]->read(shard, choice.version, part.range, bytes.data());
        } catch (const Failure& failure) {
          problems.emplace_back(failure.what());
          withdraw(listings[part.source], shard, choice.version);
          return false;
        }
        const auto expected = sample(shard, choice.version).bytes;
        EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(), expected.begin() + part.range.offset_bytes));
      }
    }
    return true;
  }
};

TEST_F(Restoring, AnotherSourceWinsWhenItIsNewestAndUsable) {
  write_step(files_, {1, 4});
  std::vector<std::string> problems;
  const auto from_storage = storage();
  FakeSource replicas({sample("rank0", {1, 6}), sample("rank1", {1, 6})});
  FakeSource one_replica({sample("rank0", {1, 7})});
  EXPECT_EQ(restore({from_storage.get(), &replicas, &one_replica}, problems), Version(1, 6));
  EXPECT_EQ(restore({from_storage.get(), &one_replica}, problems), Version(1, 4));
  EXPECT_THAT(problems, testing::IsEmpty());
}

TEST_F(Restoring, AStepThatProvesDamagedWhileItIsReadGivesWayToTheNextBest) {
  write_step(files_, {1, 4});
  write_step(files_, {1, 6});
  disk_->bytes("job/step-00000006/rank1.1.safetensors")[5000] ^= 1;
  std::vector<std::string> problems;
  EXPECT_EQ(restore({storage().get()}, problems), Version(1, 4));
  EXPECT_THAT(problems, ElementsAre(HasSubstr("step-00000006/rank1.1.safetensors is damaged")));
  problems.clear();
  FakeSource one_replica({sample("rank1", {1, 6})});
  EXPECT_EQ(restore({storage().get(), &one_replica}, problems), Version(1, 6));
}

TEST_F(Restoring, StorageTellsWhatItSkips) {
  write_step(files_, {1, 4});
  writer_on(files_).write(sample("rank0", {1, 6}).piece);
  const Listing listing = storage()->list();
  EXPECT_EQ(listing.offers.size(), 1u);
  EXPECT_THAT(listing.problems, ElementsAre(HasSubstr("step-00000006 has no manifest.json")));
}

TEST_F(Restoring, AStepRemovedMeanwhileIsALossAndNotACrash) {
  write_step(files_, {1, 4});
  const auto source = storage();
  source->list();
  remove_step(files_, "job", 4);
  EXPECT_THROW(source->manifest("rank0", {1, 4}), Failure);
  EXPECT_THROW(storage()->manifest("rank0", {1, 4}), Failure);
}

// Waits for what a queue reports.
template <class T>
class Answer {
 public:
  void give(T value) {
    value_ = std::move(value);
    given_.count_down();
  }
  T take() {
    given_.wait();
    return std::move(value_);
  }

 private:
  T value_{};
  std::latch given_{1};
};

class ReadingInTheBackground : public Restoring {
 protected:
  SourceFactory factory() {
    return [disk = disk_](std::stop_token stop) {
      FileSystemOptions options{.queue_depth = 4, .block_bytes = 65536};
      options.stop = std::move(stop);
      return std::make_unique<StorageSource>(std::make_unique<MemoryFileSystem>(disk, options), "job");
    };
  }
};

TEST_F(ReadingInTheBackground, ALargeReadIsSpreadOverThreadsAndReportedOnce) {
  const auto layout = arena::pack({tensor("w", CKPT_U8, {70'000'001})});
  const Sample large = sample("large", {1, 1}, layout);
  StepWriter writer = writer_on(files_);
  writer.write(large.piece);
  writer.commit({1, 1}, 2, {"large"});
  ReadQueue queue(factory(), {.threads = 3});
  Answer<Listing> listed;
  queue.list([&](const ReadOutcome& outcome, Listing found) {
    EXPECT_TRUE(outcome.ok()) << outcome.sentence;
    listed.give(std::move(found));
  });
  const Listing listing = listed.take();
  EXPECT_THAT(listing.problems, testing::IsEmpty());
  ASSERT_EQ(listing.offers.size(), 1u);
  EXPECT_EQ(listing.offers.front().version, Version(1, 1));
  Answer<arena::Manifest> described;
  queue.manifest("large", {1, 1}, [&](const ReadOutcome&, arena::Manifest found) { described.give(std::move(found)); });
  EXPECT_EQ(described.take(), *large.piece.manifest);
  for (const ByteRange range : {ByteRange{0, large.bytes.size()}, {12'345, 60'000'000}, {5, 0}}) {
    std::vector<std::byte> bytes(range.size_bytes);
    Answer<ReadOutcome> read;
    queue.read("large", {1, 1}, range, bytes.data(), [&](const ReadOutcome& outcome) { read.give(outcome); });
    EXPECT_TRUE(read.take().ok());
    EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(), large.bytes.begin() + range.offset_bytes));
  }
}

TEST_F(ReadingInTheBackground, AFailureIsReportedWithItsSentence) {
  write_step(files_, {1, 1});
  disk_->bytes("job/step-00000001/rank0.1.safetensors")[5000] ^= 1;
  ReadQueue queue(factory(), {});
  std::vector<std::byte> bytes(100);
  Answer<ReadOutcome> read;
  queue.read("rank0", {1, 1}, {0, 100}, bytes.data(), [&](const ReadOutcome& outcome) { read.give(outcome); });
  const ReadOutcome outcome = read.take();
  EXPECT_EQ(outcome.status, CKPT_ERR_CORRUPT);
  EXPECT_THAT(outcome.sentence, HasSubstr("leaf 0"));
}

TEST_F(ReadingInTheBackground, ACancelEndsWhatWaitsAndLaterRequestsAreServed) {
  write_step(files_, {1, 1});
  std::latch held(1), release(1);
  std::atomic<bool> hold{true};
  disk_->fault = [&](std::size_t, const std::string& operation, const std::string&) {
    if (operation == "list" && hold.exchange(false)) {
      held.count_down();
      release.wait();
    }
    return 0;
  };
  ReadQueue queue(factory(), {.threads = 1, .requests_max = 2});
  Answer<ReadOutcome> running, waiting, refused, later;
  queue.list([&](const ReadOutcome& outcome, const Listing&) { running.give(outcome); });
  held.wait();
  queue.list([&](const ReadOutcome& outcome, const Listing&) { waiting.give(outcome); });
  queue.list([](const ReadOutcome&, const Listing&) {});
  queue.list([&](const ReadOutcome& outcome, const Listing&) { refused.give(outcome); });
  EXPECT_EQ(refused.take().status, CKPT_ERR_NO_SPACE);
  queue.cancel();
  EXPECT_EQ(waiting.take().status, CKPT_ERR_DISCARDED);
  queue.list([&](const ReadOutcome& outcome, const Listing&) { later.give(outcome); });
  release.count_down();
  EXPECT_EQ(running.take().status, CKPT_ERR_DISCARDED);
  EXPECT_TRUE(later.take().ok());
}

}  // namespace
}  // namespace ckpt::persist::test
