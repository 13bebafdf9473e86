// The fields of every message and record, named once. Writers and readers of any format visit them.
//
// A visitor has field(name, value) for integers, bools, Versions, enums, texts, structs and vectors of these,
// shard(name, value) for strings that must be the name of a shard, and shard_or_none() for those that may be empty.
#pragma once

#include <concepts>
#include <type_traits>

#include "protocol/messages.hpp"

namespace ckpt::agent {

// To the owner of a shard's bytes: asks it to look at them again, since they arrived damaged.
struct VerifyRequest {
  std::string shard;
  Version version;
  bool is_wrong = false;  // parity that fits its digests, and of which nothing true can be made
  bool operator==(const VerifyRequest&) const = default;
};

// From agent to agent: what a trainer tells the other members of its path group (arena/path_board.hpp).
struct PathTold {
  std::uint64_t incarnation = 0;  // the life of the job that it is of
  protocol::Rank from = 0, to = 0;
  std::vector<std::uint8_t> id;  // empty: none
  std::uint64_t chunk_bytes = 0;
  std::uint64_t piece_bytes = 0;
  std::uint64_t version = 0;
  std::uint64_t length_bytes = 0;
  std::uint64_t promised = 0;
  bool has_given_up = false;
  bool operator==(const PathTold&) const = default;
};

template <class T, class Struct>
concept Is = std::same_as<std::remove_const_t<T>, Struct>;

void visit_fields(auto& v, Is<PathTold> auto& told) {
  v.field("incarnation", told.incarnation);
  v.field("from", told.from);
  v.field("to", told.to);
  v.field("id", told.id);
  v.field("chunk_bytes", told.chunk_bytes);
  v.field("piece_bytes", told.piece_bytes);
  v.field("version", told.version);
  v.field("length_bytes", told.length_bytes);
  v.field("promised", told.promised);
  v.field("has_given_up", told.has_given_up);
}

void visit_fields(auto& v, Is<protocol::Ingredient> auto& ingredient) {
  v.shard_or_none("shard", ingredient.shard);
  v.field("length_bytes", ingredient.length_bytes);
  v.field("layout_bytes", ingredient.layout_bytes);
  v.field("root_digest", ingredient.root_digest);
}

void visit_fields(auto& v, Is<protocol::Recipe> auto& recipe) {
  v.field("rows", recipe.rows);
  v.field("member", recipe.member);
  v.field("ingredients", recipe.ingredients);
}

void visit_fields(auto& v, Is<protocol::PieceInfo> auto& piece) {
  v.shard("shard", piece.shard);
  v.field("version", piece.version);
  v.field("length_bytes", piece.length_bytes);
  v.field("layout_bytes", piece.layout_bytes);
  v.field("root_digest", piece.root_digest);
  v.field("world_size", piece.world_size);
  v.field("recipe", piece.recipe);
}

void visit_fields(auto& v, Is<protocol::RankReport> auto& rank) {
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
  v.field("wants_path", rank.wants_path);
  v.field("is_stopped", rank.is_stopped);
  v.field("failed", rank.failed);
}

void visit_fields(auto& v, Is<placement::Protection> auto& protection) {
  v.field("copies", protection.copies);
  v.field("members", protection.members);
  v.field("rows", protection.rows);
}

void visit_fields(auto& v, Is<protocol::Health> auto& health) {
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
  v.field("slowest_node", health.slowest_node);
  v.field("slowest_ms", health.slowest_ms);
  v.field("slowest_is_capture", health.slowest_is_capture);
}

void visit_fields(auto& v, Is<protocol::Written> auto& written) {
  v.field("version", written.version);
  v.field("attempt", written.attempt);
  v.shards("shards", written.shards);
  v.field("trouble", written.trouble);
}

void visit_fields(auto& v, Is<protocol::WriteOrder> auto& order) {
  v.field("version", order.version);
  v.field("attempt", order.attempt);
  v.shards("shards", order.shards);
}

void visit_fields(auto& v, Is<protocol::Report> auto& report) {
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
  v.field("told_life", report.told_life);
  v.field("ranks", report.ranks);
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

void visit_fields(auto& v, Is<protocol::Share> auto& share) {
  v.field("first", share.first);
  v.field("of", share.of);
  v.field("stored", share.stored);
}

void visit_fields(auto& v, Is<protocol::Cut> auto& cut) {
  v.field("shard", cut.shard);
  v.field("of", cut.of);
}

void visit_fields(auto& v, Is<protocol::Decision> auto& decision) {
  v.field("verdict", decision.verdict);
  v.field("version", decision.version);
  v.field("cuts", decision.cuts);
  v.field("behind", decision.behind);
  v.field("status_unknown", decision.status_unknown);
  v.field("text", decision.text);
}

void visit_fields(auto& v, Is<protocol::Refusal> auto& refusal) {
  v.field("rank", refusal.rank);
  v.field("instance", refusal.instance);
  v.field("superseded", refusal.superseded);
  v.field("incarnation", refusal.incarnation);
  v.field("text", refusal.text);
}

void visit_fields(auto& v, Is<protocol::PathMember> auto& member) {
  v.field("node", member.node);
  v.field("rank", member.rank);
  v.shard("shard", member.shard);
}

void visit_fields(auto& v, Is<protocol::PathGroup> auto& group) {
  v.field("members", group.members);
  v.field("member", group.member);
  v.field("refusal", group.refusal);
}

void visit_fields(auto& v, Is<protocol::Admission> auto& admission) {
  v.field("rank", admission.rank);
  v.field("instance", admission.instance);
  v.field("share", admission.share);
  v.field("path", admission.path);
}

void visit_fields(auto& v, Is<protocol::Making::Source> auto& source) {
  v.shard("shard", source.shard);
  v.field("node", source.node);
  v.field("root_digest", source.root_digest);
}

void visit_fields(auto& v, Is<protocol::Making> auto& making) {
  v.field("recipe", making.recipe);
  v.field("sources", making.sources);
}

void visit_fields(auto& v, Is<protocol::FetchOrder> auto& order) {
  v.field("piece", order.piece);
  v.field("sources", order.sources);
  v.field("making", order.making);
}

void visit_fields(auto& v, Is<protocol::Directive> auto& directive) {
  v.field("root", directive.root);
  v.field("epoch", directive.epoch);
  v.field("sequence", directive.sequence);
  v.field("heard_agent", directive.heard_agent);
  v.field("heard_report", directive.heard_report);
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
  v.field("stand_ins", directive.stand_ins);
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
}

void visit_fields(auto& v, Is<protocol::Gathered> auto& gathered) { v.field("reports", gathered.reports); }

void visit_fields(auto& v, Is<protocol::Dealt::Item> auto& item) {
  v.field("to", item.to);
  v.field("directive", item.directive);
}

void visit_fields(auto& v, Is<protocol::Dealt> auto& dealt) { v.field("items", dealt.items); }

void visit_fields(auto& v, Is<VerifyRequest> auto& request) {
  v.shard("shard", request.shard);
  v.field("version", request.version);
  v.field("is_wrong", request.is_wrong);
}

void visit_fields(auto& v, Is<protocol::RootRecord> auto& record) {
  v.field("epoch", record.epoch);
  v.field("node", record.node);
  v.field("beat", record.beat);
}

void visit_fields(auto& v, Is<protocol::Member> auto& member) {
  v.field("node", member.node);
  v.field("arena_id", member.arena_id);
}

void visit_fields(auto& v, Is<protocol::StandIn> auto& stand_in) {
  v.field("lost", stand_in.lost);
  v.field("by", stand_in.by);
}

void visit_fields(auto& v, Is<protocol::Seat> auto& seat) {
  v.field("rank", seat.rank);
  v.field("node", seat.node);
  v.field("arena_id", seat.arena_id);
  v.field("domain", seat.domain);
  v.shard("main_shard", seat.main_shard);
  v.shard("private_shard", seat.private_shard);
  v.field("restored_parts", seat.restored_parts);
  v.field("wants_path", seat.wants_path);
}

void visit_fields(auto& v, Is<protocol::SeatsRecord> auto& record) { v.field("seats", record.seats); }

void visit_fields(auto& v, Is<protocol::SeatsName> auto& name) {
  v.field("life", name.life);
  v.field("count", name.count);
  v.field("digest", name.digest);
}

void visit_fields(auto& v, Is<protocol::LifeRecord> auto& record) {
  v.field("epoch", record.epoch);
  v.field("incarnation", record.incarnation);
  v.field("world_size", record.world_size);
  v.field("decision", record.decision);
  v.field("stand_ins", record.stand_ins);
  v.field("seats", record.seats);
  v.field("strategy", record.strategy);
  v.field("protection", record.protection);
  v.field("restored", record.restored);
  v.field("base", record.base);
  v.field("first_commit", record.first_commit);
}

}  // namespace ckpt::agent
