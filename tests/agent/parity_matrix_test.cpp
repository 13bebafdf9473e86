// Whole agents under parity, and everything that can happen to what they hold: {erased, damaged} x {shards, parity,
// whole nodes} x {neighbours in the group, others} x {before, during, after encoding}. What comes back is what the
// protection promises, byte for byte.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <future>
#include <mutex>

#include "cluster.hpp"
#include "core/parity_pieces.hpp"
#include "kernels/digest.hpp"

namespace ckpt::agent {
namespace {

using testing::AgentCluster;
using ::testing::Each;
using testing::eventually;
using testing::on_all;
using testing::Trainer;

using Trainers = std::vector<std::unique_ptr<Trainer>>;

// Stands between all agents and their fetches.
class Gate {
 public:
  // From now on so many fetches pass, and those after them wait.
  void close_after(std::size_t count) {
    const std::lock_guard lock(mutex_);
    passes_ = count;
  }
  void open() {
    std::vector<Held> held;
    {
      const std::lock_guard lock(mutex_);
      passes_.reset();
      held = std::exchange(held_, {});
    }
    for (const Held& each : held) each.go();
  }
  bool holds_some() {
    const std::lock_guard lock(mutex_);
    return !held_.empty();
  }
  void pass(const void* owner, std::function<void()> go, std::function<void()> give_up) {
    {
      const std::lock_guard lock(mutex_);
      if (passes_ && *passes_ == 0) {
        held_.push_back({owner, std::move(go), std::move(give_up)});
        return;
      }
      if (passes_) --*passes_;
    }
    go();
  }
  // The owner ends.
  void give_up(const void* owner) {
    std::vector<Held> ended;
    {
      const std::lock_guard lock(mutex_);
      for (Held& each : held_) {
        if (each.owner == owner) ended.push_back(std::move(each));
      }
      std::erase_if(held_, [&](const Held& each) { return each.owner == owner; });
    }
    for (const Held& each : ended) each.give_up();
  }

 private:
  struct Held {
    const void* owner;
    std::function<void()> go;
    std::function<void()> give_up;
  };
  std::mutex mutex_;
  std::optional<std::size_t> passes_;
  std::vector<Held> held_;
};

std::unique_ptr<test::FakeTransport> gated(std::unique_ptr<net::Transport> inner, Gate& gate) {
  auto transport = std::make_unique<test::FakeTransport>(std::move(inner));
  transport->on_fetch = [&gate, owner = transport.get()](auto from, auto piece, auto part, auto sink, auto timeout_ms) {
    gate.pass(
        owner, [=] { owner->inner().fetch(from, piece, part, sink, timeout_ms); },
        [sink] { sink->ended(net::FetchEnd::timed_out); });
  };
  transport->on_end = [&gate, owner = transport.get()] { gate.give_up(owner); };
  return transport;
}

enum class Harm { erase, damage };
enum class What { shards, parity, nodes };
enum class When { before, during, after };

struct Group {
  const char* protection;
  std::vector<std::uint32_t> victims;  // as many as may be lost
  const char* name;
  std::uint32_t ranks = 4;
};

using Case = std::tuple<Group, Harm, What, When>;

class ParityMatrix : public ::testing::TestWithParam<Case> {
 protected:
  const std::uint32_t ranks = std::get<Group>(GetParam()).ranks;

  void SetUp() override {
    for (std::uint32_t rank = 0; rank < ranks; ++rank) start_agent(rank);
    start_trainers();
  }
  void TearDown() override {
    trainers_.clear();
    gate_.open();
  }

  static std::string node(std::uint32_t rank) { return "n" + std::to_string(rank); }
  void start_agent(std::uint32_t rank) {
    start_agent(rank, [this](std::unique_ptr<net::Transport> inner) { return gated(std::move(inner), gate_); });
  }
  void start_agent(std::uint32_t rank, const testing::Wrap& wrap) {
    cluster_.start(node(rank),
                   {{"protection", std::get<Group>(GetParam()).protection},
                    {"node_timeout_ms", "1000"},
                    {"lease_ms", "1000"},
                    {"node_wait_ms", "500"}},
                   testing::wrapped(wrap));
  }
  void start_trainers() {
    trainers_.clear();
    for (std::uint32_t rank = 0; rank < ranks; ++rank) {
      // Of different lengths, none of them a whole number of leaves.
      trainers_.push_back(std::make_unique<Trainer>(cluster_, node(rank), rank, 60'000 + 17'001 * rank));
    }
  }
  std::int64_t restore() {
    EXPECT_THAT(on_all(trainers_, [](Trainer& trainer) { return trainer.restore(); }), Each(CKPT_OK))
        << trainers_[0]->error();
    const std::int64_t iteration = trainers_[0]->restored().iteration;
    for (const auto& trainer : trainers_) {
      EXPECT_EQ(trainer->restored().iteration, iteration);
      EXPECT_TRUE(iteration < 0 || trainer->holds(iteration));
    }
    return iteration;
  }
  // The next iteration that all ranks take. The gate closes after so many fetches for it. It opens again where a rank
  // skipped the iteration: what it holds keeps the slots of the others.
  std::int64_t capture(std::optional<std::size_t> passes = {}) {
    // Four times: under ThreadSanitizer on a busy machine, the commits before it may take that long.
    const Deadline deadline = Deadline::in_ms(4 * std::chrono::milliseconds(testing::wait_limit).count());
    while (!deadline.passed()) {
      ++iteration_;
      if (passes) gate_.close_after(*passes);
      const auto taken = on_all(trainers_, [&](Trainer& trainer) { return trainer.snapshot_in_time(iteration_); });
      if (std::all_of(taken.begin(), taken.end(), [](ckpt_status status) { return status == CKPT_OK; }))
        return iteration_;
      if (passes) gate_.open();
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    throw std::runtime_error("nothing was captured");
  }
  std::int64_t commit() {
    for (;;) {
      const std::int64_t iteration = capture();
      const auto waited = on_all(trainers_, [&](Trainer& trainer) { return trainer.wait_commit(iteration); });
      if (std::all_of(waited.begin(), waited.end(), [](ckpt_status status) { return status == CKPT_OK; }))
        return iteration;
    }
  }

  bool is_chosen(const std::string& shard) const {
    const bool is_parity = shard.starts_with(core::parity_prefix);
    const What what = std::get<What>(GetParam());
    return what == What::nodes || is_parity == (what == What::parity);
  }
  // visit(segment, slot) for all chosen pieces of the iteration on the node.
  int each_chosen(std::uint32_t rank, std::int64_t iteration,
                  const std::function<void(arena::Segment&, std::uint32_t)>& visit) {
    int count = 0;
    const auto status = cluster_.status(node(rank));
    for (const auto& segment : status.at("segments")) {
      if (!is_chosen(segment.at("shard"))) continue;
      auto mapped = arena::Segment::attach(segment.at("file").get<std::string>(), arena::Segment::Access::write);
      for (std::uint32_t slot = 0; slot < mapped.spec().slots; ++slot) {
        const auto& checkpoint = segment.at("slots")[slot].at("checkpoint");
        if (checkpoint.is_null() || checkpoint.at("iteration") != iteration) continue;
        visit(mapped, slot);
        ++count;
      }
    }
    return count;
  }
  // A byte of every leaf.
  int damage(std::uint32_t rank, std::int64_t iteration) {
    return each_chosen(rank, iteration, [](arena::Segment& segment, std::uint32_t slot) {
      const auto manifest = segment.slot(slot).read();
      for (std::uint64_t at = 0; manifest && at < manifest->length_bytes; at += kernels::leaf_size_bytes)
        segment.writable_slot(slot).data()[at + (manifest->length_bytes - at) % 1000] ^= std::byte{8};
    });
  }
  // Where the agent that starts next does not find it.
  void erase(std::uint32_t rank, std::int64_t iteration) {
    if (std::get<What>(GetParam()) == What::nodes) {
      cluster_.destroy(node(rank));
    } else {
      each_chosen(rank, iteration, [](arena::Segment& segment, std::uint32_t slot) {
        segment.writable_slot(slot).drop(segment.slot(slot).checkpoint());
      });
      cluster_.stop(node(rank));
    }
    start_agent(rank);
  }
  void harm(std::int64_t iteration) {
    const auto& victims = std::get<Group>(GetParam()).victims;
    const auto [harm, what, when] =
        std::tuple(std::get<Harm>(GetParam()), std::get<What>(GetParam()), std::get<When>(GetParam()));
    if (harm == Harm::damage) {
      int damaged = 0;
      for (const std::uint32_t victim : victims) damaged += damage(victim, iteration);
      EXPECT_TRUE(damaged > 0 || what == What::parity);
      gate_.open();
      // Whoever makes parity of it finds it, and it is thrown away.
      const bool is_found = when != When::after && what != What::parity;
      for (const std::uint32_t victim : victims) {
        EXPECT_TRUE(!is_found || eventually([&] { return !has_whole(victim, iteration); }));
      }
      trainers_.clear();
    } else {
      trainers_.clear();
      for (const std::uint32_t victim : victims) erase(victim, iteration);
      gate_.open();
    }
  }
  bool has_whole(std::uint32_t rank, std::int64_t iteration) {
    const auto status = cluster_.status(node(rank));
    for (const auto& segment : status.at("segments")) {
      if (segment.at("shard") != "rank" + std::to_string(rank)) continue;
      for (const auto& slot : segment.at("slots")) {
        if (!slot.at("checkpoint").is_null() && slot.at("checkpoint").at("iteration") == iteration) return true;
      }
    }
    return false;
  }

  Gate gate_;
  AgentCluster cluster_{ranks};
  Trainers trainers_;
  std::int64_t iteration_ = -1;
};

TEST_P(ParityMatrix, RestoresOrFailsAsItsToleranceSays) {
  const auto [what, when] = std::tuple(std::get<What>(GetParam()), std::get<When>(GetParam()));
  EXPECT_EQ(restore(), -1);
  const std::int64_t base = commit();
  std::int64_t next = 0;
  if (when == When::after) {
    next = commit();
  } else {
    next = capture(when == When::before ? 0 : 3);
    ASSERT_TRUE(eventually([&] { return gate_.holds_some(); }));
    for (std::uint32_t rank = 0; rank < ranks; ++rank)
      ASSERT_TRUE(eventually([&] { return has_whole(rank, next); })) << rank;
  }
  harm(next);
  start_trainers();
  const std::int64_t restored = restore();
  if (when == When::after || what == What::parity) {
    EXPECT_EQ(restored, next) << "it was committed, or all shards of it are there";
  } else if (when == When::before) {
    EXPECT_EQ(restored, base) << "nothing can give back what no parity was made of";
  } else {
    EXPECT_TRUE(restored == base || restored == next) << restored;
  }
  // And on it goes: protected again, and able to lose the others.
  iteration_ = std::max(iteration_, restored);
  const std::int64_t last = commit();
  trainers_.clear();
  const std::uint32_t other = 3;
  cluster_.destroy(node(other));
  start_agent(other);
  start_trainers();
  EXPECT_EQ(restore(), last);
  EXPECT_EQ(trainers_[other]->restored().main_tier, CKPT_TIER_DECODED);
}

std::string name_of(const ::testing::TestParamInfo<Case>& info) {
  const auto& [group, harm, what, when] = info.param;
  const char* harms[] = {"Erased", "Damaged"};
  const char* whats[] = {"Shards", "Parity", "Nodes"};
  const char* whens[] = {"BeforeEncoding", "DuringEncoding", "AfterEncoding"};
  return std::string(group.name) + harms[static_cast<int>(harm)] + whats[static_cast<int>(what)] +
         whens[static_cast<int>(when)];
}

// One is enough where everything takes several times as long.
#ifdef CKPT_TEST_ONE_GROUP
const auto groups = ::testing::Values(Group{"rs(4,2)", {1, 2}, "Neighbours"});
#else
const auto groups = ::testing::Values(Group{"xor(4)", {1}, "One"}, Group{"rs(4,2)", {1, 2}, "Neighbours"},
                                      Group{"rs(4,2)", {0, 2}, "Apart"});
#endif

INSTANTIATE_TEST_SUITE_P(All, ParityMatrix,
                         ::testing::Combine(groups, ::testing::Values(Harm::erase, Harm::damage),
                                            ::testing::Values(What::shards, What::parity, What::nodes),
                                            ::testing::Values(When::before, When::during, When::after)),
                         name_of);

// ---- Sources that cannot be used are done without ----

class Survivors : public ParityMatrix {
 protected:
  // All parity that the node holds of the iteration, with digests that fit.
  void falsify_parity(std::uint32_t rank, std::int64_t iteration) {
    each_chosen(rank, iteration, [](arena::Segment& segment, std::uint32_t index) {
      auto slot = segment.writable_slot(index);
      auto manifest = slot.read();
      if (!manifest->shard.starts_with(core::parity_prefix)) return;
      slot.begin();
      for (std::uint64_t at = 0; at < manifest->length_bytes; at += kernels::leaf_size_bytes)
        slot.data()[at] ^= std::byte{1};
      kernels::digest_leaves(slot.data(), manifest->length_bytes, manifest->leaves.data());
      manifest->root_digest = kernels::root_digest(manifest->leaves, manifest->length_bytes);
      slot.seal(*manifest);
    });
  }
};

// Nothing comes from that node to the nodes that lost their memory.
std::unique_ptr<test::FakeTransport> deaf(std::unique_ptr<net::Transport> inner, Gate& gate,
                                          const std::atomic<int>& silent) {
  auto transport = gated(std::move(inner), gate);
  transport->on_fetch = [&silent, fetch = std::move(transport->on_fetch)](auto from, auto piece, auto part, auto sink,
                                                                          auto timeout_ms) {
    if (static_cast<int>(from) == silent) return sink->ended(net::FetchEnd::peer_failed);
    fetch(from, std::move(piece), part, std::move(sink), timeout_ms);
  };
  return transport;
}

TEST_P(Survivors, DecodesWithoutANodeThatOnlyItCannotReach) {
  EXPECT_EQ(restore(), -1);
  const std::int64_t last = commit();
  trainers_.clear();
  for (const std::uint32_t silent : {0u, 1u, 3u}) {
    cluster_.destroy(node(2));
    std::atomic<int> silent_id = cluster_.status(node(silent)).at("node_id").get<int>();
    start_agent(2, [&](std::unique_ptr<net::Transport> inner) { return deaf(std::move(inner), gate_, silent_id); });
    start_trainers();
    EXPECT_EQ(restore(), last) << silent;
    EXPECT_EQ(trainers_[2]->restored().main_tier, CKPT_TIER_DECODED);
    trainers_.clear();
    cluster_.stop(node(2));
  }
}

TEST_P(Survivors, NodeDropsParityThatDecodesWrongly) {
  EXPECT_EQ(restore(), -1);
  const std::int64_t last = commit();
  trainers_.clear();
  falsify_parity(0, last);
  cluster_.stop(node(0));
  start_agent(0);  // finds it whole
  ASSERT_TRUE(eventually([&] { return cluster_.status(node(0)).at("parity_now") == 2; })) << "and is counted with it";
  cluster_.destroy(node(2));
  start_agent(2);
  start_trainers();
  EXPECT_EQ(restore(), last);
  EXPECT_GE(cluster_.status(node(2)).at("counters").at("corrupt"), 1) << "it was read, and found out";
  EXPECT_TRUE(eventually([&] { return cluster_.status(node(0)).at("parity_now") == 2; })) << "made anew, and true";
}

// Two parity pieces are decoded with then, and nothing true can come of it: the true one is not thrown away for that.
TEST_P(Survivors, WrongParityLosesNothingOnceTheUnreachableNodeReturns) {
  EXPECT_EQ(restore(), -1);
  const std::int64_t last = commit();
  trainers_.clear();
  for (const std::uint32_t silent : {1u, 3u}) {
    falsify_parity(0, last);
    cluster_.stop(node(0));
    start_agent(0);
    ASSERT_TRUE(eventually([&] { return cluster_.status(node(0)).at("parity_now") == 2; }));
    cluster_.destroy(node(2));
    std::atomic<int> silent_id = cluster_.status(node(silent)).at("node_id").get<int>();
    start_agent(2, [&](std::unique_ptr<net::Transport> inner) { return deaf(std::move(inner), gate_, silent_id); });
    start_trainers();
    auto restored = std::async(std::launch::async, [this] { return restore(); });
    // Or it did not need the silent node, whose shard ends before: then the wrong one was found out and made anew.
    EXPECT_TRUE(eventually([&] {
      return cluster_.status(node(2)).at("counters").at("failed_fetches") >= 2 ||
             restored.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
    }));
    silent_id = -1;
    EXPECT_EQ(restored.get(), last) << silent;
    EXPECT_EQ(trainers_[2]->restored().main_tier, CKPT_TIER_DECODED);
    EXPECT_TRUE(eventually([&] { return cluster_.status(node(0)).at("parity_now") == 2; })) << "made anew, and true";
    trainers_.clear();
    cluster_.stop(node(2));
    start_agent(2);
  }
}

INSTANTIATE_TEST_SUITE_P(Two, Survivors,
                         ::testing::Combine(::testing::Values(Group{"rs(4,2)", {}, "Two"}),
                                            ::testing::Values(Harm::erase), ::testing::Values(What::nodes),
                                            ::testing::Values(When::after)),
                         name_of);

// Enough is left beside the wrong one, for two lost shards: it is found by doing without each.
class Majority : public Survivors {};

TEST_P(Majority, FindsTheWrongParityPieceAndDecodesWithTheOthers) {
  EXPECT_EQ(restore(), -1);
  const std::int64_t last = commit();
  trainers_.clear();
  falsify_parity(0, last);
  cluster_.stop(node(0));
  start_agent(0);
  ASSERT_TRUE(eventually([&] { return cluster_.status(node(0)).at("parity_now") == 3; }));
  for (const std::uint32_t lost : {2u, 3u}) cluster_.destroy(node(lost));
  for (const std::uint32_t lost : {2u, 3u}) start_agent(lost);
  start_trainers();
  EXPECT_EQ(restore(), last);
  EXPECT_TRUE(eventually([&] { return cluster_.status(node(0)).at("parity_now") == 3; })) << "made anew, and true";
}

INSTANTIATE_TEST_SUITE_P(Three, Majority,
                         ::testing::Combine(::testing::Values(Group{"rs(5,3)", {}, "Three", 5}),
                                            ::testing::Values(Harm::erase), ::testing::Values(What::nodes),
                                            ::testing::Values(When::after)),
                         name_of);

}  // namespace
}  // namespace ckpt::agent
