// A node bears witness of the newest checkpoint that was ever whole on it: in whatever way the piece came, and whatever
// became of it since.
#include <gtest/gtest.h>

#include <cstdint>

#include "lone_node.hpp"

namespace ckpt::core::newest_seen {
namespace {

const CheckpointId checkpoint(1, 7);

// A member of incarnation 1 that another node leads.
class Witness {
 public:
  explicit Witness(const Recovered& recovered = {}) : node(Config{}, recovered) { node.follow(lone_leader, 5); }

  void order(const std::vector<FetchOrder>& fetches, CheckpointId committed = {}) {
    Directive directive;
    directive.leader = lone_leader;
    directive.epoch = 5;
    directive.sequence = ++sequence_;
    directive.acknowledged_agent = 1;  // all that this node has said
    directive.acknowledged_report = UINT64_MAX;
    directive.incarnation = 1;
    directive.decision.verdict = Verdict::fresh;
    directive.admitted.push_back({0, 50, Share{}});
    directive.committed = committed;
    directive.fetches = fetches;
    node.receive(lone_leader, directive);
  }
  void capture() {
    node.handle(TrainerHello{0, 50, 0, 2, main_shard(0), private_shard(0)});
    node.handle(RestoreAsked{0});
    order({});
    node.handle(RestoreDone{0});
    node.handle(SegmentsReady{0, {main_shard(0), private_shard(0)}});
    node.handle(Captured{0, {piece_of(main_shard(0), checkpoint, 2), piece_of(private_shard(0), checkpoint, 2)}});
  }
  void fetch(const FetchOrder& wanted) {
    order({wanted});
    const auto started = node.all<StartFetch>();
    ASSERT_EQ(started.size(), 1u);
    PieceInfo made = wanted.piece;
    made.root_digest = 77;
    node.handle(FetchEnded{started[0].fetch, FetchResult::complete, {}, made});
  }
  // The one that is whole.
  SlotRef slot() const {
    const PieceInfo piece = node.status().pieces.at(0);
    return *node.find(piece.shard, piece.checkpoint);
  }

  LoneNode node;

 private:
  std::uint64_t sequence_ = 0;
};

// Each way in which a piece becomes whole on a node.
std::map<std::string, std::function<void(Witness&)>> ways() {
  PieceInfo parity = piece_of("parity.00", checkpoint, 2);
  parity.parity_manifest = {1, 0, {{main_shard(1), 1000, 100, 7}, {main_shard(2), 1000, 100, 8}}};
  PieceInfo first_parity = parity;
  first_parity.root_digest = 0;
  const CodingInputs coding_inputs{parity.parity_manifest, {{main_shard(1), 1, 7}, {main_shard(2), 2, 8}}};
  const PieceInfo data = piece_of(main_shard(1), checkpoint, 2);
  return {{"captured", [](Witness& witness) { witness.capture(); }},
          {"of a peer",
           [=](Witness& witness) {
             witness.fetch({data, {2}, {}});
           }},
          {"from storage",
           [=](Witness& witness) {
             witness.fetch({data, {storage_node}, {}});
           }},
          {"decoded",
           [=](Witness& witness) {
             witness.fetch({data, {parity_node}, coding_inputs});
           }},
          {"parity of a peer",
           [=](Witness& witness) {
             witness.fetch({parity, {2}, {}});
           }},
          {"parity made", [=](Witness& witness) {
             witness.fetch({first_parity, {parity_node}, coding_inputs});
           }}};
}

TEST(NewestSeen, CountsEveryPieceThatBecomesComplete) {
  for (const auto& [name, come] : ways()) {
    Witness witness;
    come(witness);
    ASSERT_FALSE(witness.node.status().pieces.empty()) << name;
    EXPECT_EQ(witness.node.newest_to<Report>(lone_leader).newest_seen, checkpoint) << name;
  }
}

// Else an agent that ends before it is on record would deny it after its next start.
TEST(NewestSeen, IsPersistedBeforeItIsReported) {
  for (const auto& [name, come] : ways()) {
    Witness witness;
    come(witness);
    CheckpointId recorded;
    for (const Effect& effect : witness.node.effects) {
      if (const auto* persist = std::get_if<Persist>(&effect)) recorded = persist->newest_seen;
      const auto* send = std::get_if<Send>(&effect);
      if (send == nullptr || send->to != lone_leader) continue;
      for (const PieceInfo& piece : std::get<Report>(send->message).pieces)
        EXPECT_LE(piece.checkpoint, recorded) << name;
      EXPECT_LE(std::get<Report>(send->message).newest_seen, recorded) << name;
    }
  }
}

TEST(NewestSeen, OutlivesItsPiece) {
  for (const auto& [name, come] : ways()) {
    for (const bool is_corrupt : {false, true}) {
      Witness witness;
      come(witness);
      while (is_corrupt && !witness.node.status().pieces.empty()) witness.node.handle(PieceCorrupt{witness.slot()});
      witness.order({}, is_corrupt ? CheckpointId() : CheckpointId(1, 8));  // a newer commit makes the piece worthless
      ASSERT_TRUE(witness.node.status().pieces.empty()) << name;
      EXPECT_EQ(witness.node.newest_to<Report>(lone_leader).newest_seen, checkpoint) << name;
    }
  }
}

TEST(NewestSeen, IsRememberedByTheNextAgent) {
  Recovered recovered;
  recovered.newest_seen = checkpoint;
  Witness by_record(recovered);
  by_record.node.handle(Tick{});
  EXPECT_EQ(by_record.node.newest_to<Report>(lone_leader).newest_seen, checkpoint);
  Recovered with_piece;
  with_piece.slots.push_back({{held_rank, main_shard(1), 0}, piece_of(main_shard(1), checkpoint, 2), true});
  Witness by_piece(with_piece);
  by_piece.node.handle(Tick{});
  EXPECT_EQ(by_piece.node.newest_to<Report>(lone_leader).newest_seen, checkpoint);
}

}  // namespace
}  // namespace ckpt::core::newest_seen
