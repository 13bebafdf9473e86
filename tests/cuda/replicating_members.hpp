// The members of a replication group with their replicators, for tests of GPU replication.
#pragma once

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "gpu_replication/cuda_replicator.hpp"
#include "nccl.hpp"
#include "packed_tensors.hpp"

namespace ckpt::testing_support {

using device::CudaReplicator;
using device::NcclComm;
using device::PinnedMemory;

inline constexpr std::uint32_t buffers = 3;
inline constexpr std::size_t leaves = 11;

// One member: its replicator, and what its callbacks reported.
class ReplicatingMember {
 public:
  ReplicatingMember(const nccl::UniqueId& id, std::uint32_t members, std::uint32_t member,
                    const CudaReplicator::Settings& settings)
      : piece_(tensors(10 * member, leaves)), member_(member), members_(members), settings_(settings) {
    for (std::uint32_t i = 0; i < members; ++i) {
      slots_.push_back(std::make_unique<PinnedMemory>(piece_.bytes().size()));
      std::fill_n(slots_.back()->as<std::byte>(), piece_.bytes().size(), blank);
    }
    auto owned = std::make_shared<int>();
    owned_ = owned;
    replicator_ =
        std::make_unique<CudaReplicator>(0, CudaReplicator::Group{id, members, member}, settings, nullptr,
                                         [this, owned = std::move(owned)](const std::string& why, bool is_stuck) {
                                           const std::lock_guard lock(mutex_);
                                           why_ = why;
                                           is_stuck_ = is_stuck;
                                           ++failures_;
                                         });
  }
  CudaReplicator& replicator() const { return *replicator_; }
  // Of the exchange that was begun last.
  void allow(std::uint64_t steps) const { replicator_->allow(number_, steps); }
  std::uint64_t number() const { return number_; }
  bool begin() {
    return begin([](std::uint64_t) {});
  }
  bool begin(const std::function<void(std::uint64_t first_byte)>& beside) {
    std::vector<std::byte*> to;
    for (const auto& slot : slots_) to.push_back(slot->as<std::byte>());
    const schedule::ExchangePlan plan({std::vector<std::uint64_t>(members_, piece_.bytes().size()),
                                       settings_.exchange.reserved_bytes, buffers, leaf_bytes});
    const auto fill = [this, beside, pack = piece_.fill()](const device::CudaExchange::Chunk& chunk, CUstream stream) {
      beside(chunk.first_byte);
      const auto filling = pack(chunk, stream);
      ++filled_;
      return filling;
    };
    in_sub_buffers_ = received_ = 0;
    const bool has_begun = replicator_->begin({number_ + 1, plan, fill, std::move(to),
                                               [this](std::uint64_t filled, std::uint64_t received) {
                                                 in_sub_buffers_ = filled;
                                                 received_ = received;
                                               },
                                               [this] { ++done_; }});
    steps_ = plan.steps();
    if (has_begun) ++number_;
    return has_begun;
  }
  bool has(const ReplicatingMember& other) const {
    const std::byte* const at = slots_[other.member_]->as<std::byte>();
    return std::equal(other.piece_.bytes().begin(), other.piece_.bytes().end(), at);
  }
  bool has_nothing() const {
    return std::all_of(slots_.begin(), slots_.end(), [this](const auto& slot) {
      const std::byte* const at = slot->template as<std::byte>();
      return std::all_of(at, at + piece_.bytes().size(), [](std::byte byte) { return byte == blank; });
    });
  }
  int filled() const { return filled_; }
  int done() const { return done_; }
  // Of the exchange that was begun last: steps that there are, and what it has told.
  std::uint64_t steps() const { return steps_; }
  std::uint64_t in_sub_buffers() const { return in_sub_buffers_; }
  std::uint64_t received() const { return received_; }
  int failures() const {
    const std::lock_guard lock(mutex_);
    return failures_;
  }
  // What was told, sooner or later.
  std::string why() const {
    EXPECT_TRUE(eventually([&] { return failures() != 0; }));
    const std::lock_guard lock(mutex_);
    return why_;
  }
  bool is_stuck() const {
    const std::lock_guard lock(mutex_);
    return is_stuck_;
  }
  void leave() { replicator_.reset(); }
  // No thread of the replicator is left: what it was given goes with the last one.
  bool gone() const { return owned_.expired(); }

 private:
  static constexpr std::byte blank{0x5A};

  PackedTensors piece_;
  const std::uint32_t member_, members_;
  const CudaReplicator::Settings settings_;
  std::vector<std::unique_ptr<PinnedMemory>> slots_;
  std::uint64_t number_ = 0, steps_ = 0;
  std::atomic<int> filled_{0}, done_{0};
  std::atomic<std::uint64_t> in_sub_buffers_{0}, received_{0};
  mutable std::mutex mutex_;
  std::string why_;
  bool is_stuck_ = false;
  int failures_ = 0;
  std::weak_ptr<int> owned_;
  std::unique_ptr<CudaReplicator> replicator_;
};

class CudaReplicatorTest : public NcclTest {
 protected:
  CudaReplicatorTest() {
    settings_.exchange = {buffers * 2 * leaf_bytes, 50'000};
    settings_.meet_timeout_ms = settings_.end_timeout_ms = 50'000;
  }
  void TearDown() override {
    reset_nccl();
    if (has_buttons()) buttons().reset();
    for (const auto& replicating_member : replicating_members_) replicating_member->leave();
    EXPECT_TRUE(all_gone());
    replicating_members_.clear();
    NcclTest::TearDown();
  }
  bool all_gone() const {
    return eventually([&] {
      return std::all_of(replicating_members_.begin(), replicating_members_.end(),
                         [](const auto& one) { return one->gone(); });
    });
  }
  void join(std::uint32_t members) {
    const nccl::UniqueId id = NcclComm::new_id();
    for (std::uint32_t i = 0; i < members; ++i)
      replicating_members_.push_back(std::make_unique<ReplicatingMember>(id, members, i, settings_));
  }
  void begin_all() {
    for (const auto& replicating_member : replicating_members_) ASSERT_TRUE(replicating_member->begin());
  }
  void allow_all(std::uint64_t steps) {
    for (const auto& replicating_member : replicating_members_) replicating_member->allow(steps);
  }
  bool all_done(int times) {
    return eventually([&] {
      return std::all_of(replicating_members_.begin(), replicating_members_.end(),
                         [&](const auto& one) { return one->done() == times; });
    });
  }
  // All have met and wait to be allowed a step: sub-buffers are filled only then.
  void join_and_begin(std::uint32_t members) {
    join(members);
    begin_all();
    ASSERT_TRUE(eventually([&] {
      return std::all_of(replicating_members_.begin(), replicating_members_.end(),
                         [](const auto& one) { return one->filled() != 0; });
    }));
  }
  // The second exchange of one that is alone, of which everything is enqueued that may be, and nothing is filled.
  void hold_what_is_filled() {
    join(1);
    begin_all();
    allow_all(UINT64_MAX);
    ASSERT_TRUE(all_done(1));
    const int filled = replicating_member(0).filled();
    buttons().hold(CKPT_DOUBLE_KERNEL, 1);
    begin_all();
    ASSERT_TRUE(eventually([&] { return replicating_member(0).filled() == filled + static_cast<int>(buffers); }));
  }
  // A step of one that is alone hangs, and as soon as it is issued the driver answers nobody: with all sub-buffers
  // filled, to issue it takes NCCL alone.
  void hang_in_the_driver(ckpt_double_calls how) {
    join_and_begin(1);
    ASSERT_TRUE(eventually([&] { return replicating_member(0).in_sub_buffers() == buffers; }));
    const auto groups_before = nccl_buttons().groups();
    nccl_buttons().hang(0, 1);
    buttons().hold_calls(how);
    replicating_member(0).allow(UINT64_MAX);
    ASSERT_TRUE(eventually([&] { return nccl_buttons().groups() != groups_before && buttons().held_calls() == 1; }));
  }
  // The GPU holds a copy, NCCL a step after it, and NCCL says that something is wrong.
  void fail_with_a_copy_under_way() {
    join_and_begin(1);
    const auto sent_before = nccl_buttons().sent_bytes();
    buttons().hold(CKPT_DOUBLE_TO_HOST, 1);
    replicating_member(0).allow(2);
    ASSERT_TRUE(eventually([&] { return nccl_buttons().sent_bytes() == sent_before + 2 * leaf_bytes; }));
    nccl_buttons().hang(0, 1);
    replicating_member(0).allow(3);
    nccl_buttons().fail(0, nccl::system_error);
  }
  const ReplicatingMember& replicating_member(std::size_t i) const { return *replicating_members_[i]; }

  CudaReplicator::Settings settings_;
  std::vector<std::unique_ptr<ReplicatingMember>> replicating_members_;
};

// A test with two members. It is skipped with a real NCCL, which would need two GPUs.
class CudaReplicatorOfTwoTest : public CudaReplicatorTest {
 protected:
  void SetUp() override {
    CudaReplicatorTest::SetUp();
    if (!IsSkipped() && !has_nccl_buttons()) GTEST_SKIP() << "needs as many GPUs as members";
  }
};

}  // namespace ckpt::testing_support
