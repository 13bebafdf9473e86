#include "arena/segment.hpp"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstring>
#include <fstream>
#include <random>

#include "base/error.hpp"
#include "pieces.hpp"
#include "tests/support/temporary_directory.hpp"

namespace ckpt::arena {
namespace {

using test::TemporaryDirectory;
using testing::HasSubstr;
using Access = Segment::Access;

SegmentSpec small_spec() { return {SegmentKind::local, 3, 3, "rank3", 200'000, manifest_bytes(200'000, 1000), 4}; }

std::uint64_t memory_bytes(const std::string& path) {
  struct stat file {};
  return ::stat(path.c_str(), &file) == 0 ? static_cast<std::uint64_t>(file.st_blocks) * 512 : 0;
}

std::string refusal_to_open(const std::string& path) {
  try {
    Segment::attach(path, Access::read);
  } catch (const Failure& failure) {
    EXPECT_EQ(failure.status(), CKPT_ERR_CORRUPT);
    return failure.what();
  }
  return "attached";
}

class SegmentTest : public testing::Test {
 protected:
  TemporaryDirectory directory_{test::in_memory};
  std::string path_ = directory_ / "0.segment";
  Segment segment_ = Segment::create(path_, small_spec(), 2);
};

TEST_F(SegmentTest, AttachedSegmentMatchesTheCreatedOne) {
  const Segment attached = Segment::attach(path_, Access::read);
  EXPECT_EQ(attached.spec().kind, SegmentKind::local);
  EXPECT_EQ(attached.spec().rank, 3u);
  EXPECT_EQ(attached.spec().slots, 3u);
  EXPECT_EQ(attached.spec().shard, "rank3");
  EXPECT_GE(attached.spec().data_capacity_bytes, 200'000u);
  EXPECT_EQ(attached.spec().data_capacity_bytes % page_bytes, 0u);
  for (std::uint32_t i = 0; i < 3; ++i) EXPECT_FALSE(attached.slot(i).read());
}

TEST_F(SegmentTest, FindsASealedPieceWithItsManifest) {
  const CheckpointId checkpoint(2, 17);
  store_piece(segment_.writable_slot(1), "rank3", checkpoint, 150'001);
  const Segment attached = Segment::attach(path_, Access::read);
  const auto manifest = attached.slot(1).read();
  ASSERT_TRUE(manifest);
  EXPECT_EQ(*manifest, piece_manifest("rank3", checkpoint, 150'001));
  EXPECT_TRUE(piece_is_whole(attached.slot(1), *manifest));
  EXPECT_FALSE(attached.slot(0).read());
  EXPECT_FALSE(attached.slot(2).read());
}

TEST_F(SegmentTest, CountsASlotOnlyOnceItsMemoryIsReserved) {
  EXPECT_EQ(memory_bytes(path_), segment_.size_bytes());
  const std::uint64_t before = segment_.size_bytes();
  store_piece(segment_.writable_slot(2), "rank3", CheckpointId(2, 17), 150'001);
  segment_.grow(4, 2);
  EXPECT_EQ(segment_.size_bytes(), before + slot_bytes(segment_.spec()));
  EXPECT_EQ(memory_bytes(path_), segment_.size_bytes());
  EXPECT_EQ(segment_.slots(), 4u);
  EXPECT_TRUE(segment_.slot(2).read());
  EXPECT_FALSE(segment_.slot(3).read());
  EXPECT_EQ(Segment::attach(path_, Access::read).slots(), 4u);
}

TEST_F(SegmentTest, AttachedTrainerUsesASlotAddedLater) {
  Segment trainer = Segment::attach(path_, Access::write);
  EXPECT_FALSE(trainer.notice_growth());
  segment_.grow(4, 1);
  EXPECT_EQ(trainer.slots(), 3u);
  EXPECT_TRUE(trainer.notice_growth());
  store_piece(trainer.writable_slot(3), "rank3", CheckpointId(2, 18), 200'000);
  EXPECT_TRUE(segment_.slot(3).read());
}

TEST_F(SegmentTest, FreesMemoryOfASlotThatWasNeverCounted) {
  const std::uint64_t before = memory_bytes(path_);
  store_piece(segment_.writable_slot(2), "rank3", CheckpointId(2, 17), 150'001);
  segment_.grow(4, 1);
  auto* header = reinterpret_cast<SegmentHeader*>(segment_.mapping().data());
  header->slots_reserved = 3;  // as if the agent had died before it counted the slot
  Segment next = Segment::attach(path_, Access::write);
  EXPECT_EQ(next.slots(), 3u);
  next.release_uncounted();
  EXPECT_EQ(memory_bytes(path_), before);
  EXPECT_TRUE(next.slot(2).read());
}

TEST_F(SegmentTest, RejectsAnImpossibleNumberOfSlots) {
  Segment trainer = Segment::attach(path_, Access::write);
  auto* header = reinterpret_cast<SegmentHeader*>(segment_.mapping().data());
  header->slots_reserved = 5;
  trainer.notice_growth();
  EXPECT_EQ(trainer.slots(), 4u);
  EXPECT_THAT(refusal_to_open(path_), HasSubstr("number of slots is invalid"));
  header->slots_reserved = 0;
  trainer.notice_growth();
  EXPECT_EQ(trainer.slots(), 4u);
}

TEST_F(SegmentTest, ReadsAllSlotsOfThePreviousFormat) {
  segment_.grow(4, 1);
  store_piece(segment_.writable_slot(3), "rank3", CheckpointId(2, 17), 150'001);
  auto* header = reinterpret_cast<SegmentHeader*>(segment_.mapping().data());
  header->format = 4;
  header->slots_reserved = 0;
  EXPECT_TRUE(Segment::attach(path_, Access::read).slot(3).read());
}

TEST_F(SegmentTest, FitsEmptyPiecesAndPiecesOfFullCapacity) {
  store_piece(segment_.writable_slot(0), "rank3", CheckpointId(1, 0), 0);
  EXPECT_EQ(segment_.slot(0).read()->length_bytes, 0u);
  const std::uint64_t most = segment_.spec().data_capacity_bytes;
  store_piece(segment_.writable_slot(1), "rank3", CheckpointId(1, 1), most);
  EXPECT_TRUE(piece_is_whole(segment_.slot(1), *segment_.slot(1).read()));
}

TEST_F(SegmentTest, ASlotBeingWrittenIsEmpty) {
  store_piece(segment_.writable_slot(0), "rank3", CheckpointId(1, 5), 1000);
  segment_.writable_slot(0).begin();
  EXPECT_FALSE(segment_.slot(0).read());
  EXPECT_FALSE(segment_.slot(0).checkpoint());
}

TEST_F(SegmentTest, FindsTheNextPieceButNotTheDroppedOne) {
  store_piece(segment_.writable_slot(0), "rank3", CheckpointId(1, 5), 1000);
  segment_.writable_slot(0).drop(CheckpointId(1, 5));
  EXPECT_FALSE(Segment::attach(path_, Access::read).slot(0).read());
  store_piece(segment_.writable_slot(0), "rank3", CheckpointId(1, 8), 1000);
  EXPECT_EQ(Segment::attach(path_, Access::read).slot(0).checkpoint(), CheckpointId(1, 8));
}

TEST_F(SegmentTest, RejectsSealedFieldsThatExceedTheSlot) {
  const std::uint64_t too_long = segment_.spec().data_capacity_bytes + 1;
  for (const SealedFields& fields : {SealedFields{CheckpointId(1, 1).word(), too_long, 0, 2, layout_hash("{}"), 1},
                                     SealedFields{CheckpointId(1, 1).word(), UINT64_MAX, 0, 2, layout_hash("{}"), 1},
                                     SealedFields{CheckpointId(1, 1).word(), 0, 0,
                                                  segment_.spec().manifest_capacity_bytes + 1, layout_hash("{}"), 1},
                                     SealedFields{CheckpointId(1, 1).word(), 0, 0, UINT64_MAX, layout_hash("{}"), 1}}) {
    auto* header = reinterpret_cast<SlotHeader*>(segment_.mapping().data() + page_bytes);
    header->checkpoint = fields.checkpoint;
    header->length_bytes = fields.length_bytes;
    header->root_digest = fields.root_digest;
    header->layout_bytes = fields.layout_bytes;
    header->layout_hash = fields.layout_hash;
    header->world_size = fields.world_size;
    header->seal = seal_of(fields);
    EXPECT_FALSE(segment_.slot(0).read());
  }
}

// What `call` fails with; "" if it does not.
template <class Call>
std::string defect(Call call) {
  try {
    call();
  } catch (const Failure& failure) {
    return failure.status() == CKPT_ERR_INTERNAL ? failure.what() : "another failure";
  }
  return "";
}

SealedFields fields_of(const Manifest& manifest) {
  return {manifest.checkpoint.word(), manifest.length_bytes, 0,
          manifest.layout.size(),     manifest.layout_hash,  manifest.world_size};
}

TEST_F(SegmentTest, RefusesASlotBeyondTheSegmentsEnd) {
  EXPECT_EQ(defect([&] { segment_.slot(2); }), "");
  EXPECT_THAT(defect([&] { segment_.slot(3); }), HasSubstr("beyond the end of its segment"));
  EXPECT_THAT(defect([&] { segment_.writable_slot(3); }), HasSubstr("beyond the end of its segment"));
}

TEST_F(SegmentTest, RefusesToSealOverAPieceThatWasNotDropped) {
  store_piece(segment_.writable_slot(0), "rank3", CheckpointId(1, 5), 1000);
  const Manifest next = piece_manifest("rank3", CheckpointId(1, 6), 1000);
  EXPECT_THAT(defect([&] { segment_.writable_slot(0).seal(next); }), HasSubstr("without being emptied first"));
  EXPECT_THAT(defect([&] { segment_.writable_slot(0).seal(fields_of(next)); }),
              HasSubstr("without being emptied first"));
  EXPECT_EQ(segment_.slot(0).checkpoint(), CheckpointId(1, 5));
}

TEST_F(SegmentTest, RefusesToSealASlotTwice) {
  const Manifest manifest = piece_manifest("rank3", CheckpointId(1, 6), 0);
  WritableSlot slot = segment_.writable_slot(0);
  slot.begin();
  EXPECT_EQ(defect([&] { slot.seal(manifest); }), "");
  EXPECT_THAT(defect([&] { slot.seal(manifest); }), HasSubstr("without being emptied first"));
}

TEST_F(SegmentTest, APieceThatIsLargerThanItsSlotIsNotSealed) {
  Manifest manifest = piece_manifest("rank3", CheckpointId(1, 6), 0);
  WritableSlot slot = segment_.writable_slot(0);
  slot.begin();
  SealedFields fields = fields_of(manifest);
  fields.length_bytes = segment_.spec().data_capacity_bytes + 1;
  EXPECT_THAT(defect([&] { slot.seal(fields); }), HasSubstr("larger than its slot"));
  manifest.layout.resize(segment_.spec().manifest_capacity_bytes + 1);
  EXPECT_THAT(defect([&] { slot.seal(manifest); }), HasSubstr("larger than its slot"));
  EXPECT_FALSE(segment_.slot(0).read());
}

TEST_F(SegmentTest, RefusesALayoutThatDoesNotFitAndKeepsTheData) {
  WritableSlot slot = segment_.writable_slot(0);
  slot.begin();
  slot.data()[0] = std::byte{7};
  const std::string text(segment_.spec().manifest_capacity_bytes + 1, 'x');
  EXPECT_THAT(defect([&] { slot.write_layout(0, text); }), HasSubstr("too long for its slot's manifest"));
  EXPECT_EQ(slot.data()[0], std::byte{7});
}

TEST_F(SegmentTest, AnyFlippedByteOfHeaderOrManifestIsNoticed) {
  store_piece(segment_.writable_slot(0), "rank3", CheckpointId(1, 5), 130'000);
  std::byte* slot = segment_.mapping().data() + page_bytes;
  const std::size_t manifest_size = 2 * 8 + layout_text(piece_layout(130'000)).size();
  std::vector<std::size_t> places;
  for (std::size_t i = 0; i < 52; ++i) places.push_back(i);
  for (std::size_t i = 0; i < manifest_size; ++i) places.push_back(page_bytes + i);
  for (const std::size_t place : places) {
    slot[place] ^= std::byte{0x10};
    const auto manifest = segment_.slot(0).read();
    EXPECT_FALSE(manifest && piece_is_whole(segment_.slot(0), *manifest)) << "byte " << place;
    slot[place] ^= std::byte{0x10};
  }
  EXPECT_TRUE(segment_.slot(0).read());
}

TEST_F(SegmentTest, UnfinishedCutOffOrForeignFilesAreRefused) {
  auto* header = reinterpret_cast<SegmentHeader*>(segment_.mapping().data());
  header->ready = 0;
  EXPECT_THAT(refusal_to_open(path_), HasSubstr("did not finish it"));
  header->ready = 1;
  header->format = 99;
  EXPECT_THAT(refusal_to_open(path_), HasSubstr("another version's format"));
  header->format = segment_format_version;
  header->slots_max = 3;
  EXPECT_THAT(refusal_to_open(path_), HasSubstr("do not fit the size of the file"));
  header->slots_max = 0;
  EXPECT_THAT(refusal_to_open(path_), HasSubstr("invalid"));
  header->slots_max = 4;
  header->data_capacity_bytes = std::uint64_t{1} << 63;
  EXPECT_THAT(refusal_to_open(path_), HasSubstr("do not fit the size of the file"));
  header->data_capacity_bytes = segment_.spec().data_capacity_bytes;
  std::memset(header->shard, 'x', sizeof(header->shard));
  EXPECT_THAT(refusal_to_open(path_), HasSubstr("valid name"));
  std::strcpy(header->shard, "rank3");
  EXPECT_EQ(refusal_to_open(path_), "attached");

  ASSERT_EQ(::truncate(path_.c_str(), 100), 0);
  EXPECT_THAT(refusal_to_open(path_), HasSubstr("too short"));
  ASSERT_EQ(::truncate(path_.c_str(), 0), 0);
  ASSERT_EQ(::truncate(path_.c_str(), static_cast<off_t>(segment_bytes(small_spec()))), 0);
  EXPECT_THAT(refusal_to_open(path_), HasSubstr("does not begin"));
}

TEST_F(SegmentTest, MemoryThatIsNotReservedIsRefused) {
  const std::string holes = directory_ / "1.segment";
  const UniqueFd file(::open(holes.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  ASSERT_EQ(::ftruncate(file.get(), static_cast<off_t>(segment_.mapping().size_bytes())), 0);
  ASSERT_EQ(::pwrite(file.get(), segment_.mapping().data(), page_bytes, 0), static_cast<ssize_t>(page_bytes));
  EXPECT_THAT(refusal_to_open(holes), HasSubstr("not all memory of its slots is reserved"));
}

TEST_F(SegmentTest, RandomFilesNeverCrashTheReader) {
  std::mt19937_64 random(7);
  for (int round = 0; round < 2000; ++round) {
    store_piece(segment_.writable_slot(0), "rank3", CheckpointId(1, round + 1), 5000);
    const std::size_t where = random() % 3 == 0 ? random() % 512 : page_bytes + random() % (2 * page_bytes);
    const std::byte before = segment_.mapping().data()[where];
    segment_.mapping().data()[where] = static_cast<std::byte>(random());
    try {
      const Segment attached = Segment::attach(path_, Access::read);
      for (std::uint32_t i = 0; i < attached.spec().slots; ++i) attached.slot(i).read();
    } catch (const Failure&) {
    }
    segment_.mapping().data()[where] = before;
  }
}

TEST(SegmentCreate, FailsImmediatelyBeyondFreeSpaceAndLeavesNoFile) {
  const TemporaryDirectory directory{test::in_memory};
  SegmentSpec spec = small_spec();
  spec.data_capacity_bytes = std::uint64_t{1} << 46;
  try {
    Segment::create(directory / "0.segment", spec, 1);
    FAIL() << "64 TiB were reserved";
  } catch (const Failure& failure) {
    EXPECT_EQ(failure.status(), CKPT_ERR_NO_SPACE);
    EXPECT_THAT(failure.what(), testing::AllOf(HasSubstr("cannot reserve"), HasSubstr("arena_dir")));
  }
  EXPECT_TRUE(std::filesystem::is_empty(directory.path()));
}

TEST(ManifestBytes, TravelUnchanged) {
  for (const std::uint64_t bytes : {0ull, 1ull, 65536ull, 65537ull, 1'000'000ull}) {
    const Manifest manifest = piece_manifest("rank0.private", CheckpointId(7, 1), bytes);
    EXPECT_EQ(decode_manifest(encode(manifest)), manifest);
  }
}

TEST(ManifestBytes, EveryPrefixAndEveryFlippedByteIsRefused) {
  const auto bytes = encode(piece_manifest("rank0", CheckpointId(7, 1), 70'000));
  for (std::size_t size = 0; size < bytes.size(); ++size)
    EXPECT_THROW(decode_manifest(std::span(bytes).first(size)), Failure) << size;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    auto flipped = bytes;
    flipped[i] ^= std::byte{1};
    EXPECT_THROW(decode_manifest(flipped), Failure) << i;
  }
}

}  // namespace
}  // namespace ckpt::arena
