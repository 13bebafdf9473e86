// What is written to storage stays where it is while it is written, whatever the leader says meanwhile; and what one
// attempt has written is not counted for the next.
#include <gtest/gtest.h>

#include <algorithm>

#include "core/leader/storage.hpp"
#include "lone_node.hpp"

namespace ckpt::core {
namespace {

// ---- Slots under a write ----

const CheckpointId written(2, 5);

Recovered stored() {
  Recovered recovered;
  for (Rank rank = 0; rank < 2; ++rank) {
    recovered.slots.push_back({{held_rank, main_shard(rank), 0}, piece_of(main_shard(rank), written, 2), true});
    recovered.slots.push_back({{held_rank, main_shard(rank), 1}, {}, false});
  }
  return recovered;
}

Config with_storage() {
  Config config;
  config.storage = config.storage_writes = true;
  return config;
}

Directive directive(std::uint64_t epoch, std::uint64_t incarnation, CheckpointId committed) {
  Directive directive;
  directive.leader = lone_leader;
  directive.epoch = epoch;
  directive.incarnation = incarnation;
  directive.decision.verdict = Verdict::fresh;
  directive.committed = committed;
  // It has heard of all that the node has, so that its orders are obeyed.
  directive.acknowledged_agent = 1;
  directive.acknowledged_report = UINT64_MAX;
  return directive;
}

WriteOrder order_of(CheckpointId checkpoint, std::uint64_t attempt) {
  return {checkpoint, attempt, {main_shard(0), main_shard(1)}};
}

// What a leader may say to a node that writes: each makes the piece worthless in its own way, or needs its slot.
std::vector<Directive> words() {
  std::vector<Directive> words(7);
  words[0] = directive(5, 2, written);  // the order is withdrawn
  words[1] = directive(5, 2, CheckpointId(2, 8));
  words[2] = directive(5, 2, CheckpointId(2, 8));
  words[2].write = order_of(CheckpointId(2, 8), 2);
  words[3] = directive(5, 3, {});  // the job started anew
  words[4] = directive(6, 2, CheckpointId(2, 9));
  words[5] = directive(6, 2, CheckpointId(2, 9));
  words[5].write = order_of(written, 1);  // of a leader that counts its attempts anew
  // Storage has a step that the next incarnation restores, and that needs room for two checkpoints.
  words[6] = directive(5, 3, CheckpointId(1, 2));
  words[6].decision = {Verdict::restore, CheckpointId(1, 2), false, false, {}, ""};
  words[6].reading_storage = true;
  for (const Rank rank : {0u, 1u})
    for (const CheckpointId checkpoint : {CheckpointId(1, 2), CheckpointId(1, 3), CheckpointId(1, 4)})
      words[6].fetches.push_back({piece_of(main_shard(rank), checkpoint, 2), {storage_node}, {}});
  return words;
}

// Each sequence of so many of them.
void each_story(std::size_t length, const std::function<void(const std::vector<Directive>&)>& notify) {
  const auto all = words();
  std::size_t stories = 1;
  for (std::size_t i = 0; i < length; ++i) stories *= all.size();
  for (std::size_t number = 0; number < stories; ++number) {
    std::vector<Directive> story;
    for (std::size_t i = 0, rest = number; i < length; ++i, rest /= all.size()) story.push_back(all[rest % all.size()]);
    notify(story);
  }
}

bool drops(const LoneNode& node, const StartWrite& write) {
  const auto dropped = node.all<DropSlot>();
  return std::any_of(dropped.begin(), dropped.end(), [&](const DropSlot& drop) {
    return std::find(write.slots.begin(), write.slots.end(), drop.slot) != write.slots.end();
  });
}

TEST(SlotUnderAStorageWrite, StaysUntilTheWriteEnds) {
  each_story(3, [](const std::vector<Directive>& story) {
    LoneNode node(with_storage(), stored());
    node.follow(lone_leader, 5);
    std::uint64_t sequence = 1;
    Directive first = directive(5, 2, written);
    first.sequence = sequence;
    first.write = order_of(written, 1);
    node.receive(lone_leader, first);
    const auto writes = node.all<StartWrite>();
    ASSERT_EQ(writes.size(), 1u);
    ASSERT_EQ(writes[0].slots.size(), 2u);
    for (Directive word : story) {
      word.sequence = ++sequence;
      node.receive(lone_leader, word);
      node.handle(Tick{});
      ASSERT_FALSE(drops(node, writes[0]));
      for (const SlotRef& slot : writes[0].slots) EXPECT_NE(node.find(slot.shard, written), nullptr);
      EXPECT_EQ(node.all<StartWrite>().size(), 1u) << "one at a time";
    }
    // And goes as soon as nobody needs it.
    node.handle(WriteEnded{written, ""});
    Directive last = directive(6, 4, CheckpointId(4, 1));
    last.sequence = ++sequence;
    node.receive(lone_leader, last);
    EXPECT_TRUE(drops(node, writes[0]));
  });
}

// It is the next thing that is written there.
TEST(SlotUnderAStorageWrite, StaysWhileItsOrderStandsDuringAnotherWrite) {
  LoneNode node(with_storage(), stored());
  node.follow(lone_leader, 5);
  Directive first = directive(5, 2, written);
  first.sequence = 1;
  first.write = order_of(written, 1);
  node.receive(lone_leader, first);
  ASSERT_EQ(node.all<StartWrite>().size(), 1u);
  Directive again = directive(5, 2, CheckpointId(2, 8));
  again.sequence = 2;
  again.write = order_of(written, 2);
  node.receive(lone_leader, again);
  node.handle(WriteEnded{written, "no space"});
  const auto writes = node.all<StartWrite>();
  ASSERT_EQ(writes.size(), 2u) << "each attempt writes anew: what the one before wrote may have been removed";
  EXPECT_FALSE(drops(node, writes[0]));
  EXPECT_EQ(node.newest_to<Report>(lone_leader).written.attempt, 1u);
  node.handle(WriteEnded{written, ""});
  EXPECT_EQ(node.newest_to<Report>(lone_leader).written.attempt, 2u);
}

// ---- Attempts ----

// Two nodes write a checkpoint of one shard each. The leader's part alone, with what they report.
class Attempts {
 public:
  Attempts() {
    for (Rank rank = 0; rank < 2; ++rank) {
      places_[main_shard(rank)] = Place{{rank}, {rank}, {rank}};
      pieces_.push_back(piece_of(main_shard(rank), checkpoint, 2));
    }
    for (Rank rank = 0; rank < 2; ++rank) inventory_[checkpoint][pieces_[rank].shard].push_back({rank, &pieces_[rank]});
    storage_.on(StorageListed{{}, {}, 0, true, ""}, now_);
    reconcile();
  }
  std::uint64_t current() const { return storage_.order_for(0).attempt; }
  bool is_being_finalized() const { return commits_ != 0; }

  // Nothing where it has said that, or something of a later attempt: it has one outcome of each.
  void report(NodeId node, std::uint64_t attempt, const std::string& trouble) {
    if (attempt <= said_[node].attempt) return;
    said_[node] = {checkpoint, attempt, {main_shard(node)}, trouble};
    Report report;
    report.node = node;
    report.written = said_[node];
    storage_.on(report);
    const std::uint64_t before = current();
    const bool may_commit = is_done(0, before) && is_done(1, before);
    reconcile();
    EXPECT_EQ(is_being_finalized(), may_commit);
    now_ += 2500;
    if (is_being_finalized()) return;
    reconcile();
    const bool fails = attempt == before && !trouble.empty();
    EXPECT_EQ(current(), fails ? before + 1 : before) << "it is tried again after its own trouble, and no other";
  }

  static inline const CheckpointId checkpoint{1, 10};

 private:
  bool is_done(NodeId node, std::uint64_t attempt) {
    return said_[node].attempt == attempt && said_[node].trouble.empty();
  }
  void reconcile() {
    Effects effects;
    storage_.reconcile_writes({checkpoint, {}, true, 2, places_, places_, inventory_}, now_, effects);
    for (const Effect& effect : effects) commits_ += std::holds_alternative<FinalizeCheckpoint>(effect);
  }

  const Config config_ = with_storage();
  TimeMs now_ = 1000;
  JobStorage storage_{config_, 0};
  Places places_;
  std::vector<PieceInfo> pieces_;
  Inventory inventory_;
  std::map<NodeId, Written> said_;
  int commits_ = 0;
};

TEST(StorageAttempts, CountOnlyTheirOwnWrites) {
  // What a node may say next: of this attempt or one before, with trouble or without.
  struct Word {
    NodeId node;
    std::uint64_t attempts_ago;
    const char* trouble;
  };
  std::vector<Word> words;
  for (const NodeId node : {0u, 1u})
    for (const std::uint64_t ago : {0u, 1u, 2u})
      for (const char* trouble : {"", "no space"}) words.push_back({node, ago, trouble});
  constexpr std::size_t length = 4;
  int made_whole = 0;
  for (std::size_t number = 0; number < words.size() * words.size() * words.size() * words.size(); ++number) {
    Attempts attempts;
    ASSERT_EQ(attempts.current(), 1u);
    for (std::size_t i = 0, rest = number; i < length && !attempts.is_being_finalized(); ++i, rest /= words.size()) {
      const auto& [node, ago, trouble] = words[rest % words.size()];
      if (ago < attempts.current()) attempts.report(node, attempts.current() - ago, trouble);
      if (testing::Test::HasFailure()) return;
    }
    made_whole += attempts.is_being_finalized();
  }
  EXPECT_GT(made_whole, 1000);
}

}  // namespace
}  // namespace ckpt::core
