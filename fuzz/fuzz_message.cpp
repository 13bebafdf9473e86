// Messages between agents. What is taken is written as it was read.
#include "agent/message_codec.hpp"
#include "fuzz/fuzz.hpp"

namespace ckpt::fuzz {

void try_input(Input input) {
  const auto message = agent::decode(input);
  if (!message) return;
  const auto again = agent::encode(*message);
  require(again.size() == input.size() && std::equal(again.begin(), again.end(), input.begin()));
}

std::vector<std::string> seeds() {
  const protocol::PieceInfo piece{"model.1of2", {1, 123}, 1000, 50, 7, 2};
  protocol::Report report;
  report.node = 1;
  report.domain = "rack/host";
  report.ranks.resize(2);
  for (protocol::RankReport& rank : report.ranks) {
    rank.main_shard = "model";
    rank.private_shard = "rank0.private";
  }
  report.pieces = {piece, piece};
  return {text_of(agent::encode(report)), text_of(agent::encode(protocol::Report{})),
          text_of(agent::encode(protocol::Directive{})),
          text_of(agent::encode(agent::VerifyRequest{"model.1of2", {1, 123}}))};
}

}  // namespace ckpt::fuzz
