// Records of the coordination store that say who leads a job, which incarnation it has and who runs where. What is
// taken is in bounds, and the same when it is written and read again.
#include "core/record_codec.hpp"
#include "fuzz/fuzz.hpp"

namespace ckpt::fuzz {

void try_input(Input input) {
  const std::string text = text_of(input);
  if (const auto leader = core::leader_record(text)) require(core::leader_record(core::to_text(*leader)) == leader);
  // A text in it that is not UTF-8 is not taken, so none is mended in writing.
  if (const auto incarnation_record = core::incarnation_record(text))
    require(core::incarnation_record(core::to_text(*incarnation_record)) == incarnation_record);
  if (const auto assignments = core::assignments_record(text)) {
    require(core::assignments_record(core::to_text(*assignments)) == assignments);
    for (const core::RankAssignment& assignment : assignments->assignments)
      require(assignment.restored_parts >= 1 && assignment.restored_parts <= core::parts_max);
  }
}

std::vector<std::string> seeds() {
  core::IncarnationRecord incarnation_record;
  incarnation_record.epoch = 7;
  incarnation_record.incarnation = 3;
  incarnation_record.world_size = 2;
  incarnation_record.decision = {core::Verdict::restore, {2, 17}, true, false, {}, "nodes \"a\" are gone"};
  incarnation_record.replacements = {{1, {4, 11}}};
  incarnation_record.assignments = {3, 2, UINT64_MAX};
  incarnation_record.strategy = placement::Strategy::ring;
  const core::AssignmentsRecord assignments{
      {{0, 1, UINT64_MAX, "rack1/host", "model", "rank0.private", 2}, {1, 3, 5, "", "model", "rank1.private"}}};
  return {core::to_text(incarnation_record), core::to_text(core::IncarnationRecord{}), core::to_text(assignments),
          core::to_text(core::AssignmentsRecord{}), core::to_text(core::LeaderRecord{4, 2, 9})};
}

}  // namespace ckpt::fuzz
