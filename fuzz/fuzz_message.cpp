// Messages between agents. What is taken is written as it was read.
#include "core/message_codec.hpp"
#include "fuzz/fuzz.hpp"

namespace ckpt::fuzz {

void try_input(Input input) {
  const auto message = core::decode(input);
  if (!message) return;
  const auto again = core::encode(*message);
  require(again.size() == input.size() && std::equal(again.begin(), again.end(), input.begin()));
}

std::vector<std::string> seeds() {
  const core::PieceInfo piece{"model.1of2", {1, 123}, 1000, 50, 7, 2};
  core::Report report;
  report.node = 1;
  report.domain = "rack/host";
  report.ranks.resize(2);
  for (core::RankReport& rank : report.ranks) {
    rank.main_shard = "model";
    rank.private_shard = "rank0.private";
  }
  core::PieceInfo parity{"parity.0123456789abcdef.1of2", {1, 123}, 1000, 500, 8, 2};
  parity.parity_manifest = {1, 1, {{"model.0of2", 1000, 50, 6}, {}}};
  report.pieces = {piece, parity};
  core::Directive directive;
  directive.admitted = {{3, 9, {}, core::ReplicationGroup{{{1, 3, "a"}, {2, 4, "b"}}, 0, ""}}};
  directive.fetches = {
      {parity, {core::parity_node}, core::CodingInputs{parity.parity_manifest, {{"model.0of2", 3, 6}}}}};
  return {
      text_of(core::encode(report)),
      text_of(core::encode(core::Report{})),
      text_of(core::encode(core::Directive{})),
      text_of(core::encode(directive)),
      text_of(core::encode(core::VerifyRequest{"model.1of2", {1, 123}})),
      text_of(core::encode(core::ReplicationUpdate{3, 1, 2, std::vector<std::uint8_t>(128, 7), 4, 5, 6, 7, 8, true})),
      text_of(core::encode(core::ReportBatch{{report, {}}})),
      text_of(core::encode(core::DirectiveBatch{{{3, directive}, {4, {}}}})),
      text_of(core::encode(core::DirectiveBatch{}))};
}

}  // namespace ckpt::fuzz
