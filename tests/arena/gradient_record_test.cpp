#include "arena/gradient_record.hpp"

#include <gtest/gtest.h>

#include <cstring>

#include "base/error.hpp"
#include "pieces.hpp"
#include "tests/support/temporary_directory.hpp"

namespace ckpt::arena {
namespace {

constexpr std::uint64_t piece_length = 3 * 40 + 24;

// Ten float32 with two moments, and 24 bytes that the step does not compute.
GradientRecord sample() {
  GradientRecord record;
  record.base = {2, 6};
  record.checkpoint = {2, 7};
  record.piece_bytes = piece_length;
  record.layout_hash = 99;
  record.torch_version = "2.13.0+cpu";
  record.steps = {kernels::adam_step({.weight_decay = 0.1, .decoupled_weight_decay = true}, 3,
                                     {kernels::TorchForm::fused, kernels::TorchCapability::avx2})};
  record.updated = {{10, 0, 0, 40, 80, 0, 0, 0, false}};
  record.copied = {{120, 0, 24}};
  const std::uint64_t head = description_bytes(record);
  record.updated[0].gradient_at = head;
  record.copied[0].record_at = head + 40;
  return record;
}

std::vector<std::byte> with_data(const GradientRecord& record) {
  auto bytes = encode(record);
  bytes.resize(bytes.size() + 64);
  return bytes;
}

bool is_refused(const GradientRecord& record) {
  try {
    decode_record(with_data(record));
    return false;
  } catch (const Failure& failure) {
    return failure.status() == CKPT_ERR_CORRUPT;
  }
}

TEST(GradientRecord, SurvivesEncodingAndDecoding) {
  const GradientRecord record = sample();
  const GradientRecord read = decode_record(with_data(record));
  EXPECT_EQ(read.base, record.base);
  EXPECT_EQ(read.checkpoint, record.checkpoint);
  EXPECT_EQ(read.torch_version, record.torch_version);
  EXPECT_EQ(read.updated[0].second_moment_at, 80u);
  EXPECT_EQ(read.steps, record.steps);
  EXPECT_EQ(encode(read), encode(record));
}

TEST(GradientRecord, HoldsStepsOfAllOptimizers) {
  GradientRecord record = sample();
  record.steps.push_back(kernels::sgd_step({.momentum = 0.9, .dampening = 0.1, .nesterov = true}, false, {}));
  record.steps.push_back(GradientRecord::CountedStep{{.learning_rate = 0.3, .beta1 = 0.8, .maximize = true}});
  record.steps.push_back(kernels::adam_step({}, 3, {kernels::TorchForm::unfused, kernels::TorchCapability::cuda}));
  record.updated[0].gradient_at = description_bytes(record);
  record.copied[0].record_at = description_bytes(record) + 40;
  EXPECT_EQ(decode_record(with_data(record)).steps, record.steps);
}

TEST(GradientRecord, CoversOnlyTensorsOfTheStep) {
  const auto is_refused_with = [](const GradientRecord::Step& step, auto change) {
    GradientRecord record = sample();
    record.steps = {step};
    change(record.updated[0]);
    const std::uint64_t shift = description_bytes(record) - record.updated[0].gradient_at;
    record.updated[0].gradient_at += shift;
    record.copied[0].record_at += shift;
    return is_refused(record);
  };
  const auto nothing = [](auto&) {};
  const auto sgd = kernels::sgd_step({.momentum = 0.9}, false, {});
  EXPECT_TRUE(is_refused_with(sgd, nothing)) << "nobody writes the last third";
  EXPECT_FALSE(is_refused_with(GradientRecord::CountedStep{}, nothing));
  EXPECT_TRUE(is_refused_with(GradientRecord::CountedStep{}, [](auto& u) { u.count_at = piece_length - 3; }));
  EXPECT_TRUE(is_refused_with(GradientRecord::CountedStep{{.amsgrad = true}}, nothing));
}

TEST(GradientRecord, IsRefusedUnlessItWritesEachByteOfThePieceOnce) {
  EXPECT_FALSE(is_refused(sample()));
  const auto changed = [](auto change) {
    GradientRecord record = sample();
    change(record);
    return record;
  };
  EXPECT_TRUE(is_refused(changed([](auto& r) { r.updated[0].first_moment_at = 0; }))) << "twice";
  EXPECT_TRUE(is_refused(changed([](auto& r) { r.copied[0].size_bytes = 23; }))) << "not all";
  EXPECT_TRUE(is_refused(changed([](auto& r) { r.copied[0].piece_at = 124; }))) << "beyond the end";
  EXPECT_TRUE(is_refused(changed([](auto& r) { r.copied[0].record_at = UINT64_MAX; })));
  EXPECT_TRUE(is_refused(changed([](auto& r) { r.updated[0].gradient_at += 1; })));
  EXPECT_TRUE(is_refused(changed([](auto& r) { r.updated[0].elements = UINT64_MAX / 2; })));
  EXPECT_TRUE(is_refused(changed([](auto& r) { r.updated[0].step = 1; })));
  const auto rounds = [](GradientRecord & r) -> auto& { return std::get<kernels::AdamStep>(r.steps[0]).arithmetic; };
  EXPECT_TRUE(is_refused(changed([&](auto& r) { rounds(r).vector_elements = 0; })));
  EXPECT_TRUE(is_refused(changed([&](auto& r) { rounds(r).rest = static_cast<kernels::Rounding>(5); })));
}

TEST(GradientRecord, IsRefusedWhereverItIsCutOffOrChanged) {
  const auto whole = with_data(sample());
  for (std::size_t size = 0; size + 64 < whole.size(); ++size)
    EXPECT_THROW(decode_record(std::span(whole).first(size)), Failure) << size;
  for (std::size_t at = 0; at < whole.size() - 64; ++at) {
    auto bytes = whole;
    bytes[at] ^= std::byte{0x80};
    try {
      decode_record(bytes);  // what it cannot notice, such as another factor, the digests of the piece show
    } catch (const Failure& failure) {
      EXPECT_EQ(failure.status(), CKPT_ERR_CORRUPT);
    }
  }
}

class RecordInSlot : public testing::Test {
 protected:
  RecordInSlot()
      : segment_(Segment::create(directory_.path() + "/segment",
                                 {.kind = SegmentKind::local,
                                  .rank = 0,
                                  .slots = 1,
                                  .shard = "shard",
                                  .data_capacity_bytes = bytes_with_record(length),
                                  .manifest_capacity_bytes = manifest_bytes(bytes_with_record(length), 4096),
                                  .slots_max = 1},
                                 1)) {}

  void write(CheckpointId checkpoint, std::size_t record_bytes) {
    auto slot = segment_.writable_slot(0);
    slot.begin();
    const auto data = piece_bytes(checkpoint, length);
    std::copy(data.begin(), data.end(), slot.data());
    if (record_bytes != 0) {
      const auto place = slot.record_place(length, record_bytes);
      ASSERT_TRUE(place);
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(place->data) % 64, 0u);
      std::memset(place->data, 7, record_bytes);
      kernels::digest_leaves(place->data, record_bytes, place->digests);
      slot.seal_record(checkpoint, length, record_bytes);
    }
    EXPECT_FALSE(slot.record()) << "before the piece is sealed";
    slot.seal(piece_manifest("shard", checkpoint, length));
  }

  static constexpr std::uint64_t length = 300'001;
  test::TemporaryDirectory directory_{test::in_memory};
  Segment segment_;
};

TEST_F(RecordInSlot, IsFoundWithItsPieceAndDroppedWithIt) {
  write({1, 1}, 100'000);
  const auto record = segment_.slot(0).record();
  ASSERT_TRUE(record);
  EXPECT_EQ(record->data.size(), 100'000u);
  EXPECT_FALSE(kernels::verify_leaves(record->data.data(), record->data.size(), 0, record->digests.size(),
                                      record->digests.data()));
  EXPECT_TRUE(piece_is_whole(segment_.slot(0), *segment_.slot(0).read()));
  write({1, 2}, 0);
  EXPECT_FALSE(segment_.slot(0).record());
}

TEST_F(RecordInSlot, IsNotFoundIfADigestOrThePieceDiffers) {
  write({1, 1}, 100'000);
  auto slot = segment_.writable_slot(0);
  auto* const digests = slot.record_place(length, 100'000)->digests;
  digests[1] ^= 1;
  EXPECT_FALSE(slot.record());
  digests[1] ^= 1;
  EXPECT_TRUE(slot.record());
  slot.drop({1, 1});
  EXPECT_FALSE(slot.record());
}

TEST_F(RecordInSlot, IsRefusedIfItExceedsTheSlot) {
  auto slot = segment_.writable_slot(0);
  EXPECT_TRUE(slot.record_place(length, record_bytes_max(length)));
  EXPECT_FALSE(slot.record_place(length, 2 * length));
  EXPECT_FALSE(slot.record_place(length, UINT64_MAX - 7));
  EXPECT_FALSE(slot.record_place(UINT64_MAX - 7, 1));
}

}  // namespace
}  // namespace ckpt::arena
