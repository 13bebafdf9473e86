// The trainers' side of the GPU replication, with pages that a test carries on as agents do: what was captured
// arrives with all others, in order, and whatever goes wrong is told once and leaves the rest alone.
#include "gpu_replication/gpu_replication.hpp"

#include <fcntl.h>
#include <gmock/gmock.h>

#include <atomic>
#include <thread>

#include "device/cuda_device.hpp"
#include "gpu_replication/parity_place.hpp"
#include "nccl.hpp"
#include "tests/support/temporary_directory.hpp"

namespace ckpt::client {
namespace {

using namespace testing_support;
using arena::ReceiveBuffer;
using ::testing::HasSubstr;

constexpr std::uint64_t grain_bytes = 1000;
constexpr std::uint32_t replication_buffers = 3;
constexpr std::size_t piece_bytes = 25'000;

schedule::Training communicating() { return {{schedule::NetworkState::busy, 0}, 0}; }
schedule::Training idle_for(double span_s) { return {{schedule::NetworkState::idle, span_s}, span_s}; }

// One rank, with the receive buffer that its agent has made.
class Rank {
 public:
  Rank(const std::string& directory, std::uint32_t member, std::uint32_t members, std::uint32_t rows,
       std::size_t longest_bytes, const GpuReplication::Settings& settings)
      : member_(member),
        longest_bytes_(longest_bytes),
        receive_buffer_(ReceiveBuffer::create(directory, member, {1, member, members, rows})) {
    replication_ = std::make_unique<GpuReplication>(
        device_, ReceiveBuffer::attach(UniqueFd(::fcntl(receive_buffer_.fd(), F_DUPFD_CLOEXEC, 0))), longest_bytes_,
        settings, [this] { ++rings_; });
  }
  GpuReplication& replication() const { return *replication_; }
  ReceiveBuffer& receive_buffer() { return receive_buffer_; }
  std::vector<std::byte> piece(std::int64_t iteration) const {
    return bytes_of(longest_bytes_ - 777 * member_, 100 * member_ + static_cast<std::uint64_t>(iteration));
  }
  void capture(std::int64_t iteration) {
    auto slot = std::make_shared<PinnedSlot>(piece(iteration));
    last_slot_ = slot;
    replication_->captured(CheckpointId(1, iteration), slot->bytes(), slot);
  }
  // The one that was captured last is owned by nobody but the replication.
  bool holds_a_slot() const { return !last_slot_.expired(); }
  bool has_all_of(const Rank& other, std::int64_t iteration) const {
    const auto piece = other.piece(iteration);
    return receive_buffer_.received(other.member_, CheckpointId(1, iteration)) == piece.size() &&
           std::equal(piece.begin(), piece.end(), receive_buffer_.bytes(other.member_).begin());
  }
  std::uint32_t member() const { return member_; }

 private:
  class PinnedSlot {
   public:
    explicit PinnedSlot(const std::vector<std::byte>& bytes) : bytes_(bytes) {}
    std::span<const std::byte> bytes() const { return bytes_; }

   private:
    const std::vector<std::byte> bytes_;
  };
  const std::uint32_t member_;
  const std::size_t longest_bytes_;
  device::CudaDevice device_{0, 1 << 20};
  ReceiveBuffer receive_buffer_;
  std::atomic<int> rings_{0};
  std::weak_ptr<PinnedSlot> last_slot_;
  std::unique_ptr<GpuReplication> replication_;
};

class GpuReplicationTest : public NcclTest {
 protected:
  void SetUp() override {
    NcclTest::SetUp();
    if (!IsSkipped() && !has_nccl_buttons()) GTEST_SKIP() << "needs as many GPUs as members";
    registrations_ = buttons().registrations();
    settings_.grain_bytes = grain_bytes;
    settings_.buffers = replication_buffers;
    settings_.replicator.reserved_bytes = replication_buffers * 3 * grain_bytes;
    settings_.replicator.step_timeout_ms = settings_.replicator.end_timeout_ms = 50'000;
  }
  void TearDown() override {
    reset_nccl();
    if (has_buttons()) buttons().reset();
    end_all();
    is_over_ = true;
    if (agents_.joinable()) agents_.join();
    ranks_.clear();
    if (has_nccl_buttons()) {
      EXPECT_EQ(buttons().registrations(), registrations_);
    }
    NcclTest::TearDown();
  }
  void come(std::uint32_t members) {
    for (std::uint32_t member = 0; member < members; ++member)
      ranks_.push_back(
          std::make_unique<Rank>(directory_.path(), member, members, rows_, longest_bytes_, settings_of(member)));
    agents_ = std::thread([this] {
      while (!is_over_) {
        carry();
        std::this_thread::yield();
      }
    });
  }
  void meet(std::uint32_t members) {
    come(members);
    meet_all();
    for (const auto& rank : ranks_) EXPECT_EQ(rank->replication().take_news().value_or(""), "");
  }
  void meet_all() const {
    std::vector<std::thread> meeting;
    for (const auto& rank : ranks_) meeting.emplace_back([&] { rank->replication().meet(Deadline::in_ms(50'000)); });
    for (std::thread& one : meeting) one.join();
  }
  // At once: on one GPU the memory of one is only freed when the others have ended, too.
  void end_all() const {
    std::vector<std::thread> ending;
    for (const auto& rank : ranks_) ending.emplace_back([&] { rank->replication().end("it is over"); });
    for (std::thread& one : ending) one.join();
  }
  void capture_all(std::int64_t iteration) const {
    for (const auto& rank : ranks_) rank->capture(iteration);
  }
  bool all_have_all_of(std::int64_t iteration) const {
    for (const auto& rank : ranks_)
      for (const auto& other : ranks_)
        if (rank != other && !rank->has_all_of(*other, iteration)) return false;
    return true;
  }
  void take_all(std::int64_t iteration) const {
    for (const auto& rank : ranks_)
      for (const auto& other : ranks_)
        if (rank != other) rank->receive_buffer().page().taken(other->member(), CheckpointId(1, iteration));
  }
  std::string news_of(std::size_t rank) const {
    std::optional<std::string> news;
    EXPECT_TRUE(eventually([&] { return (news = ranks_[rank]->replication().take_news()).has_value(); }));
    return news.value_or("");
  }
  virtual GpuReplication::Settings settings_of(std::uint32_t) { return settings_; }

  std::uint32_t rows_ = 0;  // of parity
  std::size_t longest_bytes_ = piece_bytes;
  GpuReplication::Settings settings_;
  std::vector<std::unique_ptr<Rank>> ranks_;
  std::atomic<CheckpointId> committed_{CheckpointId()};

 private:
  // What agents do, on their thread.
  void carry() {
    std::vector<std::uint64_t> capacities_bytes;
    for (const auto& rank : ranks_) {
      const auto word = rank->receive_buffer().page().own_state();
      if (!word) continue;
      capacities_bytes.push_back(word->piece_bytes);
      for (const auto& other : ranks_)
        if (other != rank) other->receive_buffer().page().put_state(rank->member(), *word);
    }
    if (capacities_bytes.size() == ranks_.size() && !std::exchange(are_places_made_, true))
      for (const auto& rank : ranks_) {
        auto of_others = capacities_bytes;
        of_others[rank->member()] = 0;
        if (rows_ != 0) {
          of_others.assign(ranks_.size(), 0);
          of_others[rank->member()] = schedule::ParityPlace::largest(capacities_bytes, rows_).size_bytes();
        }
        rank->receive_buffer().make_places(of_others);
      }
    for (const auto& rank : ranks_) rank->replication().look(committed_.load());
  }

  test::TemporaryDirectory directory_{test::in_memory};
  std::uint64_t registrations_ = 0;
  bool are_places_made_ = false;
  std::atomic<bool> is_over_{false};
  std::thread agents_;
};

class GpuParityTest : public GpuReplicationTest {
 protected:
  void SetUp() override {
    GpuReplicationTest::SetUp();
    rows_ = 1;
    longest_bytes_ = 700'001;
    settings_.grain_bytes = placement::parity_unit_bytes;
    settings_.replicator.reserved_bytes = 2 << 20;
  }
  // The sum of the others' segments.
  bool has_parity_of(std::uint32_t member, std::int64_t iteration) const {
    std::vector<std::uint64_t> lengths_bytes;
    for (const auto& rank : ranks_) lengths_bytes.push_back(rank->piece(iteration).size());
    const auto layout = schedule::parity_layout(lengths_bytes, rows_);
    const std::uint32_t stripe = layout.stripe_of_row(member, 0);
    std::vector<std::byte> parity(layout.parity_bytes(stripe));
    for (std::uint32_t column = 0; column < layout.columns(); ++column) {
      const std::uint32_t from = layout.member_at(stripe, column);
      const auto piece = ranks_[from]->piece(iteration);
      const auto segment = layout.segment(from, column);
      for (std::uint64_t i = segment.first_byte; i < std::min(segment.first_byte + segment.size_bytes, piece.size());
           ++i)
        parity[i - segment.first_byte] ^= piece[i];
    }
    const auto& receive_buffer = ranks_[member]->receive_buffer();
    return receive_buffer.received(member, CheckpointId(1, iteration)) == parity.size() &&
           std::equal(parity.begin(), parity.end(), receive_buffer.bytes(member).begin());
  }
  bool all_have_parity_of(std::int64_t iteration) const {
    for (std::uint32_t member = 0; member < ranks_.size(); ++member)
      if (!has_parity_of(member, iteration)) return false;
    return true;
  }
};

TEST_F(GpuParityTest, EachRankMakesItsNodesParityOfACapture) {
  meet(3);
  for (std::int64_t iteration = 1; iteration <= 4; ++iteration) {
    capture_all(iteration);
    ASSERT_TRUE(eventually([&] { return all_have_parity_of(iteration); }));
    for (const auto& rank : ranks_) rank->receive_buffer().page().taken(rank->member(), CheckpointId(1, iteration));
  }
  EXPECT_EQ(nccl_buttons().mismatches(), 0u);
  for (const auto& rank : ranks_) EXPECT_EQ(rank->replication().take_news(), std::nullopt);
}

TEST_F(GpuParityTest, KeepsParityUntilItIsTaken) {
  meet(3);
  capture_all(1);
  ASSERT_TRUE(eventually([&] { return all_have_parity_of(1); }));
  capture_all(2);
  for (const std::uint32_t member : {0u, 2u}) ranks_[member]->receive_buffer().page().taken(member, CheckpointId(1, 1));
  for (int turn = 0; turn < 300; ++turn) {  // as many as a step needs, and many more
    ranks_[0]->replication().look(CheckpointId());
    std::this_thread::yield();
  }
  EXPECT_TRUE(all_have_parity_of(1));
  ranks_[1]->receive_buffer().page().taken(1, CheckpointId(1, 1));
  EXPECT_TRUE(eventually([&] { return all_have_parity_of(2); }));
}

TEST_F(GpuParityTest, EndsIfTheStateOutgrowsTheReceiveBuffer) {
  meet(2);
  const std::vector<std::byte> larger(longest_bytes_ * 2);
  for (const auto& rank : ranks_) rank->replication().captured(CheckpointId(1, 1), larger, nullptr);
  EXPECT_THAT(news_of(0), HasSubstr("a rank's state has outgrown the receive buffers"));
}

TEST_F(GpuReplicationTest, DeliversCapturesToAllOtherRanks) {
  meet(3);
  for (std::int64_t iteration = 1; iteration <= 5; ++iteration) {
    capture_all(iteration);
    ASSERT_TRUE(eventually([&] { return all_have_all_of(iteration); }));
    take_all(iteration);
  }
  EXPECT_EQ(nccl_buttons().mismatches(), 0u);
  for (const auto& rank : ranks_) EXPECT_EQ(rank->replication().take_news(), std::nullopt);
}

TEST_F(GpuReplicationTest, KeepsDeliveriesUntilTheyAreTaken) {
  meet(2);
  capture_all(1);
  ASSERT_TRUE(eventually([&] { return all_have_all_of(1); }));
  const auto groups = nccl_buttons().groups();
  capture_all(2);
  ranks_[0]->receive_buffer().page().taken(1, CheckpointId(1, 1));
  for (int turn = 0; turn < 300; ++turn) {  // as many as a step needs, and many more
    ranks_[0]->replication().look(CheckpointId());
    std::this_thread::yield();
  }
  EXPECT_TRUE(all_have_all_of(1));
  EXPECT_EQ(nccl_buttons().groups(), groups);
  take_all(1);
  EXPECT_TRUE(eventually([&] { return all_have_all_of(2); }));
}

TEST_F(GpuReplicationTest, SkipsACheckpointThatARankLacks) {
  meet(2);
  ranks_[0]->capture(1);
  ranks_[1]->capture(2);
  ranks_[0]->capture(2);
  EXPECT_TRUE(eventually([&] { return all_have_all_of(2); }));
}

// It goes on by itself once that is over.
TEST_F(GpuReplicationTest, SendsNothingWhileTrainingCommunicates) {
  const auto is_busy = std::make_shared<std::atomic<bool>>(true);
  settings_.training = [is_busy] { return is_busy->load() ? communicating() : idle_for(1); };
  meet(2);
  const auto groups = nccl_buttons().groups();
  capture_all(1);
  for (const auto& rank : ranks_) {
    ASSERT_TRUE(eventually([&] { return rank->replication().is_held(); }));
    EXPECT_EQ(rank->receive_buffer().page().own_state()->state.promised, 0u);
  }
  EXPECT_EQ(nccl_buttons().groups(), groups);
  *is_busy = false;
  EXPECT_TRUE(eventually([&] { return all_have_all_of(1); }));
  EXPECT_FALSE(ranks_[0]->replication().is_held());
}

TEST_F(GpuReplicationTest, FitsChunksAndPromisesToIdleSpans) {
  settings_.replicator.reserved_bytes = 1 << 20;  // as much as anybody could use
  const auto span_s = std::make_shared<std::atomic<double>>(1e3);
  settings_.training = [span_s] { return idle_for(span_s->load()); };
  meet(2);
  const auto own_state = [&] { return ranks_[0]->receive_buffer().page().own_state()->state; };
  std::int64_t iteration = 0;
  while (++iteration <= 10) {  // what steps take becomes known
    capture_all(iteration);
    ASSERT_TRUE(eventually([&] { return all_have_all_of(iteration); }));
    take_all(iteration);
  }
  EXPECT_GT(own_state().chunk_bytes, piece_bytes);
  *span_s = 1e-9;
  const auto groups = nccl_buttons().groups();
  capture_all(iteration);
  ASSERT_TRUE(eventually([&] { return nccl_buttons().groups() == groups + 2; })) << "one step of each member";
  ASSERT_TRUE(eventually([&] { return ranks_[0]->replication().is_held() && ranks_[1]->replication().is_held(); }));
  EXPECT_EQ(own_state().chunk_bytes, grain_bytes);
  EXPECT_EQ(own_state().promised, 1u);
  *span_s = 1e3;
  EXPECT_TRUE(eventually([&] { return all_have_all_of(iteration); }));
}

TEST_F(GpuReplicationTest, ReleasesHeldSlotsAfterAFailure) {
  settings_.training = [] { return communicating(); };
  meet(2);
  capture_all(1);
  ASSERT_TRUE(eventually([&] { return ranks_[0]->replication().is_held(); }));
  ranks_[0]->replication().give_up("a newer incarnation of the job began");
  EXPECT_THAT(news_of(0), HasSubstr("a newer incarnation"));
  EXPECT_TRUE(eventually([&] { return !ranks_[0]->replication().is_held() && !ranks_[1]->replication().is_held(); }));
}

// The host replication was faster.
TEST_F(GpuReplicationTest, DoesNotSendCommittedCheckpoints) {
  meet(2);
  committed_ = CheckpointId(1, 1);
  for (const auto& rank : ranks_) rank->replication().look(CheckpointId(1, 1));
  capture_all(1);
  for (const auto& rank : ranks_) EXPECT_EQ(rank->receive_buffer().page().own_state()->state.checkpoint, 0u);
  capture_all(2);
  EXPECT_TRUE(eventually([&] { return all_have_all_of(2); }));
}

TEST_F(GpuReplicationTest, DoesNotWaitForAMeetingThatMustFail) {
  come(2);
  std::thread meeting([&] { ranks_[0]->replication().meet(Deadline::in_ms(600'000)); });
  ranks_[0]->replication().give_up("a newer incarnation of the job began");
  meeting.join();
  EXPECT_THAT(news_of(0), HasSubstr("a newer incarnation of the job began"));
  ranks_[1]->replication().meet(Deadline::in_ms(600'000));
  EXPECT_THAT(news_of(1), HasSubstr("another rank of the group, or this node's agent, has given up GPU replication"));
}

TEST_F(GpuReplicationTest, ReportsAHangOnceAndHoldsNothing) {
  settings_.replicator.step_timeout_ms = 50;
  meet(2);
  nccl_buttons().hang(1, 1);
  capture_all(1);
  for (std::size_t rank = 0; rank < 2; ++rank) {
    EXPECT_THAT(news_of(rank), HasSubstr("checkpoints go from host to host in this incarnation: "));
    EXPECT_TRUE(ranks_[rank]->receive_buffer().page().failure().has_value());
    EXPECT_TRUE(ranks_[rank]->receive_buffer().page().own_state()->state.has_given_up);
    EXPECT_TRUE(eventually([&] { return !ranks_[rank]->holds_a_slot(); }));
  }
  capture_all(2);
  EXPECT_FALSE(ranks_[0]->holds_a_slot());
  end_all();
  EXPECT_EQ(ranks_[0]->replication().take_news(), std::nullopt);
}

TEST_F(GpuReplicationTest, DoesNotWaitForARankThatGaveUpBeforeMeeting) {
  come(2);
  ranks_[0]->replication().end("it has seen enough");
  ranks_[1]->replication().meet(Deadline::in_ms(600'000));  // longer than the test would wait
  EXPECT_THAT(news_of(1), HasSubstr("another rank of the group, or this node's agent, has given up GPU replication"));
}

// Long before its own deadline.
TEST_F(GpuReplicationTest, GivesUpWhenAnotherRankDoes) {
  meet(3);
  ranks_[0]->capture(1);
  std::thread ending([&] { ranks_[2]->replication().end("it has seen enough"); });
  for (const std::size_t rank : {0u, 1u}) {
    news_of(rank);
    EXPECT_TRUE(ranks_[rank]->receive_buffer().page().own_state()->state.has_given_up);
  }
  ending.join();
}

TEST_F(GpuReplicationTest, ReleasesSlotsWhenItEndsInTheMiddle) {
  meet(2);
  const auto groups = nccl_buttons().groups();
  nccl_buttons().hang(-1, 1);
  capture_all(1);
  ASSERT_TRUE(eventually([&] { return nccl_buttons().groups() == groups + 2; }));
  end_all();
  for (const auto& rank : ranks_) EXPECT_FALSE(rank->holds_a_slot());
}

TEST_F(GpuReplicationTest, EndsIfTheStateOutgrowsTheReceiveBuffer) {
  meet(2);
  auto slot = std::make_shared<std::vector<std::byte>>(piece_bytes + 1);
  ranks_[0]->replication().captured(CheckpointId(1, 1), *slot, slot);
  ranks_[1]->capture(1);
  EXPECT_THAT(news_of(1), HasSubstr("host to host"));
  EXPECT_THAT(news_of(0), HasSubstr("host to host"));
}

// One rank's environment is refused.
class RefusedGpuReplicationTest : public GpuReplicationTest {
 protected:
  GpuReplication::Settings settings_of(std::uint32_t member) override {
    static const char* const environment[] = {"NCCL_MAX_CTAS=4", nullptr};
    GpuReplication::Settings settings = settings_;
    if (member == 1) settings.replicator.environment = environment;
    return settings;
  }
};

TEST_F(RefusedGpuReplicationTest, AllRanksReplicateFromHostToHostIfOneIsRefused) {
  come(3);
  meet_all();
  EXPECT_THAT(news_of(1), HasSubstr("NCCL_MAX_CTAS"));
  EXPECT_THAT(news_of(0), HasSubstr("host to host"));
  EXPECT_THAT(news_of(2), HasSubstr("host to host"));
}

}  // namespace
}  // namespace ckpt::client
