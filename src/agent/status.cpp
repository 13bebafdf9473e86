#include "agent/status.hpp"

#include <unistd.h>

#include <algorithm>

#include "agent/process.hpp"
#include "agent/store_poller.hpp"
#include "core/epoch.hpp"

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

// If parts came from several tiers, the farthest one counts, as in the trainer.
json origin_json(const core::RestoreReady* ready, std::uint64_t incarnation) {
  if (ready == nullptr || ready->incarnation != incarnation || (ready->main.empty() && ready->taken.empty()))
    return nullptr;
  core::Tier main = core::Tier::none;
  for (const auto* sources : {&ready->main, &ready->taken})
    for (const core::RestoreSource& part : *sources) main = std::max(main, part.tier);
  return {{"main", name_of(main)}, {"private", name_of(ready->private_.tier)}};
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

// The rank's own slots: how many each of its segments has, and the memory of all of them.
json own_slots_json(const StatusSources& from, core::Rank rank, const TrainerManager::Trainer* trainer) {
  std::uint32_t slots = 0;
  std::uint64_t bytes = 0;
  for (const auto& [key, segment] : from.segments.all()) {
    if (key.rank != rank) continue;
    slots = slots == 0 ? segment->slots() : std::min(slots, segment->slots());
    bytes += segment->size_bytes();
  }
  return {{"count", slots}, {"bytes", bytes}, {"refused", trainer != nullptr ? trainer->slots_refused : ""}};
}

json copied_json(const arena::CopiedBytes& copied) {
  return {{"bubble_bytes", copied.in_bubbles},
          {"compute_bytes", copied.beside_computation},
          {"update_bytes", copied.in_update},
          {"layered", copied.layered},
          {"layered_late", copied.layered_late}};
}

json ranks_json(const StatusSources& from, const core::NodeStatus& status) {
  json ranks = json::array();
  for (const core::RankReport& rank : status.ranks) {
    const auto found = from.trainers.trainers().find(rank.rank);
    const TrainerManager::Trainer* trainer = found != from.trainers.trainers().end() ? &found->second : nullptr;
    const std::optional<std::string> paused = from.trainers.watch().paused(rank.rank);
    ranks.push_back(
        {{"rank", rank.rank},
         {"pid", trainer != nullptr ? trainer->pid : 0},
         {"paused", paused ? json(*paused) : json(nullptr)},
         {"computing_ms", rank.computing_ms},
         {"stopped", trainer != nullptr && is_process_stopped(trainer->pid)},
         {"progress_age_ms",
          trainer != nullptr ? json(milliseconds_between(trainer->progress_at, Clock::now())) : json(nullptr)},
         {"incarnation", rank.incarnation},
         {"restored_from", origin_json(from.trainers.served(rank.rank), rank.incarnation)},
         {"main_shard", rank.main_shard},
         {"private_shard", rank.private_shard},
         {"restoring", rank.waiting},
         {"attempted", rank.attempted},
         {"capturing", rank.capturing},
         {"copied", trainer != nullptr ? copied_json(trainer->port->control().copied()) : json(nullptr)},
         {"own_slots", own_slots_json(from, rank.rank, trainer)},
         {"shortage", trainer != nullptr ? trainer->shortage : ""}});
    const ReplicationManager::Status replication = from.transfers.replications().status(rank.rank);
    ranks.back()["replication"] = {{"gpu", replication.is_device},
                                   {"begun", replication.has_begun},
                                   {"gpu_received_bytes", replication.gpu_received_bytes},
                                   {"trouble", replication.trouble}};
  }
  return ranks;
}

json segments_json(const StatusSources& from) {
  json segments = json::array();
  for (const auto& [key, segment] : from.segments.all()) {
    const bool held = key.rank == core::held_rank;
    json slots = json::array();
    for (std::uint32_t i = 0; i < segment->slots(); ++i) {
      const SlotRef slot{key.rank, key.shard, static_cast<std::uint8_t>(i)};
      const Pin piece = from.index.find(slot);
      const auto trainer = from.trainers.trainers().find(key.rank);
      const auto& grant =
          trainer != from.trainers.trainers().end() ? trainer->second.port->outstanding() : std::nullopt;
      const bool granted = grant && std::find(grant->slots.begin(), grant->slots.end(), slot) != grant->slots.end();
      const char* state = piece != nullptr                             ? "whole"
                          : from.transfers.fetches().writes_into(slot) ? "filling"
                          : granted                                    ? "granted"
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

// The tiers, as far as this node knows: all whole pieces here, and what it wrote itself of storage's newest checkpoint.
json tiers_json(const StatusSources& from, const core::NodeStatus& status) {
  std::uint64_t captured = 0, copies = 0, parity = 0;
  for (const auto& [key, segment] : from.segments.all()) {
    const bool held = key.rank == core::held_rank;
    std::uint64_t& bytes = !held ? captured : key.shard.starts_with(core::parity_prefix) ? parity : copies;
    for (std::uint32_t i = 0; i < segment->slots(); ++i) {
      const Pin piece = from.index.find({key.rank, key.shard, static_cast<std::uint8_t>(i)});
      if (piece != nullptr) bytes += piece->manifest().length_bytes;
    }
  }
  json tiers = {{"captured_bytes", captured}, {"copies_bytes", copies}, {"parity_bytes", parity}};
  if (!from.options.storage.empty())
    tiers.update({{"stored", checkpoint_json(status.stored)},
                  {"stored_here_bytes", from.transfers.storage()->bytes_written(status.stored)}});
  return tiers;
}

json storage_json(const StatusSources& from, const core::NodeStatus& status) {
  if (from.options.storage.empty()) return nullptr;
  const persist::WriteCounters written = from.transfers.storage()->written();
  return {{"location", from.options.storage}, {"stored", checkpoint_json(status.stored)},
          {"skipped", status.stored_skipped}, {"trouble", status.storage_trouble},
          {"written_here", written.written},  {"bytes_written_here", written.bytes},
          {"failed_here", written.failed}};
}

std::string alarm(const StatusSources& from, const core::NodeStatus& status) {
  const std::string& of_job = status.alarm;
  const std::string& of_arena = from.arena_watch.alarm();
  return of_job.empty() || of_arena.empty() ? of_job + of_arena : of_job + "; " + of_arena;
}

}  // namespace

std::string coordination_doubt(const core::NodeStatus& status, const Peers& peers, const Options& options,
                               const std::string& local_store) {
  if (local_store.empty() || status.missing_ranks.empty() || !peers.all().empty()) return "";
  return "no other node has registered in " + options.coordination + ", a directory that only the machine of node " +
         options.node + " sees (" + local_store +
         "): if ranks are on other machines, set the option coordination to a directory that all of them mount, or to "
         "etcd";
}

std::string what_is_missing(const core::NodeStatus& status, const Peers& peers, const std::string& store_trouble,
                            const std::string& doubt, bool has_storage) {
  if (!store_trouble.empty()) return store_trouble;
  const auto name = [&](NodeId node) { return peers.name(node); };
  const auto number = [](core::Rank rank) { return std::to_string(rank); };
  if (status.leader == core::no_node) return "the job has no leader; check the coordination store with ckptctl doctor";
  if (!status.missing_nodes.empty())
    return "waiting for nodes " + joined(status.missing_nodes, name) + ", which may hold newer state";
  const bool undecided = status.decision.verdict == core::Verdict::undecided;
  if (undecided && !status.storage_trouble.empty())
    return "storage does not say what it has: " + status.storage_trouble;
  if (!status.missing_ranks.empty())
    return "waiting for ranks " + joined(status.missing_ranks, number) + ", which have not called restore()" +
           (doubt.empty() ? "" : "; " + doubt);
  const bool unheard = std::any_of(status.ranks.begin(), status.ranks.end(), [&](const core::RankReport& rank) {
    return rank.waiting && (rank.incarnation == 0 || rank.incarnation != status.incarnation);
  });
  if (unheard || undecided) return "node " + name(status.leader) + " (the leader) does not answer";
  return has_storage ? "the shards are still on their way from other nodes or from storage"
                     : "the shards are still on their way from other nodes";
}

json status_json(const StatusSources& from) {
  const core::NodeStatus status = from.core.status();
  const std::string store_trouble = from.store.trouble();
  const placement::Protection protection = from.options.chosen_protection();
  json nodes = json::array({{{"name", from.options.node}, {"id", from.peers.own_node()}, {"pid", ::getpid()}}});
  for (const auto& [id, node] : from.peers.all()) nodes.push_back({{"name", node.name}, {"id", id}, {"pid", node.pid}});
  json present = json::array(), missing_nodes = json::array(), replacements = json::array(), notices = json::array();
  json lost = json::array();
  if (status.is_leader) {
    for (const auto& [node, reach] : from.members.lost(status.epoch))
      lost.push_back({{"node", from.peers.name(node)}, {"reason", name_of(reach)}});
  }
  for (const core::Replacement& each : status.replacements)
    replacements.push_back({{"node", from.peers.name(each.by.node)}, {"instead_of", from.peers.name(each.lost)}});
  for (const NodeId node : status.nodes_present) present.push_back(from.peers.name(node));
  for (const NodeId node : status.missing_nodes) missing_nodes.push_back(from.peers.name(node));
  for (const NoticeEntry& notice : from.event_log.notices())
    notices.push_back({{"first", notice.first}, {"last", notice.last}, {"times", notice.times}, {"text", notice.text}});
  const Counters& counters = from.event_log.counters;
  const RecomputeCounters& recomputes = from.transfers.recompute_counters();
  const net::UnauthenticatedPeers unauthenticated_peers = from.transport.unauthenticated_peers();
  return {{"job", from.options.job},
          {"node", from.options.node},
          {"node_id", from.peers.own_node()},
          {"pid", ::getpid()},
          {"epoch", core::term_of(status.epoch)},
          {"leader", status.leader == core::no_node ? json(nullptr) : json(from.peers.name(status.leader))},
          {"relay", status.relay == core::no_node ? json(nullptr) : json(from.peers.name(status.relay))},
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
          {"commit_age_ms",
           from.committed_at ? json(milliseconds_between(*from.committed_at, Clock::now())) : json(nullptr)},
          {"resume_at", status.resume_at},
          {"protection", from.options.protection_name()},
          {"copies", protection.copies},
          {"copies_now", status.copies_now},
          {"parity", protection.rows},
          {"parity_now", status.parity_now},
          {"alarm", alarm(from, status)},
          {"health", from.health.report()},
          {"suspicion", from.health.suspicion()},
          {"halt", from.health.halt()},
          {"coordination_trouble", store_trouble.empty() ? status.record_trouble : store_trouble},
          {"coordination_doubt", coordination_doubt(status, from.peers, from.options, from.local_store)},
          {"storage", storage_json(from, status)},
          {"ranks", ranks_json(from, status)},
          {"tiers", tiers_json(from, status)},
          {"segments", segments_json(from)},
          {"arena",
           {{"directory", from.arena.directory()},
            {"bytes", from.segments.bytes_used()},
            {"budget_bytes", from.segments.budget_bytes()},
            {"left_bytes", from.segments.space_left_bytes()}}},
          {"schedule", from.scheduler.status()},
          {"transport", from.transport.description()},
          {"unauthenticated_peers", {{"count", unauthenticated_peers.count}, {"last", unauthenticated_peers.last}}},
          {"nodes", std::move(nodes)},
          {"nodes_present", std::move(present)},
          {"missing_ranks", status.missing_ranks},
          {"missing_nodes", std::move(missing_nodes)},
          {"standby", from.options.standby},
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
            {"recomputed", recomputes.recomputed},
            {"recomputed_in_vain", recomputes.recomputed_in_vain},
            {"not_recomputed", recomputes.not_recomputed},
            {"bytes_received", from.transfers.fetches().transfer_counters().received_bytes},
            {"bytes_coded", from.transfers.fetches().transfer_counters().coded_bytes}}}};
}

namespace {

const char* name_of(TraceEvent::Kind kind) {
  switch (kind) {
    case TraceEvent::Kind::communication:
      return "communication";
    case TraceEvent::Kind::iteration:
      return "iteration";
    case TraceEvent::Kind::bubble:
      return "bubble";
    case TraceEvent::Kind::copy:
      return "copy";
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

json trace_json(const StatusSources& from) {
  from.scheduler.listen();
  json events = json::array();
  for (const TraceEvent& event : from.trace.events()) {
    json event_json = {{"kind", name_of(event.kind)}};
    using enum TraceEvent::Kind;
    const bool is_moment = event.kind == iteration || event.kind == commit;
    if (is_moment)
      event_json["at_us"] = event.begin_us;
    else
      event_json.update({{"begin_us", event.begin_us}, {"end_us", event.end_us}});
    if (event.kind == communication || event.kind == iteration || event.kind == bubble || event.kind == copy ||
        event.kind == capture)
      event_json["rank"] = event.rank;
    if (event.checkpoint)
      event_json.update({{"incarnation", event.checkpoint.incarnation()}, {"iteration", event.checkpoint.iteration()}});
    if (event.kind == chunk)
      event_json.update({{"peer", from.peers.name(event.peer)}, {"shard", event.shard}, {"bytes", event.size_bytes}});
    events.push_back(std::move(event_json));
  }
  const auto began_us = [](const json& event) {
    return event.value("begin_us", event.value("at_us", std::int64_t{0}));
  };
  std::stable_sort(events.begin(), events.end(),
                   [&](const json& a, const json& b) { return began_us(a) < began_us(b); });
  return {{"job", from.options.job},
          {"node", from.options.node},
          {"now_us", microseconds(Clock::now())},
          {"events", std::move(events)}};
}

}  // namespace ckpt::agent
