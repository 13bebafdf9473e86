// Pieces that are loaded while they arrive.
#include "client/early_load.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include "arena/node_arena.hpp"
#include "device/host_device.hpp"
#include "engine_fixture.hpp"
#include "kernels/digest.hpp"

namespace ckpt::client {
namespace {

using arena::Manifest;
using kernels::leaf_size_bytes;

// Lets a test do something while leaves are copied.
class InterruptedDevice : public device::HostDevice {
 public:
  using HostDevice::HostDevice;
  std::optional<std::size_t> load_leaves(const device::Plan& plan, device::ConstPacked from, std::size_t first_leaf,
                                         std::size_t last_leaf) override {
    const auto bad = HostDevice::load_leaves(plan, from, first_leaf, last_leaf);
    leaves_read += last_leaf - first_leaf;
    if (interrupt) interrupt();
    return bad;
  }
  std::function<void()> interrupt;
  std::size_t leaves_read = 0;
};

class EarlyLoadTest : public testing::Test {
 protected:
  const CheckpointId first{1, 1}, second{1, 2};

  EarlyLoadTest() {
    for (TestTensor& tensor : tensors_) registry_.add(tensor.abi(), device_);
    load_.emplace(device_, registry_.state());
  }

  // The agent's side: a piece with known bytes arrives in a slot.
  class Arriving {
   public:
    Arriving(arena::Segment& segment, std::uint32_t slot, const Manifest& manifest, std::vector<std::byte> bytes)
        : slot_(segment.writable_slot(slot)), manifest_(manifest), bytes_(std::move(bytes)) {}
    void begin() {
      slot_.begin();
      slot_.announce(manifest_);
    }
    void land(std::size_t leaves) {
      const std::size_t size = std::min(leaves * leaf_size_bytes, bytes_.size());
      std::copy_n(bytes_.begin(), size, slot_.data());
      arrived(leaves);
    }
    void arrived(std::size_t leaves) {
      slot_.arrived(std::min(leaves * leaf_size_bytes, bytes_.size()));
      slot_.ring_arrival();
    }
    void damage(std::size_t leaf) { slot_.data()[leaf * leaf_size_bytes + 17] ^= std::byte{1}; }
    void fail() { slot_.withdraw(); }
    const Manifest& manifest() const { return manifest_; }
    const std::vector<std::byte>& bytes() const { return bytes_; }

   private:
    arena::WritableSlot slot_;
    Manifest manifest_;
    std::vector<std::byte> bytes_;
  };

  const ShardState& state_of(bool is_private) {
    return is_private ? registry_.state().private_ : registry_.state().main;
  }
  Arriving arriving(const std::string& shard, CheckpointId checkpoint, std::uint32_t slot = 0) {
    const bool is_private = shard.ends_with("private");
    const ShardState& state = state_of(is_private);
    const auto range = arena::range_of(core::parse_part(shard), state.length_bytes());
    std::vector<std::byte> bytes(range.size_bytes);
    std::uint64_t random = checkpoint.word() + shard.size();
    for (std::byte& byte : bytes) byte = static_cast<std::byte>((random = random * 6364136223846793005u + 1) >> 56);
    Manifest manifest{shard, checkpoint, range.size_bytes, 0, 1, state.layout_hash, state.layout_text, {}};
    manifest.leaves.resize(kernels::leaf_count(range.size_bytes));
    kernels::digest_leaves(bytes.data(), bytes.size(), manifest.leaves.data());
    manifest.root_digest = kernels::root_digest(manifest.leaves, bytes.size());
    auto [segment, is_new] = segments_.try_emplace(shard);
    if (is_new)
      segment->second.emplace(arena_.create_segment(
          {arena::SegmentKind::held, 0, 2, shard, bytes.size(), arena::manifest_bytes(bytes.size(), 4096), 2}, 1));
    return {*segment->second, slot, manifest, std::move(bytes)};
  }
  void follow(const Arriving& piece, std::uint32_t slot = 0) {
    const std::string& shard = piece.manifest().shard;
    auto segment = arena::Segment::attach(UniqueFd(::dup(segments_.at(shard)->fd())), arena::Segment::Access::read, "");
    load_->follow({std::move(segment), slot, piece.manifest().checkpoint, shard.ends_with("private")});
  }
  // Copies all that has arrived.
  void step() {
    for (int i = 0; i < 3; ++i) load_->step();
  }
  std::size_t loaded(const Arriving& piece) const { return load_->leaves_loaded(piece.manifest()); }
  // Whether the tensors of the shard have the piece's bytes in these leaves of the shard.
  bool tensors_hold(const Arriving& piece, std::size_t first_leaf, std::size_t last_leaf) {
    const auto range = arena::range_of(core::parse_part(piece.manifest().shard),
                                       state_of(piece.manifest().shard.ends_with("private")).length_bytes());
    const auto& tensor = tensors_[piece.manifest().shard.ends_with("private") ? 1 : 0].bytes;
    const std::size_t begin = first_leaf * leaf_size_bytes;
    const std::size_t end = std::min(last_leaf * leaf_size_bytes, piece.bytes().size());
    return std::equal(piece.bytes().begin() + static_cast<std::ptrdiff_t>(begin),
                      piece.bytes().begin() + static_cast<std::ptrdiff_t>(end),
                      tensor.begin() + static_cast<std::ptrdiff_t>(range.first_byte + begin));
  }

  test::TemporaryDirectory directory_{test::in_memory};
  arena::NodeArena arena_{directory_.path() + "/node", "job", "node"};
  std::map<std::string, std::optional<arena::Segment>> segments_;
  InterruptedDevice device_{1};
  std::vector<TestTensor> tensors_ = {test_tensor("w", CKPT_U8, {10 * leaf_size_bytes + 123}),
                                      test_tensor("rng", CKPT_U8, {2 * leaf_size_bytes}, CKPT_SYNCHRONOUS)};
  TensorRegistry registry_{"rank0", "rank0.private"};
  std::optional<EarlyLoad> load_;
};

TEST_F(EarlyLoadTest, LoadsLeavesBeforeThePieceIsComplete) {
  auto piece = arriving("rank0", first);
  follow(piece);
  EXPECT_TRUE(load_->step()) << "nothing is announced yet";
  EXPECT_FALSE(load_->has_changed_tensors());
  piece.begin();
  piece.land(5);
  step();
  EXPECT_EQ(loaded(piece), 5u);
  EXPECT_TRUE(tensors_hold(piece, 0, 5));
  EXPECT_FALSE(tensors_hold(piece, 5, 6));
  EXPECT_TRUE(load_->has_changed_tensors());
  EXPECT_TRUE(load_->step()) << "the rest is still arriving";
  piece.land(11);
  step();
  EXPECT_EQ(loaded(piece), 11u);
  EXPECT_TRUE(tensors_hold(piece, 0, 11));
  EXPECT_FALSE(load_->step());
}

TEST_F(EarlyLoadTest, DoesNotCountALeafDamagedAfterItsVerification) {
  auto piece = arriving("rank0", first);
  follow(piece);
  piece.begin();
  piece.land(11);
  piece.damage(4);
  step();
  EXPECT_EQ(loaded(piece), 4u);
  EXPECT_FALSE(load_->step()) << "the restore itself finds out what is wrong";
}

TEST_F(EarlyLoadTest, LoadsOnlyMissingLeavesAfterAFailedTransfer) {
  auto piece = arriving("rank0", first);
  follow(piece);
  piece.begin();
  piece.land(6);
  step();
  piece.fail();
  step();
  EXPECT_FALSE(load_->step());
  EXPECT_EQ(loaded(piece), 6u);

  auto again = arriving("rank0", first, 1);  // in another slot, from another source
  follow(again, 1);
  again.begin();
  again.land(11);
  again.damage(2);  // it is not read again
  step();
  EXPECT_EQ(loaded(again), 11u);
  EXPECT_EQ(device_.leaves_read, 11u);
  EXPECT_TRUE(tensors_hold(again, 0, 11));
}

// What is read may be a mix of old and new bytes.
TEST_F(EarlyLoadTest, DoesNotCountLeavesCopiedWhileTheSlotIsEmptied) {
  auto piece = arriving("rank0", first);
  follow(piece);
  piece.begin();
  piece.land(4);
  step();
  piece.land(8);
  device_.interrupt = [&] { piece.begin(); };
  step();
  EXPECT_EQ(loaded(piece), 4u);
}

TEST_F(EarlyLoadTest, PieceOfAnotherCheckpointReplacesLoadedLeaves) {
  auto old = arriving("rank0", first), next = arriving("rank0", second, 1);
  follow(old);
  old.begin();
  old.land(5);
  step();
  follow(next, 1);
  next.begin();
  next.land(3);
  step();
  EXPECT_EQ(loaded(next), 3u);
  EXPECT_EQ(loaded(old), 0u) << "its leaves are overwritten";
  old.land(11);
  next.land(11);
  step();
  EXPECT_EQ(loaded(old), 0u) << "nobody follows it any more";
  EXPECT_TRUE(tensors_hold(next, 0, 11));
}

TEST_F(EarlyLoadTest, PartsAndThePrivateShardAreLoadedSideBySide) {
  auto begin = arriving("rank0.0of2", first), end = arriving("rank0.1of2", first),
       private_ = arriving("rank0.private", first);
  for (auto* piece : {&begin, &end, &private_}) {
    follow(*piece);
    piece->begin();
    piece->land(2);
  }
  step();
  for (auto* piece : {&begin, &end, &private_}) {
    EXPECT_EQ(loaded(*piece), 2u) << piece->manifest().shard;
    EXPECT_TRUE(tensors_hold(*piece, 0, 2)) << piece->manifest().shard;
  }
}

TEST_F(EarlyLoadTest, AnotherDivisionOfTheShardReplacesLoadedLeaves) {
  auto part = arriving("rank0.1of2", first), whole = arriving("rank0", first);
  follow(part);
  part.begin();
  part.land(2);
  step();
  follow(whole);
  whole.begin();
  whole.land(1);
  step();
  EXPECT_EQ(loaded(part), 0u);
  EXPECT_EQ(loaded(whole), 1u);
}

TEST_F(EarlyLoadTest, IgnoresAPieceThatDoesNotFitTheTensors) {
  auto piece = arriving("rank0", first);
  TestTensor more = test_tensor("x", CKPT_U8, {1});
  registry_.add(more.abi(), device_);
  load_.emplace(device_, registry_.state());
  follow(piece);
  piece.begin();
  piece.land(11);
  step();
  EXPECT_EQ(loaded(piece), 0u);
  EXPECT_FALSE(load_->has_changed_tensors());
}

TEST_F(EarlyLoadTest, IgnoresAnotherPieceInTheNamedSlot) {
  auto other = arriving("rank0", first), named = arriving("rank0", second);
  other.begin();
  other.land(11);
  follow(named);
  step();
  EXPECT_FALSE(load_->has_changed_tensors());
  named.begin();
  named.land(11);
  step();
  EXPECT_EQ(loaded(named), 11u);
}

TEST_F(EarlyLoadTest, ForgetsLoadedLeavesAfterOtherWritesToTheTensors) {
  auto piece = arriving("rank0", first);
  follow(piece);
  piece.begin();
  piece.land(5);
  step();
  load_->forget();
  piece.land(11);
  step();
  EXPECT_EQ(loaded(piece), 0u);
  EXPECT_TRUE(load_->has_changed_tensors());
}

}  // namespace
}  // namespace ckpt::client
