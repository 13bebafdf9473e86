#include "sim/run_trace.hpp"

#include <iomanip>
#include <ostream>

#include "core/epoch.hpp"
#include "sim/random.hpp"

namespace ckpt::sim {

namespace {

using namespace core;

template <class... Functions>
struct Overloaded : Functions... {
  using Functions::operator()...;
};
template <class... Functions>
Overloaded(Functions...) -> Overloaded<Functions...>;

std::string describe(const PieceInfo& piece) { return text(piece.shard, "@", sim::describe(piece.checkpoint)); }

std::string describe(const LeaderRecord& record) {
  return text(sim::describe_epoch(record.epoch), " node ",
              static_cast<std::int64_t>(static_cast<std::int32_t>(record.node)), " heartbeat ", record.heartbeat);
}

std::string describe(const AssignmentsName& name) {
  return text(name.count, " rank assignments of incarnation ", name.incarnation);
}

std::string describe(const IncarnationRecord& record) {
  return text(sim::describe_epoch(record.epoch), " incarnation ", record.incarnation, " ",
              sim::describe(record.decision), " ", describe(record.assignments), " restored ",
              sim::describe(record.restored), " base ", sim::describe(record.base), " first commit ",
              sim::describe(record.first_commit));
}

std::string describe(const Report& report) {
  std::string all = text("report #", report.sequence, " ", sim::describe_epoch(report.epoch), " commit ",
                         sim::describe(report.highest_commit), " ranks");
  for (const RankReport& rank : report.ranks) {
    all += text(" ", rank.rank, "/", rank.incarnation, rank.waiting ? "w" : "", "@", rank.attempted);
    if (rank.capturing >= 0) all += text("c", rank.capturing);
  }
  all += " pieces";
  for (const PieceInfo& piece : report.pieces) all += " " + describe(piece);
  return all;
}

std::string describe(const Directive& directive) {
  std::string all = text("directive #", directive.sequence, " ", sim::describe_epoch(directive.epoch), " incarnation ",
                         directive.incarnation, " ", sim::describe(directive.decision), " committed ",
                         sim::describe(directive.committed), " resume ", directive.resume_at);
  if (directive.relay != core::no_node) all += text(" relay ", directive.relay);
  for (const CheckpointId checkpoint : directive.abandoned) all += text(" abandoned ", sim::describe(checkpoint));
  for (const Admission& admission : directive.admitted) all += text(" admit ", admission.rank);
  for (const Refusal& refusal : directive.refused) all += text(" refuse ", refusal.rank);
  for (const FetchOrder& order : directive.fetches) {
    all += " fetch " + describe(order.piece) + " from";
    for (const NodeId source : order.sources) all += text(" ", source);
  }
  if (directive.write.checkpoint) all += " write " + sim::describe(directive.write.checkpoint);
  return all;
}

std::string describe(const ReportBatch& report_batch) {
  std::string all = "report_batch";
  for (const Report& report : report_batch.reports) all += text(" {", report.node, ": ", describe(report), "}");
  return all;
}

std::string describe(const DirectiveBatch& directive_batch) {
  std::string all = "directive_batch";
  for (const DirectiveBatch::Item& item : directive_batch.items)
    all += text(" {", item.to, ": ", describe(item.directive), "}");
  return all;
}

std::string describe(const Message& message) {
  return std::visit([](const auto& content) { return describe(content); }, message);
}

const char* describe(FetchResult result) {
  switch (result) {
    case FetchResult::complete:
      return "complete";
    case FetchResult::corrupt:
      return "corrupt";
    case FetchResult::no_space:
      return "no space";
    case FetchResult::failed:
      return "failed";
  }
  return "?";
}

}  // namespace

std::string describe(CheckpointId checkpoint) {
  return checkpoint ? text(checkpoint.incarnation(), ".", checkpoint.iteration()) : std::string("none");
}

std::string describe_epoch(std::uint64_t epoch) {
  return epoch == 0 ? "epoch 0" : text("epoch ", term_of(epoch), " of node ", epoch & epoch_node_mask);
}

std::string describe(const SlotRef& slot) {
  return slot.rank == held_rank ? text("held/", slot.shard, "/", int{slot.slot})
                                : text("rank", slot.rank, "/", slot.shard, "/", int{slot.slot});
}

std::string describe(const Decision& decision) {
  static constexpr const char* names[] = {"undecided", "fresh", "restore", "lost", "mismatch"};
  std::string all = names[static_cast<int>(decision.verdict)];
  if (decision.checkpoint) all += " " + describe(decision.checkpoint);
  if (decision.behind) all += " behind";
  if (decision.status_unknown) all += " status-unknown";
  return all;
}

std::string describe(const Event& event) {
  return std::visit(
      Overloaded{
          [](const Tick&) -> std::string { return "tick"; },
          [](const LeaderRecordRead& e) { return text("leader record r", e.revision, " ", describe(e.record)); },
          [](const IncarnationRecordRead& e) {
            return text("incarnation record r", e.revision, " ", describe(e.record));
          },
          [](const AssignmentsRead& e) {
            std::string nodes;
            for (const core::RankAssignment& assignment : e.assignments) nodes += text(" ", assignment.node);
            return text(describe(e.name), ", on nodes", nodes);
          },
          [](const MessageArrived& e) { return text("from ", e.from, ": ", describe(e.message)); },
          [](const TrainerHello& e) {
            return text("hello of rank ", e.rank, " instance ", e.instance % 10000, " incarnation ", e.incarnation);
          },
          [](const TrainerExited& e) { return text("exit of rank ", e.rank, " instance ", e.instance % 10000); },
          [](const RestoreAsked& e) { return text("rank ", e.rank, " asks for restore"); },
          [](const RestoreDone& e) { return text("rank ", e.rank, " is restored"); },
          [](const SegmentsReady& e) { return text("segments of rank ", e.rank, " are ready"); },
          [](const Progress& e) {
            return text("rank ", e.rank, " attempted ", e.attempted, " capturing ", e.capturing);
          },
          [](const Captured& e) { return text("rank ", e.rank, " captured ", describe(e.pieces.front().checkpoint)); },
          [](const FreezeAnswered& e) {
            return text("rank ", e.rank, " answers halt ", e.answer.halt, ": ", freeze_name(e.answer.freeze));
          },
          [](const core::TroubleReported& e) { return text("rank ", e.rank, " reports trouble"); },
          [](const LeftBehind& e) { return text("rank ", e.rank, " left ", e.pieces.size(), " pieces"); },
          [](const FetchEnded& e) { return text("fetch ", e.fetch, " ", describe(e.result)); },
          [](const SlotReleased& e) { return text("released ", describe(e.slot)); },
          [](const PieceCorrupt& e) { return text("corrupt ", describe(e.slot)); },
          [](const StorageListed& e) {
            std::string pieces;
            for (const PieceInfo& piece : e.pieces) pieces += " " + describe(piece);
            return text("on storage:", pieces, e.trouble);
          },
          [](const WriteEnded& e) { return text("written ", describe(e.checkpoint), " ", e.trouble); },
          [](const FinalizeEnded& e) { return text("step ", describe(e.checkpoint), " is whole ", e.trouble); },
          [](const Observed& e) {
            return text("observed: ", e.stopped.size(), " stopped, ", e.failed.size(), " failing, ",
                        e.distrusted.size(), " distrusted", e.coordination_fails ? ", the store fails" : "");
          },
          [](const RanksWatched& e) { return text("ranks in trouble: ", e.in_trouble.size()); },
      },
      event);
}

std::string describe(const Effect& effect) {
  return std::visit(
      Overloaded{
          [](const Send& e) { return text("send to ", e.to, ": ", describe(e.message)); },
          [](const SwapLeaderRecord& e) { return text("swap leader r", e.expected_revision, " ", describe(e.record)); },
          [](const SwapIncarnationRecord& e) {
            return text("swap incarnation r", e.expected_revision, " ", describe(e.record));
          },
          [](const ReadAssignments& e) { return "read " + describe(e.name); },
          [](const RemoveAssignments& e) {
            return text("remove rank assignments of incarnations before ", e.before_incarnation);
          },
          [](const Persist& e) {
            return text("persist commit ", describe(e.highest_commit), " seen ", describe(e.newest_seen), " ",
                        describe_epoch(e.epoch));
          },
          [](const AddSlots& e) { return text("rank ", e.rank, " needs ", int{e.slots}, " slots"); },
          [](const GrantSlots& e) {
            std::string slots;
            for (const SlotRef& ref : e.slots) slots += text(" ", describe(ref));
            return text("grant rank ", e.rank, slots);
          },
          [](const NotifyCommit& e) { return text("tell rank ", e.rank, " commit ", describe(e.committed)); },
          [](const NotifyStored& e) { return text("tell rank ", e.rank, " stored ", describe(e.stored)); },
          [](const NotifyReplicationGroup& e) {
            return text("tell rank ", e.rank, " of ", e.replication.members.size(), " on its path");
          },
          [](const NotifyResume& e) { return text("tell rank ", e.rank, " resume at ", e.resume_at); },
          [](const NotifyHalt& e) {
            return text("tell rank ", e.rank, " halt ", e.halt, " at ", e.iteration.value_or(-1));
          },
          [](const Fence& e) { return text("fence rank ", e.rank, " instance ", e.instance % 10000, ": ", e.text); },
          [](const RestoreReady& e) {
            std::string slots;
            for (const auto* sources : {&e.main, &e.taken})
              for (const RestoreSource& part : *sources) slots += text(" ", describe(part.slot));
            return text("rank ", e.rank, " may restore ", describe(e.decision), " from", slots, " and ",
                        describe(e.private_.slot));
          },
          [](const RestoreFailed& e) { return text("restore of rank ", e.rank, " failed: ", e.text); },
          [](const StartFetch& e) {
            return text("fetch ", e.fetch, " ", describe(e.piece), " from ", e.source, " into ", describe(e.slot));
          },
          [](const CancelFetch& e) { return text("cancel fetch ", e.fetch); },
          [](const DropSlot& e) { return text("drop ", describe(e.slot)); },
          [](const ReleaseSegment& e) {
            return text("release segment ", describe(SlotRef{e.rank, e.shard, 0}));
          },
          [](const ListStorage&) -> std::string { return "list storage"; },
          [](const StartWrite& e) {
            std::string slots;
            for (const SlotRef& ref : e.slots) slots += text(" ", describe(ref));
            return text("write ", describe(e.checkpoint), " from", slots);
          },
          [](const FinalizeCheckpoint& e) { return text("make step ", describe(e.checkpoint), " whole"); },
          [](const MemberChanged& e) {
            constexpr const char* names[] = {"lost", "replaced", "returned", "released"};
            const std::string by = e.by == core::no_node ? "" : text(" by ", e.by);
            return text("member ", e.node, " ", names[static_cast<std::size_t>(e.change)], by);
          },
          [](const Notice& e) { return text("notice: ", e.text); },
      },
      effect);
}

void RunTrace::mark(std::uint64_t fact) { fingerprint_ = mix(fingerprint_, fact); }

void RunTrace::write(TimeMs now, const std::string& text) { *out_ << std::setw(7) << now << "  " << text << '\n'; }

}  // namespace ckpt::sim
