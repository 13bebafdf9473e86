// Records of the coordination store that say who leads a job, which life it has and who sits where. What is taken is in
// bounds, and the same when it is written and read again.
#include "agent/record_codec.hpp"
#include "fuzz/fuzz.hpp"

namespace ckpt::fuzz {

void try_input(Input input) {
  const std::string text = text_of(input);
  if (const auto root = agent::root_record(text)) require(agent::root_record(agent::to_text(*root)) == root);
  // A text in it that is not UTF-8 is not taken, so none is mended in writing.
  if (const auto life = agent::life_record(text)) require(agent::life_record(agent::to_text(*life)) == life);
  if (const auto seats = agent::seats_record(text)) {
    require(agent::seats_record(agent::to_text(*seats)) == seats);
    for (const protocol::Seat& seat : seats->seats)
      require(seat.restored_parts >= 1 && seat.restored_parts <= protocol::parts_max);
  }
}

std::vector<std::string> seeds() {
  protocol::LifeRecord life;
  life.epoch = 7;
  life.incarnation = 3;
  life.world_size = 2;
  life.decision = {protocol::Verdict::restore, {2, 17}, true, false, {}, "nodes \"a\" are gone"};
  life.stand_ins = {{1, {4, 11}}};
  life.seats = {3, 2, UINT64_MAX};
  life.strategy = placement::Strategy::ring;
  const protocol::SeatsRecord seats{
      {{0, 1, UINT64_MAX, "rack1/host", "model", "rank0.private", 2}, {1, 3, 5, "", "model", "rank1.private"}}};
  return {agent::to_text(life), agent::to_text(protocol::LifeRecord{}), agent::to_text(seats),
          agent::to_text(protocol::SeatsRecord{}), agent::to_text(protocol::RootRecord{4, 2, 9})};
}

}  // namespace ckpt::fuzz
