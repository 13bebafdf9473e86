// Agents of a job whose trainers say that pieces went from GPU to GPU: the trainers are the test's own, which writes
// what a GPU would have brought.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <thread>

#include "cluster.hpp"
#include "gpu_replication/receive_buffer.hpp"

namespace ckpt::agent {
namespace {

using nlohmann::json;
using testing::AgentCluster;
using testing::eventually;
using ::testing::HasSubstr;

std::uint64_t instances = 1000;

// What libckptengine does with a socket, a control page and slots, and nothing more.
class RawTrainer {
 public:
  RawTrainer(AgentCluster& cluster, std::string node, std::uint32_t rank)
      : cluster_(cluster), node_(std::move(node)), rank_(rank) {
    hello(0);
  }
  ~RawTrainer() { close(); }
  RawTrainer(const RawTrainer&) = delete;
  RawTrainer& operator=(const RawTrainer&) = delete;

  void close() {
    if (!socket_) return;
    ask({{"type", "bye"}});
    socket_.reset();
  }
  std::string main_shard() const { return "rank" + std::to_string(rank_); }
  std::string private_shard() const { return main_shard() + ".private"; }
  std::uint64_t length_bytes() const { return 300'000 + 100'000 * rank_; }  // no two alike

  void restore() {
    Frame answer = ask({{"type", "restore"}, {"timeout_ms", 20'000}, {"replication", true}});
    incarnation_ = answer.body.at("incarnation").get<std::uint64_t>();
    if (const auto path = answer.body.find("replication"); path != answer.body.end())
      receive_buffer_ = arena::ReceiveBuffer::attach(std::move(answer.fds.at(path->at("fd").get<std::size_t>())));
    ask({{"type", "restored"}});
    reserve();
  }
  // To an agent that was started again.
  void come_back() {
    hello(incarnation_);
    reserve();
  }
  std::optional<arena::ReceiveBuffer>& receive_buffer() { return receive_buffer_; }
  CheckpointId checkpoint(std::int64_t iteration) const { return CheckpointId(incarnation_, iteration); }
  testing::Piece piece(std::int64_t iteration) const {
    return testing::make_piece(main_shard(), checkpoint(iteration), length_bytes());
  }

  // As if it exchanged that iteration's piece.
  void notify(std::int64_t iteration) {
    word_.piece_bytes = length_bytes();
    word_.state.checkpoint = checkpoint(iteration).word();
    notify();
  }
  void give_up(const std::string& why) {
    receive_buffer_->page().fail(why);
    word_.state.has_given_up = true;
    notify();
  }
  // As if so much had come from there.
  void land(const RawTrainer& from, std::int64_t iteration, std::uint64_t size_bytes) {
    const testing::Piece piece = from.piece(iteration);
    receive_buffer_->begin(from.rank_, piece.manifest.checkpoint);
    std::copy_n(piece.data.begin(), size_bytes, receive_buffer_->bytes(from.rank_).data());
    receive_buffer_->received(from.rank_, size_bytes);
    control_->ring_agent();
  }

  void snapshot(std::int64_t iteration) {
    ASSERT_TRUE(eventually([&] { return control_->grant().sequence > control_->used_grant(); }));
    const arena::Grant grant = control_->grant();
    testing::write_piece(slots_.at(0).writable_slot(grant.slots[0]), piece(iteration));
    testing::write_piece(slots_.at(1).writable_slot(grant.slots[1]),
                         testing::make_piece(private_shard(), checkpoint(iteration), 1000 + rank_));
    control_->attempted(iteration);
    control_->used_grant(grant.sequence);
    control_->ring_agent();
  }
  bool sees_commit(std::int64_t iteration) const {
    return eventually([&] { return control_->committed() >= checkpoint(iteration); });
  }
  json status() const { return cluster_.status(node_).at("ranks").at(0).at("replication"); }

 private:
  void hello(std::uint64_t incarnation) {
    socket_.emplace(FrameSocket::connect(cluster_.node_dir(node_) + "/agent.sock"));
    Frame answer = ask({{"type", "hello"},
                        {"protocol", 3},
                        {"job", "test"},
                        {"rank", rank_},
                        {"world_size", cluster_.world_size()},
                        {"shard", main_shard()},
                        {"private_shard", private_shard()},
                        {"instance", instance_},
                        {"pid", ::getpid()},
                        {"incarnation", incarnation},
                        {"options", json::object()}});
    control_ = arena::Control::attach(std::move(answer.fds.at(0)), rank_);
  }
  void reserve() {
    const auto slot = [](const std::string& shard, std::uint64_t bytes) {
      return json{{"shard", shard}, {"bytes", bytes}, {"layout_bytes", 4096}};
    };
    Frame answer = ask(
        {{"type", "reserve"}, {"slots", {slot(main_shard(), length_bytes()), slot(private_shard(), 1000 + rank_)}}});
    slots_.clear();
    for (UniqueFd& fd : answer.fds)
      slots_.push_back(arena::Segment::attach(std::move(fd), arena::Segment::Access::write, "a segment"));
  }
  void notify() {
    receive_buffer_->page().publish(word_);
    control_->ring_agent();
  }
  Frame ask(const json& request) {
    const Deadline deadline = Deadline::in_ms(30'000);
    socket_->send(request, {}, deadline);
    Frame answer = socket_->receive(deadline);
    if (answer.body.at("status") != CKPT_OK) throw std::runtime_error(answer.body.dump());
    return answer;
  }

  AgentCluster& cluster_;
  const std::string node_;
  const std::uint32_t rank_;
  const std::uint64_t instance_ = ++instances;
  std::uint64_t incarnation_ = 0;
  std::optional<FrameSocket> socket_;
  std::optional<arena::Control> control_;
  std::optional<arena::ReceiveBuffer> receive_buffer_;
  std::vector<arena::Segment> slots_;
  arena::ReplicationState word_;
};

class ReplicationJob : public ::testing::Test {
 protected:
  ReplicationJob() {
    cluster_.start("a");
    cluster_.start("b");
    begin();
  }
  void begin() {
    trainers_.clear();
    trainers_.push_back(std::make_unique<RawTrainer>(cluster_, "a", 0));
    trainers_.push_back(std::make_unique<RawTrainer>(cluster_, "b", 1));
    const std::jthread other([this] { trainers_[1]->restore(); });
    trainers_[0]->restore();
  }
  RawTrainer& trainer(std::size_t rank) { return *trainers_.at(rank); }

  // Both exchange that iteration, and have room for what arrives.
  void live(std::int64_t iteration) {
    for (auto& trainer : trainers_) {
      ASSERT_TRUE(trainer->receive_buffer());
      trainer->notify(iteration);
    }
    for (auto& trainer : trainers_) {
      ASSERT_TRUE(eventually([&] { return trainer->status().at("begun") == true; }));
      ASSERT_TRUE(trainer->receive_buffer()->find_places());
    }
  }
  void land(std::int64_t iteration) {
    trainer(0).land(trainer(1), iteration, trainer(1).length_bytes());
    trainer(1).land(trainer(0), iteration, trainer(0).length_bytes());
  }
  void commit(std::int64_t iteration) {
    for (auto& trainer : trainers_) trainer->snapshot(iteration);
    for (auto& trainer : trainers_) ASSERT_TRUE(trainer->sees_commit(iteration));
  }
  std::uint64_t gpu_received_bytes(std::size_t rank) { return trainer(rank).status().at("gpu_received_bytes"); }
  bool may_overwrite(std::size_t rank, std::int64_t iteration) {
    return eventually(
        [&] { return trainer(rank).receive_buffer()->page().taken(1 - rank) >= trainer(rank).checkpoint(iteration); });
  }

  AgentCluster cluster_{2};
  std::vector<std::unique_ptr<RawTrainer>> trainers_;
};

TEST_F(ReplicationJob, CommitsPiecesDeliveredByGpus) {
  live(3);
  land(3);
  commit(3);
  EXPECT_EQ(gpu_received_bytes(0), trainer(1).length_bytes());
  EXPECT_EQ(gpu_received_bytes(1), trainer(0).length_bytes());
  EXPECT_TRUE(may_overwrite(0, 3) && may_overwrite(1, 3));
}

TEST_F(ReplicationJob, FetchesPiecesFromTheNodeIfGpusDoNotDeliver) {
  live(3);
  trainer(0).land(trainer(1), 3, 2 * kernels::leaf_size_bytes + 77);
  commit(3);
  EXPECT_EQ(gpu_received_bytes(0), 2 * kernels::leaf_size_bytes);
  EXPECT_EQ(gpu_received_bytes(1), 0u);
  EXPECT_TRUE(may_overwrite(0, 3) && may_overwrite(1, 3));
}

TEST_F(ReplicationJob, RefetchesDamagedDeliveriesBeforeCommit) {
  live(3);
  land(3);
  trainer(0).receive_buffer()->bytes(1)[5] ^= std::byte{1};
  commit(3);
  EXPECT_EQ(gpu_received_bytes(0), trainer(1).length_bytes() - kernels::leaf_size_bytes);
}

TEST_F(ReplicationJob, ReplicatesFromHostToHostIfTrainersNeverBegin) {
  commit(3);
  EXPECT_EQ(gpu_received_bytes(0), 0u);
  EXPECT_EQ(trainer(0).status().at("begun"), false);
}

TEST_F(ReplicationJob, ReplicatesFromHostToHostOnceATrainerGaveUp) {
  live(3);
  trainer(1).give_up("NCCL has hung");
  ASSERT_TRUE(eventually([&] { return trainer(0).status().at("gpu") == false; }));
  EXPECT_THAT(trainer(0).status().at("trouble"), HasSubstr("rank 1 has given up GPU replication"));
  EXPECT_EQ(trainer(1).status().at("trouble"), "NCCL has hung");
  land(4);  // whatever a trainer still says
  commit(4);
  EXPECT_EQ(gpu_received_bytes(0), 0u);
  EXPECT_EQ(gpu_received_bytes(1), 0u);
}

TEST_F(ReplicationJob, RestartedAgentTakesDeliveriesFromTheSameMemory) {
  live(3);
  land(3);
  commit(3);
  ASSERT_TRUE(may_overwrite(0, 3));
  cluster_.stop("a");
  cluster_.start("a");
  trainer(0).come_back();
  live(4);
  land(4);
  commit(4);
  EXPECT_EQ(gpu_received_bytes(0), trainer(1).length_bytes()) << "since this agent started";
  EXPECT_EQ(gpu_received_bytes(1), 2 * trainer(0).length_bytes());
}

TEST_F(ReplicationJob, EachIncarnationHasItsOwnReceiveBuffers) {
  live(3);
  land(3);
  commit(3);
  begin();
  EXPECT_EQ(trainer(0).receive_buffer()->page().own_state(), std::nullopt);
  live(4);
  land(4);
  commit(4);
  EXPECT_EQ(gpu_received_bytes(0), trainer(1).length_bytes());
}

TEST_F(ReplicationJob, ReplicatesFromHostToHostAfterATrainerIsGone) {
  live(3);
  trainer(1).close();
  ASSERT_TRUE(eventually([&] { return trainer(0).status().at("gpu") == false; }));
  EXPECT_THAT(trainer(0).status().at("trouble"), HasSubstr("rank 1 has given up GPU replication"));
}

TEST(RefusedReplicationJob, StatusSaysWhyThereIsNoReplicationGroup) {
  AgentCluster cluster(1);
  cluster.start("a");
  RawTrainer alone(cluster, "a", 0);
  alone.restore();
  EXPECT_FALSE(alone.receive_buffer());
  EXPECT_EQ(alone.status().at("gpu"), false);
  EXPECT_THAT(alone.status().at("trouble"), HasSubstr("no other node holds a copy"));
}

}  // namespace
}  // namespace ckpt::agent
