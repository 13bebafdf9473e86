// Parity that is made elsewhere, on a GPU, while a coding job waits for it: what is proved is taken, and the rest is
// computed as if nothing had been made.
#include "agent/transfers/made_parity.hpp"

#include <gtest/gtest.h>

#include "parity_group.hpp"

namespace ckpt::agent {
namespace {

using core::FetchResult;
using testing::leaf;
using testing::ParityGroup;
using Name = ParityGroup::Name;

// Parity of member 0 with its proof, computed from the shards as a GPU would.
class Maker : public MadeParity {
 public:
  explicit Maker(const ParityGroup& group) {
    const auto layout = core::layout_of(group.parity_manifest);
    bytes_.resize(layout.parity_bytes_of(0));
    for (std::uint32_t row = 0; row < layout.parity(); ++row) {
      const std::uint32_t stripe = layout.stripe_of_row(0, row);
      for (std::uint64_t at = 0; at < layout.parity_bytes(stripe); at += leaf) {
        std::byte* const to = bytes_.data() + layout.row_offset(0, row) + at;
        Leaf& made = leaves_.emplace_back();
        for (std::uint32_t column = 0; column < layout.columns(); ++column) {
          const auto& shard = group.shards[layout.member_at(stripe, column)].data;
          const auto segment = layout.segment(layout.member_at(stripe, column), column);
          const std::uint64_t end = std::min<std::uint64_t>(segment.first_byte + segment.size_bytes, shard.size());
          const std::uint64_t first = std::min(segment.first_byte + at, end);
          const std::size_t size_bytes = std::min<std::uint64_t>(leaf, end - first);
          for (std::size_t i = 0; i < size_bytes; ++i)
            to[i] ^= std::byte{kernels::gf256::multiply(kernels::ErasureCode::coefficient(row, column),
                                                        static_cast<std::uint8_t>(shard[first + i]))};
          made.sources.push_back(size_bytes == 0 ? 0 : kernels::leaf_digest(shard.data() + first, size_bytes));
        }
        made.digest = kernels::leaf_digest(to, leaf);
      }
    }
    made_ = leaves_.size();
  }

  std::size_t leaves() const override { return made_; }
  Leaf copy(std::size_t number, std::byte* to) const override {
    std::copy_n(bytes_.data() + number * leaf, leaf, to);
    return leaves_[number];
  }

  std::atomic<std::size_t> made_{0};
  std::vector<std::byte> bytes_;
  std::vector<Leaf> leaves_;
};

class MadeParityTest : public ::testing::TestWithParam<std::uint32_t> {
 protected:
  MadeParityTest() { group_.encode(); }
  std::shared_ptr<CodingJob> begin() {
    const auto into = group_.segment(parity_);
    into->writable_slot(1).begin();
    fetched_before_ = group_.network.bytes_sent();
    return group_.begin(parity_, into, group_.info(parity_), maker_);
  }
  void expect_made(std::size_t taken_leaves) {
    const auto outcome = group_.outcomes.take();
    EXPECT_EQ(outcome.result, FetchResult::complete);
    EXPECT_EQ(outcome.taken_bytes, taken_leaves * leaf);
    EXPECT_TRUE(outcome.damaged.empty() && outcome.wrong.empty());
    EXPECT_TRUE(group_.is_made_again(parity_)) << "the same bytes and manifest as those that the host makes";
    EXPECT_TRUE(group_.is_quiet());
  }
  std::uint64_t fetched_bytes() const { return group_.network.bytes_sent() - fetched_before_; }

  const Name parity_{0, true};
  // Lengths that end within a leaf, and one shard that is much shorter.
  ParityGroup group_{{9 * leaf + 5, 11 * leaf, 700, 10 * leaf + 240, 11 * leaf - 1}, GetParam()};
  const std::shared_ptr<Maker> maker_ = std::make_shared<Maker>(group_);
  std::uint64_t fetched_before_ = 0;
};

TEST_P(MadeParityTest, TakesProvenParityWithoutFetchingSources) {
  begin();
  expect_made(maker_->leaves_.size());
  EXPECT_EQ(fetched_bytes(), 0u);
}

TEST_P(MadeParityTest, TakesParityLeafByLeafAsTheGpuMakesIt) {
  maker_->made_ = 0;
  const auto job = begin();
  for (std::size_t made = 1; made <= maker_->leaves_.size(); ++made) {
    group_.pool.drain();
    EXPECT_TRUE(group_.outcomes.empty());
    maker_->made_ = made;
    job->look();
  }
  expect_made(maker_->leaves_.size());
  EXPECT_EQ(fetched_bytes(), 0u);
}

TEST_P(MadeParityTest, ComputesLeavesThatTheGpuNeverMakes) {
  for (const std::size_t made : {std::size_t{0}, std::size_t{1}, maker_->leaves_.size() - 1}) {
    maker_->made_ = made;
    const auto job = begin();
    group_.pool.drain();
    EXPECT_TRUE(group_.outcomes.empty());
    job->stop_waiting();
    expect_made(made);
    EXPECT_GT(fetched_bytes(), 0u);
  }
}

TEST_P(MadeParityTest, ComputesLeavesThatTheGpuMakesTooLate) {
  group_.arrival_timeout_ms = 0;
  maker_->made_ = 1;
  const auto job = begin();
  while (group_.outcomes.empty()) {
    job->look();
    std::this_thread::yield();
  }
  expect_made(1);
}

TEST_P(MadeParityTest, ComputesAWrongLeafAndAllAfterIt) {
  for (const std::size_t wrong : {std::size_t{0}, std::size_t{1}, maker_->leaves_.size() - 1}) {
    maker_->bytes_[wrong * leaf + 77] ^= std::byte{1};
    begin();
    expect_made(wrong);
    maker_->bytes_[wrong * leaf + 77] ^= std::byte{1};
  }
}

// Its own digest is right.
TEST_P(MadeParityTest, ComputesALeafThatWasMadeFromOtherBytes) {
  for (std::size_t column = 0; column < maker_->leaves_[0].sources.size(); ++column) {
    maker_->leaves_[1].sources[column] ^= 1;
    begin();
    expect_made(1);
    maker_->leaves_[1].sources[column] ^= 1;
  }
}

TEST_P(MadeParityTest, ComputesALeafWithTooFewSources) {
  maker_->leaves_[1].sources.pop_back();
  begin();
  expect_made(1);
}

TEST_P(MadeParityTest, AJobThatIsCancelledWhileItWaitsEnds) {
  maker_->made_ = 1;
  const auto job = begin();
  group_.pool.drain();
  job->cancel();
  EXPECT_EQ(group_.outcomes.take().result, FetchResult::failed);
  EXPECT_FALSE(group_.is_sealed(parity_));
  EXPECT_TRUE(group_.is_quiet());
}

INSTANTIATE_TEST_SUITE_P(Rows, MadeParityTest, ::testing::Values(1u, 2u));

}  // namespace
}  // namespace ckpt::agent
