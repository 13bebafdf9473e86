// What a leader orders that has not heard every node yet.
#include <gtest/gtest.h>

#include "cluster.hpp"
#include "core/leader/leader.hpp"

namespace ckpt::core {
namespace {

// Of an incarnation of three nodes with a rank each, whose shards are a parity group, and of a node that was one of
// theirs before.
class NewLeaderWithOrders : public ::testing::Test {
 protected:
  static constexpr NodeId former_member = 7;

  NewLeaderWithOrders() : leader_(Config{}, 2, {}, 0) {
    std::vector<RankAssignment> assignments;
    for (Rank rank = 0; rank < 3; ++rank)
      assignments.push_back({rank, rank, 100 + rank, "", main_shard(rank), private_shard(rank)});
    IncarnationRecord incarnation_record;
    incarnation_record.epoch = 2;
    incarnation_record.incarnation = 1;
    incarnation_record.world_size = 3;
    incarnation_record.decision.verdict = Verdict::fresh;
    incarnation_record.protection = placement::Protection::of_parity(3, 1);
    incarnation_record.assignments = name_of(1, assignments);
    leader_.on(IncarnationRecordRead{1, incarnation_record});
    leader_.on(AssignmentsRead{incarnation_record.assignments, assignments});
  }

  // Its rank has captured these iterations, or it has kept them of `rank`.
  void receive(NodeId node, Rank rank, const std::vector<std::int64_t>& iterations) {
    Report report;
    report.node = node;
    report.arena_id = 100 + node;
    report.agent_id = report.sequence = 1;
    report.epoch = 2;
    for (const std::int64_t iteration : iterations) {
      for (const auto& shard : {main_shard(rank), private_shard(rank)})
        report.pieces.push_back(piece_of(shard, CheckpointId(1, iteration), 3));
    }
    if (node == rank) {
      RankReport trainer{rank, 50 + rank, 1, 3, main_shard(rank), private_shard(rank)};
      trainer.attempted = iterations.back();
      report.ranks.push_back(trainer);
    }
    leader_.on(node, report, ++now_);
  }

  // The iterations of which the node is told to make its main parity, in that order.
  std::vector<std::int64_t> ordered_of(NodeId node) {
    const std::string shard = parity_name(1, {main_shard(0), main_shard(1), main_shard(2)}, node);
    Effects effects;
    leader_.reconcile(++now_, effects);
    std::vector<std::int64_t> iterations;
    for (const Effect& effect : effects) {
      const auto* send = std::get_if<Send>(&effect);
      if (send == nullptr || send->to != node) continue;
      for (const FetchOrder& order : std::get<Directive>(send->message).fetches) {
        if (order.piece.shard == shard) iterations.push_back(order.piece.checkpoint.iteration());
      }
    }
    return iterations;
  }

 private:
  Leader leader_;
  TimeMs now_ = 10;
};

TEST_F(NewLeaderWithOrders, OrdersUncommittedPiecesOnceItHeardEveryMember) {
  receive(0, 0, {2, 3});
  receive(2, 2, {2, 3});
  receive(former_member, 1, {3});
  EXPECT_EQ(ordered_of(0), std::vector<std::int64_t>{}) << "of 3 all is known, of 2 it is not";
  receive(1, 1, {2, 3});
  EXPECT_EQ(ordered_of(0), (std::vector<std::int64_t>{2, 3}));
}

// An incarnation of two ranks on nodes 1 and 2 that goes on from what the incarnation before it had captured last, and
// nobody knows to be a commit. Nodes 0 and 3 took no part in it.
class ReturnedNodes : public ::testing::Test {
 protected:
  static constexpr std::uint64_t usual = 0;
  static constexpr std::uint64_t other = 1;
  const CheckpointId restored{1, 5};

  ReturnedNodes() : leader_(config(), 2, {}, 0) {
    for (Rank rank = 0; rank < 2; ++rank)
      assignments_.push_back({rank, rank + 1, 100 + rank + 1, "", main_shard(rank), private_shard(rank)});
    incarnation_record_.epoch = 2;
    incarnation_record_.incarnation = 2;
    incarnation_record_.world_size = 2;
    incarnation_record_.protection = placement::Protection::of_copies(2);
    incarnation_record_.restored = restored;
    incarnation_record_.assignments = name_of(2, assignments_);
  }
  static Config config() {
    Config config;
    config.node = 1;
    return config;
  }
  // The incarnation has decided, or another one has begun and has not.
  void lead(Verdict verdict) {
    incarnation_record_.decision.verdict = verdict;
    if (verdict == Verdict::restore) incarnation_record_.decision.checkpoint = restored;
    if (verdict == Verdict::undecided) ++incarnation_record_.incarnation;
    leader_.on(IncarnationRecordRead{1, incarnation_record_});
    leader_.on(AssignmentsRead{incarnation_record_.assignments, assignments_});
  }
  // It has what these ranks captured.
  void receive(NodeId node, const std::vector<Rank>& has, std::uint64_t bytes = usual) {
    leader_.on(node, report_of(node, has, bytes), now_);
  }
  Report report_of(NodeId node, const std::vector<Rank>& has, std::uint64_t bytes = usual) {
    Report report;
    report.node = node;
    report.arena_id = 100 + node;
    report.agent_id = 1;
    report.sequence = static_cast<std::uint64_t>(++now_);
    report.epoch = 2;
    report.roll_call = 1;
    report.newest_seen = restored;
    for (const Rank rank : has) {
      for (const auto& shard : {main_shard(rank), private_shard(rank)}) {
        report.pieces.push_back(piece_of(shard, restored, 2));
        report.pieces.back().root_digest ^= bytes;
      }
    }
    if (node == 1 || node == 2) {
      RankReport trainer{
          node - 1, 50 + node, incarnation_record_.incarnation, 2, main_shard(node - 1), private_shard(node - 1)};
      trainer.waiting = true;
      report.ranks.push_back(trainer);
    }
    return report;
  }
  Effects reconcile() {
    Effects effects;
    leader_.reconcile(++now_, effects);
    return effects;
  }
  // What the node is told, if anything.
  std::optional<Directive> directive_to(NodeId node) {
    for (const Effect& effect : reconcile()) {
      const auto* send = std::get_if<Send>(&effect);
      if (send != nullptr && send->to == node) return std::get<Directive>(send->message);
    }
    return std::nullopt;
  }
  static std::set<std::pair<std::string, std::uint64_t>> ordered(const Directive& directive) {
    std::set<std::pair<std::string, std::uint64_t>> orders;
    for (const FetchOrder& order : directive.fetches) orders.insert({order.piece.shard, order.piece.root_digest});
    return orders;
  }
  std::set<std::pair<std::string, std::uint64_t>> pieces_of(Rank rank) const {
    std::set<std::pair<std::string, std::uint64_t>> pieces;
    for (const auto& shard : {main_shard(rank), private_shard(rank)})
      pieces.insert({shard, piece_of(shard, restored, 2).root_digest});
    return pieces;
  }

  Leader leader_;
  IncarnationRecord incarnation_record_;
  std::vector<RankAssignment> assignments_;
  TimeMs now_ = 10;
};

TEST_F(ReturnedNodes, AreNoSourceOfPiecesThatDifferFromAMembers) {
  lead(Verdict::restore);
  receive(0, {0, 1}, other);
  receive(1, {0, 1});
  receive(2, {1});
  const auto directive = directive_to(2);
  ASSERT_TRUE(directive);
  EXPECT_EQ(ordered(*directive), pieces_of(0));
  for (const FetchOrder& order : directive->fetches) EXPECT_EQ(order.sources, std::vector<NodeId>{1});
  EXPECT_TRUE(directive->alarm.find("silent data corruption") != std::string::npos) << directive->alarm;
}

TEST_F(ReturnedNodes, AreNoSourceWhileTheyDiffer) {
  lead(Verdict::restore);
  receive(0, {0}, other);
  receive(1, {});
  receive(2, {});
  receive(3, {0, 1});
  const auto directive = directive_to(2);
  ASSERT_TRUE(directive);
  EXPECT_EQ(ordered(*directive), pieces_of(1));
  EXPECT_TRUE(directive->alarm.find("silent data corruption") != std::string::npos) << directive->alarm;
}

TEST_F(ReturnedNodes, AreTrustedLessThanMembersWhenTheyAreReplacements) {
  incarnation_record_.replacements = {{9, {0, 100}}};
  lead(Verdict::restore);
  receive(0, {0, 1}, other);
  receive(1, {0, 1});
  receive(2, {1});
  const auto directive = directive_to(2);
  ASSERT_TRUE(directive);
  EXPECT_EQ(ordered(*directive), pieces_of(0));
}

TEST_F(ReturnedNodes, AreNoSourceOfParityMadeFromDifferingPieces) {
  PieceInfo first = piece_of("a", restored, 2), second = first, parity = piece_of("p", restored, 2);
  PieceInfo of_another = piece_of("q", restored, 2);
  second.root_digest ^= other;
  parity.parity_manifest = {1, 0, {{"a", 1, 1, first.root_digest}, {"b", 1, 1, 7}}};
  of_another.parity_manifest = {1, 0, {{"b", 1, 1, 7}, {"c", 1, 1, 8}}};
  Pieces pieces;
  pieces["a"].push_back({0, &first});
  pieces["a"].push_back({3, &second});
  pieces["p"].push_back({0, &parity});
  pieces["q"].push_back({0, &of_another});
  const auto disputed = leave_out_disputed(pieces);
  ASSERT_TRUE(disputed);
  EXPECT_EQ(disputed->shard, "a");
  EXPECT_FALSE(pieces.contains("a"));
  EXPECT_FALSE(pieces.contains("p"));
  EXPECT_TRUE(pieces.contains("q"));
}

// Nothing else that it has counts either: what it has may be of another capture as a whole.
TEST_F(ReturnedNodes, AreExcludedIfTheirParityContradictsAMember) {
  PieceInfo own = piece_of("a", restored, 2), parity = piece_of("p", restored, 2), more = piece_of("c", restored, 2);
  parity.parity_manifest = {1, 0, {{"a", 1, 1, own.root_digest ^ other}, {"b", 1, 1, 7}}};
  Pieces pieces;
  pieces["c"].push_back({0, &more});
  pieces["p"].push_back({0, &parity});
  pieces["a"].push_back({1, &own});
  ASSERT_TRUE(leave_out_contradicting(pieces, {0}));
  EXPECT_FALSE(pieces.contains("p"));
  EXPECT_FALSE(pieces.contains("c"));
  EXPECT_TRUE(pieces.contains("a"));
}

TEST_F(ReturnedNodes, DoNotPreventTheCheckpointFromCountingAsACommit) {
  lead(Verdict::restore);
  receive(0, {0, 1}, other);
  receive(1, {0, 1});
  receive(2, {0, 1});
  CheckpointId base;
  for (const Effect& effect : reconcile()) {
    if (const auto* swap = std::get_if<SwapIncarnationRecord>(&effect)) base = swap->record.base;
  }
  EXPECT_EQ(base, restored);
}

// Somebody who has no rank may have led that incarnation, and committed it.
TEST_F(ReturnedNodes, AreNotAwaitedIfMembersHaveTheWholeCheckpoint) {
  lead(Verdict::undecided);
  const CheckpointId whole{2, 7}, half{2, 8}, newest{2, 9};
  for (const NodeId node : {1u, 2u}) {
    Report report = report_of(node, {});
    for (const CheckpointId checkpoint : {whole, half, newest}) {
      for (Rank rank = 0; rank < 2; ++rank) {
        const bool has_none = rank == node - 1 ? false : checkpoint != whole;
        for (const auto& shard : {main_shard(rank), private_shard(rank)})
          if (!has_none) report.pieces.push_back(piece_of(shard, checkpoint, 2));
      }
    }
    report.newest_seen = newest;
    leader_.on(node, report, now_);
  }
  CheckpointId restored_now, base;
  for (const Effect& effect : reconcile()) {
    if (const auto* swap = std::get_if<SwapIncarnationRecord>(&effect)) {
      restored_now = swap->record.restored;
      base = swap->record.base;
    }
  }
  EXPECT_EQ(restored_now, newest);
  EXPECT_EQ(base, whole);
}

TEST_F(ReturnedNodes, DoNotPreventTheNextIncarnationFromRestoringIt) {
  lead(Verdict::undecided);
  receive(0, {0, 1}, other);
  receive(1, {0});
  receive(2, {1});
  std::optional<Decision> decision;
  for (const Effect& effect : reconcile()) {
    if (const auto* swap = std::get_if<SwapIncarnationRecord>(&effect)) decision = swap->record.decision;
  }
  ASSERT_TRUE(decision);
  EXPECT_EQ(decision->verdict, Verdict::restore);
  EXPECT_EQ(decision->checkpoint, restored);
}

}  // namespace
}  // namespace ckpt::core
