// Lists the fields of every message between agents and of every record in the coordination store. All code that reads
// or writes a message or a record visits this list. So a new field is added in one place.
//
// A visitor `v` has these functions. field(name, value) takes integers, bools, CheckpointIds, enums, texts, structs,
// and vectors of these. shard(name, value) takes a string that must be a shard's name, and shards(name, value) a vector
// of such strings. shard_or_none(name, value) takes a shard's name or "".
#pragma once

#include <concepts>
#include <type_traits>

#include "core/messages.hpp"

namespace ckpt::core {

// Asks a node to verify one of its pieces again, because another node got damaged bytes of it.
struct VerifyRequest {
  std::string shard;
  CheckpointId checkpoint;
  bool is_wrong = false;  // true: the piece is parity that matches its digests, but does not fit its parity group
  bool operator==(const VerifyRequest&) const = default;
};

// What a trainer tells another rank of its replication group. It goes from the trainer's agent to the other rank's.
// See gpu_replication/replication_page.hpp.
struct ReplicationUpdate {
  std::uint64_t incarnation = 0;  // the incarnation that the group belongs to
  Rank from = 0, to = 0;
  std::vector<std::uint8_t> id;  // the communicator's id; empty: none
  std::uint64_t chunk_bytes = 0;
  std::uint64_t piece_bytes = 0;
  std::uint64_t checkpoint = 0;
  std::uint64_t length_bytes = 0;
  std::uint64_t promised = 0;
  bool has_given_up = false;
  bool operator==(const ReplicationUpdate&) const = default;
};

template <class T, class Struct>
concept Is = std::same_as<std::remove_const_t<T>, Struct>;

void visit_fields(auto& v, Is<ReplicationUpdate> auto& update) {
  v.field("incarnation", update.incarnation);
  v.field("from", update.from);
  v.field("to", update.to);
  v.field("id", update.id);
  v.field("chunk_bytes", update.chunk_bytes);
  v.field("piece_bytes", update.piece_bytes);
  v.field("checkpoint", update.checkpoint);
  v.field("length_bytes", update.length_bytes);
  v.field("promised", update.promised);
  v.field("has_given_up", update.has_given_up);
}

void visit_fields(auto& v, Is<ParitySource> auto& parity_source) {
  v.shard_or_none("shard", parity_source.shard);
  v.field("length_bytes", parity_source.length_bytes);
  v.field("layout_bytes", parity_source.layout_bytes);
  v.field("root_digest", parity_source.root_digest);
}

void visit_fields(auto& v, Is<ParityManifest> auto& parity_manifest) {
  v.field("rows", parity_manifest.rows);
  v.field("member", parity_manifest.member);
  v.field("sources", parity_manifest.sources);
}

void visit_fields(auto& v, Is<PieceInfo> auto& piece) {
  v.shard("shard", piece.shard);
  v.field("checkpoint", piece.checkpoint);
  v.field("length_bytes", piece.length_bytes);
  v.field("layout_bytes", piece.layout_bytes);
  v.field("root_digest", piece.root_digest);
  v.field("world_size", piece.world_size);
  v.field("parity_manifest", piece.parity_manifest);
}

void visit_fields(auto& v, Is<RankReport> auto& rank) {
  v.field("rank", rank.rank);
  v.field("instance", rank.instance);
  v.field("incarnation", rank.incarnation);
  v.field("world_size", rank.world_size);
  v.shard("main_shard", rank.main_shard);
  v.shard("private_shard", rank.private_shard);
  v.field("waiting", rank.waiting);
  v.field("attempted", rank.attempted);
  v.field("capturing", rank.capturing);
  v.field("resume_at", rank.resume_at);
  v.field("wants_gpu_replication", rank.wants_gpu_replication);
  v.field("takes_shards", rank.takes_shards);
  v.field("is_stopped", rank.is_stopped);
  v.field("failed", rank.failed);
  v.field("computing_ms", rank.computing_ms);
  v.field("freeze", rank.freeze);
  v.field("freeze_at", rank.freeze_at);
  v.field("reports_trouble", rank.reports_trouble);
  v.field("capture_every", rank.capture_every);
  v.field("halts", rank.halts);
  v.field("capture", rank.capture);
}

void visit_fields(auto& v, Is<FreezeAnswer> auto& answer) {
  v.field("halt", answer.halt);
  v.field("freeze", answer.freeze);
  v.field("iteration", answer.iteration);
}

void visit_fields(auto& v, Is<Unfrozen> auto& rank) {
  v.field("rank", rank.rank);
  v.field("node", rank.node);
  v.field("freeze", rank.freeze);
  v.field("iteration", rank.iteration);
}

void visit_fields(auto& v, Is<Halt> auto& halt) {
  v.field("incarnation", halt.incarnation);
  v.field("number", halt.number);
  v.field("iteration", halt.iteration);
  v.field("culprits", halt.culprits);
  v.field("ranks", halt.ranks);
  v.field("captured", halt.captured);
  v.field("others", halt.others);
  v.field("is_over", halt.is_over);
  v.field("reporter", halt.reporter);
  v.field("reporter_node", halt.reporter_node);
}

void visit_fields(auto& v, Is<RankStanding> auto& standing) {
  v.field("rank", standing.rank);
  v.field("incarnation", standing.incarnation);
  v.field("trouble", standing.trouble);
  v.field("process", standing.process);
  v.field("iteration", standing.iteration);
  v.field("begun", standing.begun);
  v.field("per_iteration", standing.per_iteration);
  v.field("still_ms", standing.still_ms);
  v.field("computing_ms", standing.computing_ms);
}

void visit_fields(auto& v, Is<Culprit> auto& culprit) {
  v.field("node", culprit.node);
  v.field("standing", culprit.standing);
}

void visit_fields(auto& v, Is<Suspicion> auto& suspicion) {
  v.field("culprits", suspicion.culprits);
  v.field("count", suspicion.count);
  v.field("waiting", suspicion.waiting);
  v.field("iteration", suspicion.iteration);
  v.field("communication", suspicion.communication);
  v.field("is_everybody", suspicion.is_everybody);
  v.field("usual_ms", suspicion.usual_ms);
}

void visit_fields(auto& v, Is<placement::Protection> auto& protection) {
  v.field("copies", protection.copies);
  v.field("members", protection.members);
  v.field("rows", protection.rows);
}

void visit_fields(auto& v, Is<Health> auto& health) {
  v.field("standing", health.standing);
  v.field("cause", health.cause);
  v.field("node", health.node);
  v.field("rank", health.rank);
  v.field("status", health.status);
  v.field("detail", health.detail);
  v.field("committed", health.committed);
  v.field("iterations_at_risk", health.iterations_at_risk);
  v.field("copies_now", health.copies_now);
  v.field("copies", health.copies);
  v.field("parity_now", health.parity_now);
  v.field("parity", health.parity);
  v.field("lasts_ms", health.lasts_ms);
  v.field("at_risk_ms", health.at_risk_ms);
  v.field("allowed_ms", health.allowed_ms);
  v.field("pace_ms", health.pace_ms);
  v.field("capture_every", health.capture_every);
  v.field("slowest_node", health.slowest_node);
  v.field("slowest_ms", health.slowest_ms);
  v.field("slowest_is_capture", health.slowest_is_capture);
}

void visit_fields(auto& v, Is<Written> auto& written) {
  v.field("checkpoint", written.checkpoint);
  v.field("attempt", written.attempt);
  v.shards("shards", written.shards);
  v.field("trouble", written.trouble);
}

void visit_fields(auto& v, Is<WriteOrder> auto& order) {
  v.field("checkpoint", order.checkpoint);
  v.field("attempt", order.attempt);
  v.shards("shards", order.shards);
}

void visit_fields(auto& v, Is<Report> auto& report) {
  v.field("node", report.node);
  v.field("arena_id", report.arena_id);
  v.field("agent_id", report.agent_id);
  v.field("sequence", report.sequence);
  v.field("epoch", report.epoch);
  v.field("domain", report.domain);
  v.field("standby", report.standby);
  v.field("highest_commit", report.highest_commit);
  v.field("newest_seen", report.newest_seen);
  v.field("newest_damaged", report.newest_damaged);
  v.field("newest_known_incarnation", report.newest_known_incarnation);
  v.field("ranks", report.ranks);
  v.field("in_trouble", report.in_trouble);
  v.field("pieces", report.pieces);
  v.field("protection", report.protection);
  v.field("fetch_trouble", report.fetch_trouble);
  v.field("fetch_source", report.fetch_source);
  v.field("coordination_fails", report.coordination_fails);
  v.field("storage", report.storage);
  v.field("written", report.written);
  v.field("damaged", report.damaged);
  v.field("read_trouble", report.read_trouble);
  v.field("directive", report.directive);
  v.field("roll_call", report.roll_call);
}

void visit_fields(auto& v, Is<Share> auto& share) {
  v.field("first", share.first);
  v.field("of", share.of);
  v.field("stored", share.stored);
}

void visit_fields(auto& v, Is<Cut> auto& cut) {
  v.shard("shard", cut.shard);
  v.field("of", cut.of);
}

void visit_fields(auto& v, Is<Decision> auto& decision) {
  v.field("verdict", decision.verdict);
  v.field("checkpoint", decision.checkpoint);
  v.field("cuts", decision.cuts);
  v.field("behind", decision.behind);
  v.field("status_unknown", decision.status_unknown);
  v.field("text", decision.text);
}

void visit_fields(auto& v, Is<Refusal> auto& refusal) {
  v.field("rank", refusal.rank);
  v.field("instance", refusal.instance);
  v.field("superseded", refusal.superseded);
  v.field("incarnation", refusal.incarnation);
  v.field("text", refusal.text);
}

void visit_fields(auto& v, Is<ReplicationMember> auto& member) {
  v.field("node", member.node);
  v.field("rank", member.rank);
  v.shard("shard", member.shard);
}

void visit_fields(auto& v, Is<ReplicationGroup> auto& group) {
  v.field("members", group.members);
  v.field("member", group.member);
  v.field("refusal", group.refusal);
  v.field("rows", group.rows);
}

void visit_fields(auto& v, Is<Admission> auto& admission) {
  v.field("rank", admission.rank);
  v.field("instance", admission.instance);
  v.field("share", admission.share);
  v.field("replication", admission.replication);
  v.shard_or_none("adopts", admission.adopts);
  v.field("takes", admission.takes);
  v.field("is_replicated", admission.is_replicated);
}

void visit_fields(auto& v, Is<CodingInputs::Source> auto& source) {
  v.shard("shard", source.shard);
  v.field("node", source.node);
  v.field("root_digest", source.root_digest);
}

void visit_fields(auto& v, Is<CodingInputs> auto& coding_inputs) {
  v.field("parity_manifest", coding_inputs.parity_manifest);
  v.field("sources", coding_inputs.sources);
}

void visit_fields(auto& v, Is<FetchOrder> auto& order) {
  v.field("piece", order.piece);
  v.field("sources", order.sources);
  v.field("coding_inputs", order.coding_inputs);
  v.field("chain_from", order.chain_from);
}

void visit_fields(auto& v, Is<Directive> auto& directive) {
  v.field("leader", directive.leader);
  v.field("epoch", directive.epoch);
  v.field("sequence", directive.sequence);
  v.field("acknowledged_agent", directive.acknowledged_agent);
  v.field("acknowledged_report", directive.acknowledged_report);
  v.field("relay", directive.relay);
  v.field("incarnation", directive.incarnation);
  v.field("decision", directive.decision);
  v.field("committed", directive.committed);
  v.field("abandoned", directive.abandoned);
  v.field("resume_at", directive.resume_at);
  v.field("admitted", directive.admitted);
  v.field("refused", directive.refused);
  v.field("fetches", directive.fetches);
  v.shards("wanted", directive.wanted);
  v.field("missing_ranks", directive.missing_ranks);
  v.field("missing_nodes", directive.missing_nodes);
  v.field("replacements", directive.replacements);
  v.field("copies_now", directive.copies_now);
  v.field("parity_now", directive.parity_now);
  v.field("stranded", directive.stranded);
  v.field("alarm", directive.alarm);
  v.field("roll_call", directive.roll_call);
  v.field("reading_storage", directive.reading_storage);
  v.field("write", directive.write);
  v.field("stored", directive.stored);
  v.field("stored_skipped", directive.stored_skipped);
  v.field("storage_trouble", directive.storage_trouble);
  v.field("health", directive.health);
  v.field("suspicion", directive.suspicion);
  v.field("halt", directive.halt);
}

void visit_fields(auto& v, Is<ReportBatch> auto& report_batch) { v.field("reports", report_batch.reports); }

void visit_fields(auto& v, Is<DirectiveBatch::Item> auto& item) {
  v.field("to", item.to);
  v.field("directive", item.directive);
}

void visit_fields(auto& v, Is<DirectiveBatch> auto& directive_batch) { v.field("items", directive_batch.items); }

void visit_fields(auto& v, Is<VerifyRequest> auto& request) {
  v.shard("shard", request.shard);
  v.field("checkpoint", request.checkpoint);
  v.field("is_wrong", request.is_wrong);
}

void visit_fields(auto& v, Is<LeaderRecord> auto& record) {
  v.field("epoch", record.epoch);
  v.field("node", record.node);
  v.field("heartbeat", record.heartbeat);
}

void visit_fields(auto& v, Is<Member> auto& member) {
  v.field("node", member.node);
  v.field("arena_id", member.arena_id);
}

void visit_fields(auto& v, Is<Replacement> auto& replacement) {
  v.field("lost", replacement.lost);
  v.field("by", replacement.by);
}

void visit_fields(auto& v, Is<RankAssignment> auto& assignment) {
  v.field("rank", assignment.rank);
  v.field("node", assignment.node);
  v.field("arena_id", assignment.arena_id);
  v.field("domain", assignment.domain);
  v.shard("main_shard", assignment.main_shard);
  v.shard("private_shard", assignment.private_shard);
  v.field("restored_parts", assignment.restored_parts);
  v.field("wants_gpu_replication", assignment.wants_gpu_replication);
  v.field("takes", assignment.takes);
}

void visit_fields(auto& v, Is<AssignmentsRecord> auto& record) { v.field("assignments", record.assignments); }

void visit_fields(auto& v, Is<AssignmentsName> auto& name) {
  v.field("incarnation", name.incarnation);
  v.field("count", name.count);
  v.field("digest", name.digest);
}

void visit_fields(auto& v, Is<IncarnationRecord> auto& record) {
  v.field("epoch", record.epoch);
  v.field("incarnation", record.incarnation);
  v.field("world_size", record.world_size);
  v.field("decision", record.decision);
  v.field("replacements", record.replacements);
  v.field("assignments", record.assignments);
  v.field("strategy", record.strategy);
  v.field("protection", record.protection);
  v.field("restored", record.restored);
  v.field("restored_ranks", record.restored_ranks);
  v.field("base", record.base);
  v.field("first_commit", record.first_commit);
}

}  // namespace ckpt::core
