// The driver's answer to `ckptctl status`, and what it knows for other sentences to people.

#include <unistd.h>

#include <algorithm>

#include "agent/driver.hpp"
#include "agent/process.hpp"
#include "agent/store_poller.hpp"
#include "coord/mount_check.hpp"
#include "core/epoch.hpp"
#include "placement/parity_groups.hpp"

namespace ckpt::agent {
namespace {

using core::NodeId;
using core::SlotRef;
using nlohmann::json;

json checkpoint_json(CheckpointId checkpoint) {
  if (!checkpoint) return nullptr;
  return {{"incarnation", checkpoint.incarnation()}, {"iteration", checkpoint.iteration()}};
}

const char* name_of(core::Verdict verdict) {
  switch (verdict) {
    case core::Verdict::undecided:
      return "undecided";
    case core::Verdict::fresh:
      return "fresh";
    case core::Verdict::restore:
      return "restore";
    case core::Verdict::lost:
      return "lost";
    case core::Verdict::mismatch:
      return "mismatch";
  }
  return "unknown";
}

const char* name_of(core::Tier tier) {
  switch (tier) {
    case core::Tier::none:
      return "none";
    case core::Tier::local:
      return "local";
    case core::Tier::peer:
      return "peer";
    case core::Tier::decoded:
      return "decoded";
    case core::Tier::persistent:
      return "persistent";
  }
  return "unknown";
}

// Of parts in several tiers the farthest counts, as it does for the trainer.
json origin_json(const core::RestoreReady* ready, std::uint64_t incarnation) {
  if (ready == nullptr || ready->incarnation != incarnation || ready->main.empty()) return nullptr;
  core::Tier main = core::Tier::none;
  for (const core::RestoreSource& part : ready->main) main = std::max(main, part.tier);
  return {{"main", name_of(main)}, {"private", name_of(ready->private_.tier)}};
}

// With no rows where there is no parity.
placement::Protection smallest_group(const placement::Protection& protection, std::uint32_t nodes) {
  if (!protection.has_parity()) return {1, 1, 0};
  std::size_t members = nodes;
  for (const auto& group : placement::parity_groups(nodes, protection.members, protection.rows, nullptr).groups)
    members = std::min(members, group.size());
  const auto size = static_cast<std::uint32_t>(members);
  return {1, size, std::min(protection.rows, size - 1)};
}

template <class List, class Text>
std::string joined(const List& list, Text text_of) {
  constexpr std::size_t shown_max = 8;
  std::string text;
  std::size_t shown = 0;
  for (const auto& item : list) {
    if (shown == shown_max) return text + " and " + std::to_string(list.size() - shown) + " more";
    text += (shown++ == 0 ? "" : ", ") + text_of(item);
  }
  return text;
}

// Ranks are missing, and no other node has ever registered: perhaps the other machines look into another directory.
std::string alone_in_local_store(const Options& options, const core::NodeStatus& status, bool is_alone) {
  if (!is_alone || status.missing_ranks.empty()) return "";
  const std::string file_system = coord::local_store(options.coordination);
  if (file_system.empty()) return "";
  return "; no other node has registered in " + options.coordination + " of node " + options.node +
         ", which no other machine sees (" + file_system +
         "): if ranks are on other machines, set the option coordination to a directory that all of them mount, or to "
         "etcd";
}

}  // namespace

std::string Driver::node_name(NodeId node) const {
  if (node == id_) return parts_.options.node;
  const auto found = nodes_.find(node);
  return found != nodes_.end() ? found->second.name : "number " + std::to_string(node);
}

std::string Driver::what_is_missing() const {
  if (const std::string trouble = store_->trouble(); !trouble.empty()) return trouble;
  const core::NodeStatus status = core_.status();
  const auto name = [this](NodeId node) { return node_name(node); };
  const auto number = [](core::Rank rank) { return std::to_string(rank); };
  if (status.leader == core::no_node) return "the job has no leader; is the coordination store reachable?";
  if (!status.missing_nodes.empty())
    return "waiting for nodes " + joined(status.missing_nodes, name) + ", which may hold newer state";
  const bool undecided = status.decision.verdict == core::Verdict::undecided;
  if (undecided && !status.storage_trouble.empty())
    return "storage cannot be asked what it has: " + status.storage_trouble;
  if (!status.missing_ranks.empty())
    return "waiting for ranks " + joined(status.missing_ranks, number) + ", which have not called restore()" +
           alone_in_local_store(parts_.options, status, nodes_.empty());
  const bool unheard = std::any_of(status.ranks.begin(), status.ranks.end(), [&](const core::RankReport& rank) {
    return rank.waiting && (rank.incarnation == 0 || rank.incarnation != status.incarnation);
  });
  if (unheard || undecided) return "node " + name(status.leader) + " (the leader) does not answer";
  return storage_ ? "the shards are still on their way from other nodes or from storage"
                  : "the shards are still on their way from other nodes";
}

// What this node's ranks capture lies on copies - 1 further nodes, so about as much of others' comes here; but of parts
// that several ranks capture nothing is sent. Parity takes rows / (members - rows) of it, in the smallest of its
// groups.
std::uint64_t Driver::bytes_for_peers(std::uint64_t rank_bytes) const {
  if (nodes_.empty()) return 0;
  std::uint64_t held = 0;
  for (const auto& [key, segment] : segments_.all())
    if (key.rank == core::held_rank) held += segment->size_bytes();
  const placement::Protection protection = parts_.options.chosen_protection();
  const std::uint64_t node_bytes = rank_bytes * std::max<std::uint64_t>(trainers_.trainers().size(), 1);
  const auto group = smallest_group(protection, static_cast<std::uint32_t>(nodes_.size()) + 1);
  const std::uint64_t parity_bytes = node_bytes * group.rows / (group.members - group.rows);
  const std::uint64_t expected = (protection.copies - 1) * node_bytes + parity_bytes;
  return expected > held ? expected - held : 0;
}

// Of slots for main shards of such a size: the ranks' own, where those have none yet, and those for peers' pieces.
std::uint64_t Driver::bytes_to_come(std::uint64_t piece_bytes) const {
  const auto in_slots_of = [&](core::Rank rank) { return segments_.segment_bytes({rank, ""}, {piece_bytes, 0}); };
  const auto& all = segments_.all();
  std::uint64_t own_bytes = 0;
  for (const auto& [rank, trainer] : trainers_.trainers()) {
    const bool has_slots =
        std::any_of(all.begin(), all.end(), [rank = rank](const auto& entry) { return entry.first.rank == rank; });
    if (!has_slots) own_bytes += in_slots_of(rank);
  }
  return own_bytes + bytes_for_peers(in_slots_of(core::held_rank));
}

json Driver::ranks_json(const core::NodeStatus& status) const {
  json ranks = json::array();
  for (const core::RankReport& rank : status.ranks) {
    const auto found = trainers_.trainers().find(rank.rank);
    const TrainerManager::Trainer* trainer = found != trainers_.trainers().end() ? &found->second : nullptr;
    ranks.push_back(
        {{"rank", rank.rank},
         {"pid", trainer != nullptr ? trainer->pid : 0},
         {"stopped", trainer != nullptr && is_process_stopped(trainer->pid)},
         {"progress_age_ms",
          trainer != nullptr ? json(milliseconds_between(trainer->progress_at, Clock::now())) : json(nullptr)},
         {"incarnation", rank.incarnation},
         {"restored_from", origin_json(trainers_.served(rank.rank), rank.incarnation)},
         {"main_shard", rank.main_shard},
         {"private_shard", rank.private_shard},
         {"restoring", rank.waiting},
         {"attempted", rank.attempted},
         {"capturing", rank.capturing},
         {"shortage", trainer != nullptr ? trainer->shortage : ""}});
    const ReplicationManager::Status replication = replications_.status(rank.rank);
    ranks.back()["replication"] = {{"gpu", replication.is_device},
                                   {"begun", replication.has_begun},
                                   {"gpu_received_bytes", replication.gpu_received_bytes},
                                   {"trouble", replication.trouble}};
  }
  return ranks;
}

json Driver::segments_json() const {
  json segments = json::array();
  for (const auto& [key, segment] : segments_.all()) {
    const bool held = key.rank == core::held_rank;
    json slots = json::array();
    for (std::uint32_t i = 0; i < segment->spec().slots; ++i) {
      const SlotRef slot{key.rank, key.shard, static_cast<std::uint8_t>(i)};
      const Pin piece = parts_.index.find(slot);
      const auto trainer = trainers_.trainers().find(key.rank);
      const auto& grant = trainer != trainers_.trainers().end() ? trainer->second.port->outstanding() : std::nullopt;
      const bool granted = grant && std::find(grant->slots.begin(), grant->slots.end(), slot) != grant->slots.end();
      const char* state = piece != nullptr             ? "whole"
                          : fetches_.writes_into(slot) ? "filling"
                          : granted                    ? "granted"
                                                       : "free";
      slots.push_back({{"state", state},
                       {"checkpoint", piece != nullptr ? checkpoint_json(piece->manifest().checkpoint) : json(nullptr)},
                       {"bytes", piece != nullptr ? piece->manifest().length_bytes : 0}});
    }
    segments.push_back({{"shard", key.shard},
                        {"kind", held ? "held" : "local"},
                        {"rank", held ? json(nullptr) : json(key.rank)},
                        {"file", segment->path()},
                        {"bytes", segment->size_bytes()},
                        {"slot_capacity_bytes", segment->spec().data_capacity_bytes},
                        {"slots", std::move(slots)}});
  }
  return segments;
}

// What lies where, as far as this node knows: all whole pieces here, and of storage's newest step what it wrote itself.
json Driver::tiers_json(const core::NodeStatus& status) const {
  std::uint64_t captured = 0, copies = 0, parity = 0;
  for (const auto& [key, segment] : segments_.all()) {
    const bool held = key.rank == core::held_rank;
    std::uint64_t& bytes = !held ? captured : key.shard.starts_with(core::parity_prefix) ? parity : copies;
    for (std::uint32_t i = 0; i < segment->spec().slots; ++i) {
      const Pin piece = parts_.index.find({key.rank, key.shard, static_cast<std::uint8_t>(i)});
      if (piece != nullptr) bytes += piece->manifest().length_bytes;
    }
  }
  json tiers = {{"captured_bytes", captured}, {"copies_bytes", copies}, {"parity_bytes", parity}};
  if (!parts_.options.storage.empty())
    tiers.update(
        {{"stored", checkpoint_json(status.stored)}, {"stored_here_bytes", storage_->bytes_written(status.stored)}});
  return tiers;
}

json Driver::storage_json(const core::NodeStatus& status) const {
  if (parts_.options.storage.empty()) return nullptr;
  const persist::WriteCounters written = storage_->written();
  return {{"location", parts_.options.storage}, {"stored", checkpoint_json(status.stored)},
          {"skipped", status.stored_skipped},   {"trouble", status.storage_trouble},
          {"written_here", written.written},    {"bytes_written_here", written.bytes},
          {"failed_here", written.failed}};
}

json Driver::status_json() const {
  const core::NodeStatus status = core_.status();
  const placement::Protection protection = parts_.options.chosen_protection();
  json nodes = json::array({{{"name", parts_.options.node}, {"id", id_}, {"pid", ::getpid()}}});
  for (const auto& [id, node] : nodes_) nodes.push_back({{"name", node.name}, {"id", id}, {"pid", node.pid}});
  json present = json::array(), missing_nodes = json::array(), replacements = json::array(), notices = json::array();
  json lost = json::array();
  if (status.is_leader && status.epoch == lost_epoch_) {
    for (const auto& [node, reach] : lost_) lost.push_back({{"node", node_name(node)}, {"reason", name_of(reach)}});
  }
  for (const core::Replacement& each : status.replacements)
    replacements.push_back({{"node", node_name(each.by.node)}, {"instead_of", node_name(each.lost)}});
  for (const NodeId node : status.nodes_present) present.push_back(node_name(node));
  for (const NodeId node : status.missing_nodes) missing_nodes.push_back(node_name(node));
  for (const NoticeEntry& notice : event_log_.notices())
    notices.push_back({{"first", notice.first}, {"last", notice.last}, {"times", notice.times}, {"text", notice.text}});
  const Counters& counters = event_log_.counters;
  const net::UnauthenticatedPeers unauthenticated_peers =
      transport_ != nullptr ? transport_->unauthenticated_peers() : net::UnauthenticatedPeers{};
  return {{"job", parts_.options.job},
          {"node", parts_.options.node},
          {"node_id", id_},
          {"pid", ::getpid()},
          {"epoch", core::term_of(status.epoch)},
          {"leader", status.leader == core::no_node ? json(nullptr) : json(node_name(status.leader))},
          {"relay", status.relay == core::no_node ? json(nullptr) : json(node_name(status.relay))},
          {"is_leader", status.is_leader},
          {"incarnation", status.incarnation},
          {"decision",
           {{"verdict", name_of(status.decision.verdict)},
            {"checkpoint", checkpoint_json(status.decision.checkpoint)},
            {"behind", status.decision.behind},
            {"status_unknown", status.decision.status_unknown},
            {"text", status.decision.text}}},
          {"committed", checkpoint_json(status.committed)},
          {"highest_commit", checkpoint_json(status.highest_commit)},
          {"commit_age_ms", committed_at_ ? json(milliseconds_between(*committed_at_, Clock::now())) : json(nullptr)},
          {"resume_at", status.resume_at},
          {"protection", placement::name(protection)},
          {"copies", protection.copies},
          {"copies_now", status.copies_now},
          {"parity", protection.rows},
          {"parity_now", status.parity_now},
          {"alarm", alarm()},
          {"health", health_json()},
          {"coordination_trouble",
           store_ != nullptr && !store_->trouble().empty() ? store_->trouble() : status.record_trouble},
          {"coordination_doubt", alone_in_local_store(parts_.options, status, nodes_.empty())},
          {"storage", storage_json(status)},
          {"ranks", ranks_json(status)},
          {"tiers", tiers_json(status)},
          {"segments", segments_json()},
          {"arena",
           {{"directory", parts_.arena.directory()},
            {"bytes", segments_.bytes_used()},
            {"budget_bytes", segments_.budget_bytes()},
            {"left_bytes", segments_.space_left_bytes()}}},
          {"schedule", parts_.scheduler.status()},
          {"transport", transport_ != nullptr ? transport_->description() : ""},
          {"unauthenticated_peers", {{"count", unauthenticated_peers.count}, {"last", unauthenticated_peers.last}}},
          {"nodes", std::move(nodes)},
          {"nodes_present", std::move(present)},
          {"missing_ranks", status.missing_ranks},
          {"missing_nodes", std::move(missing_nodes)},
          {"standby", parts_.options.standby},
          {"replacements", std::move(replacements)},
          {"lost", std::move(lost)},
          {"notices", std::move(notices)},
          {"counters",
           {{"commits", counters.commits},
            {"skips", counters.skips},
            {"fetches", counters.fetches},
            {"failed_fetches", counters.failed_fetches},
            {"corrupt", counters.corrupt},
            {"refused", counters.refused},
            {"bytes_received", fetches_.transfer_counters().received_bytes},
            {"bytes_coded", fetches_.transfer_counters().coded_bytes}}}};
}

namespace {

const char* name_of(TraceEvent::Kind kind) {
  switch (kind) {
    case TraceEvent::Kind::communication:
      return "communication";
    case TraceEvent::Kind::iteration:
      return "iteration";
    case TraceEvent::Kind::capture:
      return "capture";
    case TraceEvent::Kind::chunk:
      return "chunk";
    case TraceEvent::Kind::commit:
      return "commit";
  }
  return "unknown";
}

}  // namespace

json Driver::trace_json() const {
  parts_.scheduler.listen();
  json events = json::array();
  for (const TraceEvent& event : parts_.trace.events()) {
    json event_json = {{"kind", name_of(event.kind)}};
    using enum TraceEvent::Kind;
    const bool is_moment = event.kind == iteration || event.kind == commit;
    if (is_moment)
      event_json["at_us"] = event.begin_us;
    else
      event_json.update({{"begin_us", event.begin_us}, {"end_us", event.end_us}});
    if (event.kind == communication || event.kind == iteration || event.kind == capture)
      event_json["rank"] = event.rank;
    if (event.checkpoint)
      event_json.update({{"incarnation", event.checkpoint.incarnation()}, {"iteration", event.checkpoint.iteration()}});
    if (event.kind == chunk)
      event_json.update({{"peer", node_name(event.peer)}, {"shard", event.shard}, {"bytes", event.size_bytes}});
    events.push_back(std::move(event_json));
  }
  const auto began_us = [](const json& event) {
    return event.value("begin_us", event.value("at_us", std::int64_t{0}));
  };
  std::stable_sort(events.begin(), events.end(),
                   [&](const json& a, const json& b) { return began_us(a) < began_us(b); });
  return {{"job", parts_.options.job},
          {"node", parts_.options.node},
          {"now_us", microseconds(Clock::now())},
          {"events", std::move(events)}};
}

}  // namespace ckpt::agent
