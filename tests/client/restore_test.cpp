#include "base/dtype.hpp"
#include "engine_fixture.hpp"

namespace ckpt::client {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// Names are alike, sizes from nothing to several leaves, so that leaves hold parts of many tensors.
std::vector<TestTensor> every_dtype() {
  std::vector<TestTensor> tensors;
  for (std::size_t dtype = 0; dtype < dtypes.size(); ++dtype) {
    const auto type = static_cast<ckpt_dtype>(dtype);
    const std::string name = std::string("layer.") + dtypes[dtype].name;
    tensors.push_back(test_tensor(name, type, {7, 3, 11}));
    tensors.push_back(test_tensor(name + ".0", type, {}));
    tensors.push_back(test_tensor(name + ".00", type, {0}));
    tensors.push_back(test_tensor(name + ".large", type, {40'001}));
    tensors.push_back(test_tensor(name + ".state", type, {13}, CKPT_SYNCHRONOUS));
  }
  return tensors;
}

class RestoreTest : public EngineTest {
 protected:
  // An earlier incarnation that leaves iterations 0 to 2.
  void leave_something() {
    auto engine = host_engine();
    auto tensors = every_dtype();
    register_all(*engine, tensors);
    restore(*engine);
    for (int k = 0; k < 3; ++k) {
      for (auto& tensor : tensors) tensor.fill(static_cast<std::uint64_t>(k));
      ASSERT_EQ(engine->snapshot(k).status, CKPT_OK);
      ASSERT_EQ(engine->before_update().status, CKPT_OK);
      agent_->grant();
    }
  }
  static void expect_filled(const std::vector<TestTensor>& tensors, std::uint64_t seed) {
    for (const TestTensor& tensor : tensors) {
      TestTensor expected = tensor;
      expected.fill(seed);
      EXPECT_EQ(tensor.bytes, expected.bytes) << tensor.name;
    }
  }
};

// A rank that captures its shard in parts, from the second one on, and restores it from the parts in order.
TEST_F(RestoreTest, RestoresAShardInPartsBitForBit) {
  agent_->share({1, 2, 2});
  leave_something();
  std::uint64_t bytes = 0;
  for (const char* part : {"rank0.0of2", "rank0.1of2"}) {
    const auto piece = agent_->piece(part, CheckpointId(1, 2));
    ASSERT_TRUE(piece) << part;
    EXPECT_EQ(piece->manifest.layout.find("layer") != std::string::npos, true) << "each knows the whole layout";
    bytes += piece->manifest.length_bytes;
  }
  EXPECT_FALSE(agent_->piece("rank0", CheckpointId(1, 2)));
  auto engine = host_engine();
  auto tensors = every_dtype();
  register_all(*engine, tensors);
  const ckpt_restored result = restore(*engine);
  EXPECT_EQ(result.iteration, 2);
  expect_filled(tensors, 2);
  EXPECT_GT(bytes, result.bytes / 2);
}

TEST_F(RestoreTest, ReportsADamagedPartAndRestoresAnotherCheckpoint) {
  agent_->share({0, 2, 2});
  leave_something();
  agent_->damage("rank0.1of2", CheckpointId(1, 2), 3);
  auto engine = host_engine();
  auto tensors = every_dtype();
  register_all(*engine, tensors);
  EXPECT_EQ(restore(*engine).iteration, 1);
  ASSERT_FALSE(agent_->corrupt_reports().empty());
  EXPECT_EQ(agent_->corrupt_reports().front().at("shard"), "rank0.1of2");
  expect_filled(tensors, 1);
}

// The first copy is damaged. So the agent goes back by an iteration, and the rank gets that one.
TEST_F(RestoreTest, RankThatTakesOverShardsLoadsThemItself) {
  agent_->share({0, 2, 2});
  leave_something();
  agent_->damage("rank0.1of2", CheckpointId(1, 2), 3);
  auto engine = host_engine();
  engine->take_shards();
  const auto json = nlohmann::json::parse(engine->stored_layout());
  EXPECT_EQ(json.at("shards"), nlohmann::json({{"main", "rank0"}, {"private", "rank0.private"}}));
  EXPECT_THAT(caught([&] { engine->load_taken("rank1", nullptr, 0); }).sentence, HasSubstr("gets no shard 'rank1'"));
  std::uint64_t loaded_bytes = 0;
  for (const std::string kind : {"main", "private"}) {
    std::uint64_t length_bytes = 0;
    for (const auto& entry : json.at(kind))
      length_bytes = std::max(length_bytes, entry.at("data_offsets").at(1).get<std::uint64_t>());
    std::vector<std::byte> copy(length_bytes);
    engine->load_taken(json.at("shards").at(kind), copy.data(), copy.size());
    loaded_bytes += length_bytes;
    for (TestTensor expected : every_dtype()) {
      if (!json.at(kind).contains(expected.name)) continue;
      expected.fill(1);
      const auto begin = json.at(kind).at(expected.name).at("data_offsets").at(0).get<std::ptrdiff_t>();
      EXPECT_TRUE(std::equal(expected.bytes.begin(), expected.bytes.end(), copy.begin() + begin)) << expected.name;
    }
  }
  auto tensors = every_dtype();
  register_all(*engine, tensors);
  const auto before = tensors;
  const ckpt_restored result = restore(*engine);
  EXPECT_EQ(result.iteration, 1);
  EXPECT_EQ(result.bytes, loaded_bytes);
  EXPECT_THAT(result.message, HasSubstr("the ranks split the state in another way than before"));
  for (std::size_t i = 0; i < tensors.size(); ++i) EXPECT_EQ(tensors[i].bytes, before[i].bytes);
}

TEST_F(RestoreTest, StartsFreshIfNothingIsStored) {
  auto engine = host_engine();
  auto tensors = every_dtype();
  register_all(*engine, tensors);
  const ckpt_restored result = restore(*engine);
  EXPECT_EQ(result.found, 0);
  EXPECT_EQ(result.iteration, -1);
  EXPECT_EQ(result.next_iteration, 0);
  EXPECT_EQ(result.incarnation, 1u);
  EXPECT_EQ(result.main_tier, CKPT_TIER_NONE);
}

TEST_F(RestoreTest, RestoresEveryDtypeBitForBit) {
  leave_something();
  auto engine = host_engine();
  auto tensors = every_dtype();
  register_all(*engine, tensors);
  const ckpt_restored result = restore(*engine);
  EXPECT_EQ(result.found, 1);
  EXPECT_EQ(result.iteration, 2);
  EXPECT_EQ(result.next_iteration, 3);
  EXPECT_EQ(result.main_tier, CKPT_TIER_LOCAL);
  EXPECT_GT(result.bytes, 40'001u * 40);
  EXPECT_EQ(result.fetch_ms, 1.5);
  expect_filled(tensors, 2);
  EXPECT_THAT(caught([&] { engine->snapshot(2); }).sentence, HasSubstr("go backwards"));
}

TEST_F(RestoreTest, StoredLayoutDescribesTheCheckpointBeforeRegistration) {
  leave_something();
  auto engine = host_engine();
  const auto layout = nlohmann::json::parse(engine->stored_layout());
  EXPECT_EQ(layout.at("found"), true);
  EXPECT_EQ(layout.at("iteration"), 2);
  EXPECT_EQ(layout.at("main").at("layer.BF16").at("shape"), nlohmann::json({7, 3, 11}));
  EXPECT_EQ(layout.at("private").at("layer.I64.state").at("dtype"), "I64");
  auto tensors = every_dtype();
  register_all(*engine, tensors);
  EXPECT_EQ(restore(*engine).iteration, 2);
  expect_filled(tensors, 2);
}

TEST_F(RestoreTest, StoredLayoutOfAFreshStartIsEmpty) {
  auto engine = host_engine();
  const auto layout = nlohmann::json::parse(engine->stored_layout());
  EXPECT_EQ(layout.at("found"), false);
  EXPECT_EQ(layout.at("main").size(), 0u);
}

TEST_F(RestoreTest, RefusesAnotherLayoutAndNamesTheFirstDifferingTensor) {
  leave_something();
  auto engine = host_engine();
  auto tensors = every_dtype();
  for (auto& tensor : tensors)
    if (tensor.name == "layer.F32") tensor.shape = {7, 33};
  register_all(*engine, tensors);
  const Caught mismatch = caught([&] { restore(*engine); });
  EXPECT_EQ(mismatch.status, CKPT_ERR_MISMATCH);
  EXPECT_THAT(mismatch.sentence, AllOf(HasSubstr("\"layer.F32\" is stored as F32 [7,3,11]"), HasSubstr("F32 [7,33]")));
  engine->unregister_tensor("layer.F32");
  auto right = test_tensor("layer.F32", CKPT_F32, {7, 3, 11});
  engine->register_tensor(right.abi());
  EXPECT_EQ(restore(*engine).iteration, 2);
}

TEST_F(RestoreTest, NamesTheWorldSizeThatCapturedTheCheckpoint) {
  leave_something();
  auto engine = std::make_unique<Engine>(parse_options(Reader::engine,
                                                       {{"job", "job"},
                                                        {"rank", "0"},
                                                        {"world_size", "2"},
                                                        {"node", "node"},
                                                        {"agent", "attach"},
                                                        {"arena_dir", directory_.path()}},
                                                       nullptr),
                                         std::make_unique<device::HostDevice>(1));
  auto tensors = every_dtype();
  register_all(*engine, tensors);
  EXPECT_EQ(restore(*engine).stored_world_size, 1u);
}

TEST_F(RestoreTest, ReportsADamagedPieceAndUsesTheNextSource) {
  leave_something();
  agent_->damage("rank0", CheckpointId(1, 2), 70'000);
  auto engine = host_engine();
  auto tensors = every_dtype();
  register_all(*engine, tensors);
  EXPECT_EQ(restore(*engine).iteration, 1);
  expect_filled(tensors, 1);
  ASSERT_EQ(agent_->corrupt_reports().size(), 1u);
  EXPECT_EQ(agent_->corrupt_reports()[0].at("shard"), "rank0");
  EXPECT_EQ(agent_->corrupt_reports()[0].at("checkpoint"), CheckpointId(1, 2).word());
  EXPECT_EQ(agent_->corrupt_reports()[0].at("leaf"), 1);
}

TEST_F(RestoreTest, DoesNotMixCheckpointsIfThePrivatePieceIsDamaged) {
  leave_something();
  agent_->damage("rank0.private", CheckpointId(1, 2), 0);
  auto engine = host_engine();
  auto tensors = every_dtype();
  register_all(*engine, tensors);
  EXPECT_EQ(restore(*engine).iteration, 1);
  expect_filled(tensors, 1);
}

TEST_F(RestoreTest, PassesOnTheAgentsRefusal) {
  agent_->answer_with("restore", {{"status", CKPT_ERR_LOST}, {"message", "iteration 7 was committed and is lost"}});
  auto engine = host_engine();
  const Caught lost = caught([&] { restore(*engine); });
  EXPECT_EQ(lost.status, CKPT_ERR_LOST);
  EXPECT_EQ(lost.sentence, "iteration 7 was committed and is lost");
}

TEST_F(RestoreTest, FailsOnInvalidAnswers) {
  agent_->answer_with("restore", {{"found", "yes"}});
  auto engine = host_engine();
  EXPECT_EQ(caught([&] { restore(*engine); }).status, CKPT_ERR_INTERNAL);
  agent_->answer_with("restore", {{"found", true}, {"main", {{"fd", 7}, {"slot", 0}, {"tier", 1}}}});
  EXPECT_EQ(caught([&] { restore(*engine); }).status, CKPT_ERR_INTERNAL);
  agent_->answer_with("restore", {{"status", "fine"}});
  EXPECT_EQ(caught([&] { restore(*engine); }).status, CKPT_ERR_INTERNAL);
}

TEST_F(RestoreTest, ReportsThatTheRestoredStateIsBehind) {
  leave_something();
  agent_->answer_with("restore", {{"behind", true}, {"status_unknown", true}, {"message", "iteration 9 is lost"}});
  auto engine = host_engine();
  auto tensors = every_dtype();
  register_all(*engine, tensors);
  const ckpt_restored result = engine->restore();
  EXPECT_EQ(result.behind, 1);
  EXPECT_EQ(result.status_unknown, 1);
  EXPECT_STREQ(result.message, "iteration 9 is lost");
}

TEST_F(RestoreTest, ContinuesWithANewAgentWithinTheDeadline) {
  leave_something();
  auto engine = host_engine();
  auto tensors = every_dtype();
  register_all(*engine, tensors);
  agent_.reset();
  std::thread restart([&] { agent_.emplace(directory_.path()); });
  EXPECT_EQ(restore(*engine).iteration, 2);
  restart.join();
  expect_filled(tensors, 2);
}

}  // namespace
}  // namespace ckpt::client
