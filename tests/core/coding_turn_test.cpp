// When a node begins to compute a piece of which it also gets the inputs.
#include <gtest/gtest.h>

#include <cstdint>

#include "lone_node.hpp"

namespace ckpt::core::coding_turn {
namespace {

const CheckpointId checkpoint(1, 7);
constexpr NodeId first_peer = 2, second_peer = 3;

// A member that restores. Another node leads. The shard of rank 0 is lost, and is decoded from that of rank 1 and from
// parity.
class CodingTurn : public ::testing::Test {
 protected:
  CodingTurn() { node_.follow(lone_leader, 5); }

  void order(const std::vector<FetchOrder>& fetches) {
    Directive directive;
    directive.leader = lone_leader;
    directive.epoch = 5;
    directive.sequence = ++sequence_;
    directive.acknowledged_agent = 1;  // all that this node has said
    directive.acknowledged_report = UINT64_MAX;
    directive.incarnation = 2;
    directive.decision.verdict = Verdict::restore;
    directive.decision.checkpoint = checkpoint;
    directive.admitted.push_back({0, 50, Share{}});
    directive.fetches = fetches;
    node_.receive(lone_leader, directive);
  }
  std::vector<NodeId> sources() const {
    std::vector<NodeId> sources;
    for (const StartFetch& start : node_.all<StartFetch>()) sources.push_back(start.source);
    return sources;
  }
  void end_first(FetchResult result) {
    const StartFetch first = node_.all<StartFetch>().at(0);
    node_.handle(FetchEnded{first.fetch, result, {}, first.piece});
  }

  const ParityManifest group_{1, 0, {{main_shard(0), 1000, 100, 7}, {main_shard(1), 1000, 100, 8}}};
  const FetchOrder decode_{piece_of(main_shard(0), checkpoint, 2),
                           {parity_node},
                           CodingInputs{group_, {{main_shard(1), first_peer, 8}, {"parity.01", second_peer, 9}}}};
  const FetchOrder input_{piece_of(main_shard(1), checkpoint, 2), {first_peer, second_peer}, {}};
  LoneNode node_{Config{}};
  std::uint64_t sequence_ = 0;
};

TEST_F(CodingTurn, BeginsOnceAllInputsThatAreComingHaveArrived) {
  order({decode_, input_});
  EXPECT_EQ(sources(), std::vector<NodeId>{first_peer});
  end_first(FetchResult::complete);
  EXPECT_EQ(sources(), (std::vector<NodeId>{first_peer, parity_node}));
}

TEST_F(CodingTurn, DoesNotWaitForAnInputWhoseFetchFailed) {
  order({decode_, input_});
  end_first(FetchResult::failed);
  EXPECT_EQ(sources(), (std::vector<NodeId>{first_peer, second_peer, parity_node}));
}

TEST_F(CodingTurn, BeginsImmediatelyIfItsInputsDoNotComeToThisNode) {
  const FetchOrder other{piece_of(main_shard(2), checkpoint, 2), {first_peer}, {}};
  order({other, decode_});
  EXPECT_EQ(sources(), (std::vector<NodeId>{first_peer, parity_node}));
}

// Another node has decoded the piece by now.
TEST_F(CodingTurn, FetchesThePieceFromItsHolderIfDecodingFails) {
  FetchOrder order_to_decode = decode_;
  order_to_decode.sources.push_back(second_peer);
  order({order_to_decode});
  EXPECT_EQ(sources(), std::vector<NodeId>{parity_node});
  order({order_to_decode, input_});
  end_first(FetchResult::failed);
  EXPECT_EQ(sources(), (std::vector<NodeId>{parity_node, first_peer, second_peer})) << "it does not wait for the input";
}

}  // namespace
}  // namespace ckpt::core::coding_turn
