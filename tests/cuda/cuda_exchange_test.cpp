// Pieces from GPU to GPU: they arrive as they were, in bounded memory, and whatever goes wrong is told and leaves
// nothing behind that writes.
#include "gpu_replication/cuda_exchange.hpp"

#include <gmock/gmock.h>

#include <array>
#include <memory>

#include "base/error.hpp"
#include "gpu_replication/parity_place.hpp"
#include "kernels/gf256.hpp"
#include "nccl.hpp"
#include "packed_tensors.hpp"

namespace ckpt::device {
namespace {

using namespace testing_support;
using ::testing::HasSubstr;

constexpr std::uint32_t buffers = 4;
constexpr std::uint64_t reserved_bytes = buffers * 2 * leaf_bytes;  // of two members: a leaf to a chunk

Deadline late() { return Deadline::in_ms(50'000); }

// One member of a group. All of a test are driven by one thread, in turns.
class Member {
 public:
  Member(const nccl::UniqueId& id, std::uint32_t count, std::uint32_t number,
         const std::vector<std::vector<std::byte>>& state, const CudaExchange::Settings& settings)
      : piece_(state),
        comm_(std::make_shared<NcclComm>(id, static_cast<int>(count), static_cast<int>(number))),
        exchange_(std::make_unique<CudaExchange>(comm_, settings)) {}

  const std::vector<std::byte>& bytes() const { return piece_.bytes(); }
  NcclComm& comm() const { return *comm_; }
  CudaExchange& exchange() const { return *exchange_; }
  // To places for pieces of these lengths, which have other bytes in them before.
  void begin(const schedule::ExchangePlan& plan, const std::vector<std::uint64_t>& lengths_bytes) {
    slots_.clear();
    std::vector<std::byte*> to;
    for (const std::uint64_t length_bytes : lengths_bytes) {
      slots_.push_back(std::make_unique<PinnedMemory>(length_bytes + 1));
      std::memset(slots_.back()->as<std::byte>(), 0x5A, length_bytes + 1);
      to.push_back(slots_.back()->as<std::byte>());
    }
    exchange_->begin(plan, piece_.fill(), std::move(to));
  }
  // To a place for its own parity, which has other bytes in it before.
  void begin_parity(const schedule::ExchangePlan& plan, std::uint32_t member) {
    const schedule::ParityPlace place(*plan.parity(), member);
    std::vector<std::byte*> to(plan.members());
    slots_.clear();
    slots_.push_back(std::make_unique<PinnedMemory>(place.size_bytes() + 1));
    std::memset(slots_.back()->as<std::byte>(), 0x5A, place.size_bytes() + 1);
    to[member] = slots_.back()->as<std::byte>();
    exchange_->begin(plan, piece_.fill(), std::move(to));
  }
  std::byte* slot(std::size_t peer) const { return slots_[peer]->as<std::byte>(); }
  bool has(const Member& other, std::size_t peer) const {
    const std::byte* const at = slot(peer);
    return std::equal(other.bytes().begin(), other.bytes().end(), at) && at[other.bytes().size()] == std::byte{0x5A};
  }
  void leave() { exchange_.reset(); }

 private:
  PackedTensors piece_;
  std::vector<std::unique_ptr<PinnedMemory>> slots_;
  std::shared_ptr<NcclComm> comm_;
  std::unique_ptr<CudaExchange> exchange_;
};

class CudaExchangeTest : public NcclTest {
 protected:
  void TearDown() override {
    reset_nccl();
    if (has_buttons()) buttons().reset();
    leave_all();
    members_.clear();
    NcclTest::TearDown();
  }
  // At once: on one GPU the memory of one is only freed when the others have given up, too.
  void leave_all() const {
    std::vector<std::thread> leaving;
    for (const auto& member : members_)
      leaving.emplace_back([&] {
        EXPECT_CUDA(cuCtxSetCurrent(context_));
        member->leave();
      });
    for (std::thread& one : leaving) one.join();
  }
  // A member for each number of leaves, met and begun.
  void join(const std::vector<std::size_t>& leaves, std::uint32_t plan_buffers = buffers) {
    come(leaves, plan_buffers);
    ASSERT_TRUE(eventually([&] { return meet() == members_.size(); }));
    begin(plan_buffers);
  }
  // Only there.
  void come(const std::vector<std::size_t>& leaves, std::uint32_t plan_buffers = buffers) {
    settings_.reserved_bytes = plan_buffers * std::max<std::size_t>(leaves.size(), 2) * leaf_bytes;
    const nccl::UniqueId id = NcclComm::new_id();
    const auto count = static_cast<std::uint32_t>(leaves.size());
    for (std::uint32_t i = 0; i < count; ++i)
      members_.push_back(std::make_unique<Member>(id, count, i, tensors(10 * i, leaves[i]), settings_));
  }
  // How many have met all others.
  std::size_t meet() const {
    return static_cast<std::size_t>(
        std::count_if(members_.begin(), members_.end(), [](const auto& member) { return member->exchange().meet(); }));
  }
  void begin(std::uint32_t plan_buffers = buffers) {
    std::vector<std::uint64_t> lengths_bytes;
    for (const auto& member : members_) lengths_bytes.push_back(member->bytes().size());
    plan_.emplace(schedule::ExchangeRequest{lengths_bytes, settings_.reserved_bytes, plan_buffers, leaf_bytes});
    for (const auto& member : members_) member->begin(*plan_, lengths_bytes);
  }
  CudaExchange& exchange(std::size_t member) const { return members_[member]->exchange(); }
  void allow(std::uint64_t steps) {
    for (const auto& member : members_) member->exchange().allow(steps);
  }
  void advance() {
    for (const auto& member : members_) member->exchange().advance();
  }
  template <class Condition>
  bool advance_until(Condition condition) {
    return eventually([&] {
      advance();
      return condition();
    });
  }
  bool all_over() const {
    return std::all_of(members_.begin(), members_.end(), [](const auto& member) { return member->exchange().over(); });
  }
  bool all_have_all() const {
    for (std::size_t i = 0; i < members_.size(); ++i)
      for (std::size_t peer = 0; peer < members_.size(); ++peer)
        if ((peer != i || members_.size() == 1) && !members_[i]->has(*members_[peer], peer)) return false;
    return true;
  }
  // What advance() throws, sooner or later.
  std::string failure_of(std::size_t member) const {
    std::string words;
    EXPECT_TRUE(eventually([&] {
      try {
        exchange(member).advance();
        return false;
      } catch (const Failure& failure) {
        words = failure.what();
        return true;
      }
    }));
    return words;
  }
  // As many turns as a step that may go on would need, and many more.
  void advance_for_a_while() {
    for (int turn = 0; turn < 300; ++turn) {
      advance();
      std::this_thread::yield();
    }
  }

  CudaExchange::Settings settings_{reserved_bytes, 50'000};
  std::optional<schedule::ExchangePlan> plan_;
  std::vector<std::unique_ptr<Member>> members_;
};

// Where NCCL is a real one they would need as many GPUs as members.
class CudaExchangeOfSeveralTest : public CudaExchangeTest {
 protected:
  void SetUp() override {
    CudaExchangeTest::SetUp();
    if (!IsSkipped() && !has_nccl_buttons()) GTEST_SKIP() << "needs as many GPUs as members";
  }
};

// A group in which each member makes its node's parity.
class CudaParityTest : public CudaExchangeOfSeveralTest {
 protected:
  void join_group(const std::vector<std::size_t>& leaves, std::uint32_t rows, std::uint32_t plan_buffers = buffers) {
    const schedule::StepMemory memory{static_cast<std::uint32_t>(leaves.size()), rows};
    settings_.reserved_bytes = plan_buffers * memory.size_bytes(2 * leaf_bytes);
    settings_.makes_parity = true;
    const nccl::UniqueId id = NcclComm::new_id();
    for (std::uint32_t i = 0; i < leaves.size(); ++i)
      members_.push_back(std::make_unique<Member>(id, memory.members, i, tensors(10 * i, leaves[i]), settings_));
    ASSERT_TRUE(eventually([&] { return meet() == members_.size(); }));
    std::vector<std::uint64_t> lengths_bytes;
    for (const auto& member : members_) lengths_bytes.push_back(member->bytes().size());
    plan_.emplace(schedule::ExchangeRequest{lengths_bytes, settings_.reserved_bytes, plan_buffers, leaf_bytes, rows});
    begin_all();
  }
  void begin_all() const {
    for (std::uint32_t i = 0; i < members_.size(); ++i) members_[i]->begin_parity(*plan_, i);
  }
  // The bytes and the proof that the member must have in its place, by the definition of the code.
  std::vector<std::byte> expected(std::uint32_t member) const {
    const auto& layout = *plan_->parity();
    const schedule::ParityPlace place(layout, member);
    std::vector<std::byte> all(place.size_bytes());
    const auto put = [&](std::uint64_t at, std::uint64_t digest) {
      std::memcpy(all.data() + at, &digest, sizeof(digest));
    };
    for (std::uint64_t leaf = 0; leaf < place.parity_bytes() / leaf_bytes; ++leaf) {
      std::uint32_t row = layout.parity() - 1;
      while (leaf * leaf_bytes < layout.row_offset(member, row)) --row;
      const std::uint64_t at = leaf * leaf_bytes - layout.row_offset(member, row);
      std::byte* const made = all.data() + leaf * leaf_bytes;
      for (std::uint32_t column = 0; column < layout.columns(); ++column) {
        const std::uint32_t from = layout.member_at(layout.stripe_of_row(member, row), column);
        const auto& bytes = members_[from]->bytes();
        const auto segment = layout.segment(from, column);
        const std::uint64_t end = std::min<std::uint64_t>(segment.first_byte + segment.size_bytes, bytes.size());
        const std::uint64_t first = std::min(segment.first_byte + at, end);
        const std::size_t size_bytes = std::min(leaf_bytes, end - first);
        for (std::size_t i = 0; i < size_bytes; ++i)
          made[i] ^= std::byte{kernels::gf256::multiply(kernels::ErasureCode::coefficient(row, column),
                                                        static_cast<std::uint8_t>(bytes[first + i]))};
        put(place.digests_at(leaf) + column * 8,
            size_bytes == 0 ? 0 : kernels::leaf_digest(bytes.data() + first, size_bytes));
      }
      put(place.digests_at(leaf) + layout.columns() * 8, kernels::leaf_digest(made, leaf_bytes));
    }
    return all;
  }
  bool all_have_parity() const {
    for (std::uint32_t i = 0; i < members_.size(); ++i) {
      const auto all = expected(i);
      const std::byte* const slot = members_[i]->slot(0);
      if (!std::equal(all.begin(), all.end(), slot) || slot[all.size()] != std::byte{0x5A}) return false;
    }
    return true;
  }
};

TEST_F(CudaParityTest, EachMemberMakesItsNodesParityAndProof) {
  for (const std::uint32_t rows : {1u, 2u, 3u}) {
    join_group({9, 3, 17, 11}, rows);
    allow(UINT64_MAX);
    ASSERT_TRUE(advance_until([&] { return all_over(); }));
    EXPECT_TRUE(all_have_parity()) << rows;
    EXPECT_EQ(nccl_buttons().mismatches(), 0u);
    leave_all();
    members_.clear();
  }
}

TEST_F(CudaParityTest, SupportsAGroupOfTwo) {
  join_group({5, 2}, 1, 1);
  allow(UINT64_MAX);
  ASSERT_TRUE(advance_until([&] { return all_over(); }));
  EXPECT_TRUE(all_have_parity());
}

TEST_F(CudaParityTest, RunsOneExchangeAfterAnother) {
  join_group({6, 7, 8}, 1);
  for (int round = 0; round < 3; ++round) {
    if (round != 0) begin_all();
    allow(UINT64_MAX);
    ASSERT_TRUE(advance_until([&] { return all_over(); }));
    EXPECT_TRUE(all_have_parity());
  }
}

// A piece of the parity crosses PCIe, and not the pieces that it is made from. On the network, each member sends its
// piece once for each row.
TEST_F(CudaParityTest, OnlyParityAndItsProofGoToTheHost) {
  join_group({16, 16, 16, 16}, 1);
  const auto sent_before = nccl_buttons().sent_bytes();
  const auto to_host = [&] {
    std::uint64_t sum_bytes = 0;
    ckpt_double_traffic sums{};
    for (std::uint64_t i = 0; buttons().traffic_at(i, &sums) != 0; ++i) sum_bytes += sums.to_host_bytes;
    return sum_bytes;
  };
  const auto before = to_host();
  allow(UINT64_MAX);
  ASSERT_TRUE(advance_until([&] { return all_over(); }));
  std::uint64_t needed_bytes = 0;
  for (std::uint32_t i = 0; i < 4; ++i) needed_bytes += schedule::ParityPlace(*plan_->parity(), i).size_bytes();
  EXPECT_EQ(to_host() - before, needed_bytes);
  std::uint64_t pieces_bytes = 0;
  for (const auto& member : members_) pieces_bytes += member->bytes().size();
  EXPECT_LE(nccl_buttons().sent_bytes() - sent_before, pieces_bytes + 4 * 3 * plan_->steps());
}

TEST_F(CudaParityTest, ReportsAHangAndAbandonedExchangeWritesNothing) {
  settings_.step_timeout_ms = 50;
  join_group({9, 9, 9}, 1);
  nccl_buttons().hang(1, 1);
  allow(UINT64_MAX);
  EXPECT_THAT(failure_of(0), HasSubstr("made no progress for 50 ms"));
  for (std::size_t i = 0; i < 3; ++i) EXPECT_TRUE(exchange(i).give_up().wait(late()));
  nccl_buttons().hang(1, 0);
  EXPECT_EQ(*members_[0]->slot(0), std::byte{0x5A});
}

TEST_F(CudaExchangeTest, SingleMemberGetsItsOwnPiece) {
  join({9});
  allow(UINT64_MAX);
  EXPECT_TRUE(advance_until([&] { return all_over(); }));
  EXPECT_TRUE(all_have_all());
}

TEST_F(CudaExchangeTest, RunsOneExchangeAfterAnother) {
  join({5});
  for (int round = 0; round < 3; ++round) {
    if (round != 0) begin();
    allow(UINT64_MAX);
    ASSERT_TRUE(advance_until([&] { return all_over(); }));
    EXPECT_TRUE(all_have_all());
  }
}

// NCCL connects two members with their first group: no step may be that one.
TEST_F(CudaExchangeOfSeveralTest, MembersMeetOnceEachHasExchangedWithAllOthers) {
  come({3, 3, 3});
  const auto groups_before = nccl_buttons().groups(), sent_before = nccl_buttons().sent_bytes();
  for (int turn = 0; turn < 300; ++turn) {  // as many as it would need, and more; the third one takes no part
    EXPECT_FALSE(exchange(0).meet());
    EXPECT_FALSE(exchange(1).meet());
    std::this_thread::yield();
  }
  EXPECT_EQ(nccl_buttons().groups(), groups_before);
  ASSERT_TRUE(eventually([&] { return meet() == 3; }));
  EXPECT_EQ(nccl_buttons().groups(), groups_before + 3);
  constexpr std::uint64_t greeting_bytes = 32u << 10;  // more than NCCL sends without looking for registered memory
  EXPECT_EQ(nccl_buttons().sent_bytes(), sent_before + 6 * greeting_bytes);
  begin();
  exchange(0).allow(1);  // and gets onto its stream though the others issue nothing
  ASSERT_TRUE(advance_until([&] { return nccl_buttons().groups() == groups_before + 4; }));
}

TEST_F(CudaExchangeOfSeveralTest, EachOfTwoMembersReceivesTheOthersPiece) {
  join({17, 4});
  allow(UINT64_MAX);
  ASSERT_TRUE(advance_until([&] { return all_over(); }));
  EXPECT_TRUE(all_have_all());
  if (has_nccl_buttons()) {
    EXPECT_EQ(nccl_buttons().mismatches(), 0u);
  }
}

TEST_F(CudaExchangeOfSeveralTest, EachOfThreeMembersReceivesAllPieces) {
  join({1, 6, 3});
  allow(UINT64_MAX);
  ASSERT_TRUE(advance_until([&] { return all_over(); }));
  EXPECT_TRUE(all_have_all());
}

TEST_F(CudaExchangeOfSeveralTest, WorksWithOneBuffer) {
  join({7, 7}, 1);
  allow(UINT64_MAX);
  ASSERT_TRUE(advance_until([&] { return all_over(); }));
  EXPECT_TRUE(all_have_all());
}

TEST_F(CudaExchangeOfSeveralTest, IssuesOnlyAllowedSteps) {
  join({9, 9});
  const auto sent_before = nccl_buttons().sent_bytes();
  advance_for_a_while();
  EXPECT_EQ(nccl_buttons().sent_bytes(), sent_before);
  allow(2);
  ASSERT_TRUE(advance_until([&] { return exchange(0).received() == 2 && exchange(1).received() == 2; }));
  advance_for_a_while();
  EXPECT_EQ(nccl_buttons().sent_bytes(), sent_before + 4 * leaf_bytes);
  EXPECT_EQ(exchange(0).received(), 2u);
  allow(1);  // what was allowed stays so
  allow(UINT64_MAX);
  ASSERT_TRUE(advance_until([&] { return all_over(); }));
  EXPECT_TRUE(all_have_all());
}

// The chunk that waits for the other member would else stand in front of training's work.
TEST_F(CudaExchangeOfSeveralTest, EnqueuesAStepOnlyAfterThePreviousOneHasCrossed) {
  join({9, 9});
  const auto groups_before = nccl_buttons().groups();
  exchange(0).allow(UINT64_MAX);
  ASSERT_TRUE(advance_until([&] { return nccl_buttons().groups() != groups_before; }));
  advance_for_a_while();
  EXPECT_EQ(nccl_buttons().groups(), groups_before + 1);
  exchange(1).allow(UINT64_MAX);
  ASSERT_TRUE(advance_until([&] { return all_over(); }));
}

TEST_F(CudaExchangeOfSeveralTest, StepsCrossDuringCopyOutWhileBuffersLast) {
  join({9, 9});
  const auto sent_before = nccl_buttons().sent_bytes();
  const auto crossed_steps = [&] { return (nccl_buttons().sent_bytes() - sent_before) / (2 * leaf_bytes); };
  buttons().hold(CKPT_DOUBLE_TO_HOST, 1);
  allow(UINT64_MAX);
  ASSERT_TRUE(advance_until([&] { return crossed_steps() == buffers; }));
  advance_for_a_while();
  EXPECT_EQ(crossed_steps(), buffers);
  EXPECT_EQ(exchange(0).received(), 0u);
  buttons().hold(CKPT_DOUBLE_TO_HOST, 0);
  ASSERT_TRUE(advance_until([&] { return all_over(); }));
  EXPECT_TRUE(all_have_all());
}

TEST_F(CudaExchangeOfSeveralTest, WaitsForASlowMember) {
  join({3, 3});
  nccl_buttons().slow(1, 5'000);
  allow(UINT64_MAX);
  ASSERT_TRUE(advance_until([&] { return all_over(); }));
  EXPECT_TRUE(all_have_all());
}

TEST_F(CudaExchangeOfSeveralTest, ReportsAHangAndAbandonedExchangeWritesNothing) {
  settings_.step_timeout_ms = 50;
  join({9, 9});
  nccl_buttons().hang(1, 1);
  allow(UINT64_MAX);
  EXPECT_THAT(failure_of(0), HasSubstr("made no progress for 50 ms"));
  EXPECT_THAT(failure_of(1), HasSubstr("made no progress for 50 ms"));
  EXPECT_TRUE(exchange(0).give_up().wait(late()));
  EXPECT_TRUE(exchange(1).give_up().wait(late()));
  nccl_buttons().hang(1, 0);
  const std::vector<std::byte> untouched(leaf_bytes, std::byte{0x5A});
  EXPECT_TRUE(std::equal(untouched.begin(), untouched.end(), members_[0]->slot(1)));
  exchange(0).advance();  // there is nothing to do
}

TEST_F(CudaExchangeOfSeveralTest, GivesUpAMemberThatNeverBegins) {
  settings_.step_timeout_ms = 50;
  join({9, 9});
  exchange(0).allow(1);
  EXPECT_THAT(failure_of(0), HasSubstr("made no progress"));
  EXPECT_TRUE(exchange(0).give_up().wait(late()));
}

TEST_F(CudaExchangeOfSeveralTest, ReportsADeadMember) {
  join({9, 9});
  exchange(0).allow(UINT64_MAX);
  for (int turn = 0; turn < 10; ++turn) exchange(0).advance();
  nccl_buttons().die(1);
  EXPECT_THAT(failure_of(0), HasSubstr("remote process exited"));
  EXPECT_TRUE(exchange(0).give_up().wait(late()));
}

TEST_F(CudaExchangeOfSeveralTest, ReportsAnAsynchronousError) {
  join({9, 9});
  allow(UINT64_MAX);
  nccl_buttons().fail(0, nccl::internal_error);
  EXPECT_THAT(failure_of(0), HasSubstr("NCCL"));
  EXPECT_TRUE(exchange(0).give_up().wait(late()));
}

// Its end is reached all the same.
TEST_F(CudaExchangeTest, GroupAbortedDuringADriverCallDeliversNothing) {
  join({9});
  if (!has_nccl_buttons()) GTEST_SKIP();
  ASSERT_TRUE(advance_until([&] { return exchange(0).filled() == buffers; }));
  EXPECT_CUDA(cuCtxSynchronize());  // an event may be seen as reached before it is counted as done
  const auto groups_before = nccl_buttons().groups(), events_before = buttons().done(CKPT_DOUBLE_OTHER);
  nccl_buttons().hang(0, 1);
  allow(1);
  ASSERT_TRUE(advance_until([&] { return nccl_buttons().groups() != groups_before; }));
  ASSERT_TRUE(eventually([&] { return members_[0]->comm().ready(); }));
  advance();  // from now on there is the event of its end
  buttons().hold_calls(CKPT_DOUBLE_CALLS_HELD);
  std::string failure;
  std::thread issuing([&] {
    EXPECT_CUDA(cuCtxSetCurrent(context_));
    failure = failure_of(0);
  });
  EXPECT_TRUE(eventually([] { return buttons().held_calls() == 1; }));
  members_[0]->comm().abort();
  EXPECT_TRUE(eventually([&] { return buttons().done(CKPT_DOUBLE_OTHER) == events_before + 1; }));
  buttons().hold_calls(CKPT_DOUBLE_CALLS_RETURN);
  issuing.join();
  EXPECT_THAT(failure, HasSubstr("being ended"));
  EXPECT_TRUE(exchange(0).give_up().wait(late()));
  EXPECT_EQ(*members_[0]->slot(0), std::byte{0x5A});
}

TEST_F(CudaExchangeTest, ReportsAGpuThatPacksNothingAsSlow) {
  settings_.step_timeout_ms = 50;
  join({9});
  if (!has_buttons()) GTEST_SKIP();
  buttons().hold(CKPT_DOUBLE_KERNEL, 1);
  allow(UINT64_MAX);
  EXPECT_THAT(failure_of(0), HasSubstr("made no progress"));
  buttons().hold(CKPT_DOUBLE_KERNEL, 0);
  EXPECT_TRUE(exchange(0).give_up().wait(late()));
}

TEST_F(CudaExchangeTest, ReportsADeadContextAndNeverFreesItsMemory) {
  join({9});
  if (!has_buttons()) GTEST_SKIP();
  allow(UINT64_MAX);
  buttons().kill_context(CUDA_ERROR_ILLEGAL_ADDRESS);
  failure_of(0);
  EXPECT_FALSE(exchange(0).give_up().wait(late()));
  const auto allocations = buttons().allocations();
  members_[0]->leave();
  EXPECT_EQ(buttons().allocations(), allocations);
  keep_for_good(std::move(members_));
}

TEST_F(CudaExchangeOfSeveralTest, ExchangeEndedInTheMiddleIsAbandonedAndFreed) {
  join({9, 9});
  const auto allocations = buttons().allocations();
  const auto groups_before = nccl_buttons().groups();
  exchange(0).allow(UINT64_MAX);
  ASSERT_TRUE(advance_until([&] { return nccl_buttons().groups() != groups_before; }));
  members_[0]->leave();
  EXPECT_EQ(buttons().allocations(), allocations - 1);
}

}  // namespace
}  // namespace ckpt::device
