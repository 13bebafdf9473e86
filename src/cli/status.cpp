#include <utility>

#include "base/error.hpp"
#include "cli/commands.hpp"
#include "cli/health_text.hpp"
#include "cli/table.hpp"
#include "cli/timeline/schedule_text.hpp"

namespace ckpt::cli {
namespace {

using nlohmann::json;

std::string text_of(const json& value) {
  if (value.is_null()) return "-";
  return value.is_string() ? value.get<std::string>() : value.dump();
}

// Iterations count from 0; -1 means none.
std::string iteration_text(const json& value) {
  return value.is_number_integer() && value.get<std::int64_t>() >= 0 ? value.dump() : "-";
}

std::string checkpoint_text(const json& checkpoint) {
  return checkpoint.is_null() ? "none"
                              : "iteration " + checkpoint.at("iteration").dump() + " of incarnation " +
                                    checkpoint.at("incarnation").dump();
}

std::string committed_text(const json& agent) {
  if (agent.at("committed").is_null()) return "committed: nothing yet\n";
  std::string text = "committed: " + checkpoint_text(agent.at("committed"));
  if (!agent.at("commit_age_ms").is_null()) text += ", " + human_ms(agent.at("commit_age_ms").get<double>()) + " ago";
  text += ", " + agent.at("copies_now").dump() + " of " + agent.at("copies").dump() + " copies";
  if (agent.at("parity") != 0)
    text += ", parity for " + agent.at("parity_now").dump() + " of " + agent.at("parity").dump() + " losses in a group";
  return text + "\n";
}

std::string decision_text(const json& agent) {
  const json& decision = agent.at("decision");
  const std::string verdict = decision.at("verdict");
  std::string text = "incarnation " + agent.at("incarnation").dump() + ": ";
  if (verdict == "restore")
    text += "restored " + checkpoint_text(decision.at("checkpoint"));
  else if (verdict == "fresh")
    text += "a fresh start";
  else
    text += verdict;
  if (!decision.at("text").get<std::string>().empty()) text += " (" + decision.at("text").get<std::string>() + ")";
  for (const auto& [key, what] : {std::pair("missing_ranks", "ranks"), std::pair("missing_nodes", "nodes")})
    if (!agent.at(key).empty()) text += "; waiting for " + std::string(what) + " " + agent.at(key).dump();
  return text + "\n";
}

std::string slot_text(const json& slot) {
  if (slot.at("checkpoint").is_null()) return slot.at("state");
  return slot.at("checkpoint").at("incarnation").dump() + "." + slot.at("checkpoint").at("iteration").dump();
}

// The tier of the main shard, and that of the private shard if it differs.
std::string origin_text(const json& origin) {
  if (origin.is_null()) return "-";
  const std::string main = origin.at("main"), own = origin.at("private");
  return main == own ? main : main + " (private: " + own + ")";
}

std::string ago_text(const json& age_ms) { return age_ms.is_number() ? human_ms(age_ms.get<double>()) + " ago" : "-"; }

std::string trainer_state_text(const json& rank) {
  if (rank.value("stopped", false)) return "stopped (SIGSTOP)";
  if (const json paused = rank.value("paused", json()); paused.is_string()) return "paused (" + text_of(paused) + ")";
  return rank.at("restoring").get<bool>() ? "restoring" : "running";
}

std::string tiers_text(const json& tiers) {
  if (tiers.is_null()) return "";
  const auto bytes = [&](const char* name) { return human_bytes(tiers.at(name).get<std::uint64_t>()); };
  std::string text = "  tiers: " + bytes("captured_bytes") + " captured here, " + bytes("copies_bytes") +
                     " of copies, " + bytes("parity_bytes") + " of parity";
  if (tiers.contains("stored"))
    text +=
        "; on storage " + checkpoint_text(tiers.at("stored")) + ", " + bytes("stored_here_bytes") + " of it from here";
  return text + "\n";
}

// What the rank's peers send to it. Nothing if nobody asked for GPU replication.
std::string replication_text(const json& path) {
  if (path.value("gpu", false) && !path.value("begun", true)) return "gpu (nothing sent yet)";
  if (path.value("gpu", false))
    return "gpu (" + human_bytes(path.value("gpu_received_bytes", std::uint64_t{0})) + " received)";
  const std::string trouble = path.value("trouble", "");
  return trouble.empty() ? "" : "host (" + text_of(trouble) + ")";
}

std::string own_slots_text(const json& own) {
  if (own.is_null()) return "-";
  return own.at("count").dump() + ", " + human_bytes(own.at("bytes").get<std::uint64_t>());
}

// When captures have copied main shards in host memory. Nothing if they have not.
std::string copied_text(const json& copied) {
  if (!copied.is_object()) return "";
  const auto count = [&](const char* name) { return copied.value(name, std::uint64_t{0}); };
  const std::uint64_t bubbles = count("bubble_bytes"), beside = count("compute_bytes"), update = count("update_bytes");
  if (bubbles + beside + update == 0) return "";
  std::string text = human_bytes(bubbles) + " in bubbles, " + human_bytes(beside) + " beside computation, " +
                     human_bytes(update) + " in before_update()";
  if (count("layered") != 0)
    text += "; " + std::to_string(count("layered")) + " captures in layers, " + std::to_string(count("layered_late")) +
            " of them late";
  return text;
}

std::string ranks_table(const json& ranks) {
  std::vector<Row> rows = {{"rank", "process", "incarnation", "restored from", "attempted", "capturing",
                            "last progress", "own slots", "main shard", "state"}};
  for (const json& rank : ranks)
    rows.push_back({rank.at("rank").dump(), rank.at("pid").dump(), rank.at("incarnation").dump(),
                    origin_text(rank.value("restored_from", json())), iteration_text(rank.at("attempted")),
                    iteration_text(rank.at("capturing")), ago_text(rank.value("progress_age_ms", json())),
                    own_slots_text(rank.value("own_slots", json())), rank.at("main_shard"), trainer_state_text(rank)});
  std::string text = table(rows, "    ");
  for (const json& rank : ranks) {
    const std::string name = "    rank " + rank.at("rank").dump() + ": ";
    if (const std::string shortage = rank.value("shortage", ""); !shortage.empty())
      text += name + text_of(shortage) + "\n";
    if (const std::string refused = rank.value("own_slots", json::object()).value("refused", ""); !refused.empty())
      text += "    " + text_of(refused) + "\n";
    if (const std::string copied = copied_text(rank.value("copied", json())); !copied.empty())
      text += name + "captured " + copied + "\n";
    if (const std::string path = replication_text(rank.value("replication", json::object())); !path.empty())
      text += name + "replication: " + path + "\n";
  }
  return text;
}

std::string segments_table(const json& segments) {
  std::vector<Row> rows = {{"shard", "written by", "memory", "slots (incarnation.iteration)"}};
  for (const json& segment : segments) {
    std::string slots;
    for (const json& slot : segment.at("slots")) slots += (slots.empty() ? "" : "  ") + slot_text(slot);
    rows.push_back({segment.at("shard"), segment.at("rank").is_null() ? "agent" : "rank " + segment.at("rank").dump(),
                    human_bytes(segment.at("bytes").get<std::uint64_t>()), slots});
  }
  return table(rows, "    ");
}

std::string agent_text(const json& agent) {
  std::string text = "node " + text_of(agent.at("node")) + " of job " + text_of(agent.at("job")) + ": agent " +
                     agent.at("pid").dump() + ", led by node " + text_of(agent.at("leader")) + ", epoch " +
                     agent.at("epoch").dump() +
                     (agent.at("standby") == true && agent.at("ranks").empty() ? ", stands by" : "") + "\n";
  text += "  " + decision_text(agent) + "  " + committed_text(agent);
  if (!agent.at("alarm").get<std::string>().empty()) text += "  ALARM: " + text_of(agent.at("alarm")) + "\n";
  if (const json suspicion = agent.value("suspicion", json()); !suspicion.is_null())
    text += "  SUSPECTED: " + text_of(suspicion.at("text")) + "\n";
  if (const json halt = agent.value("halt", json()); !halt.is_null())
    text += "  HALTED: " + text_of(halt.at("text")) + "\n";
  if (const std::string trouble = agent.value("coordination_trouble", ""); !trouble.empty())
    text += "  COORDINATION FAILS: " + trouble + "\n";
  if (const json storage = agent.value("storage", json(nullptr)); !storage.is_null()) {
    text += "  storage: " + checkpoint_text(storage.at("stored")) + " in " + text_of(storage.at("location"));
    if (storage.at("skipped") != 0) text += ", " + storage.at("skipped").dump() + " skipped while it was busy";
    text += "\n";
    if (const std::string trouble = storage.at("trouble"); !trouble.empty())
      text += "  STORAGE FAILS: " + trouble + "\n";
  }
  text += tiers_text(agent.value("tiers", json()));
  const json& arena = agent.at("arena");
  const auto budget = arena.at("budget_bytes").get<std::uint64_t>();
  text += "  arena: " + human_bytes(arena.at("bytes").get<std::uint64_t>()) +
          (budget != 0 ? " of " + human_bytes(budget) : "") + " in " + text_of(arena.at("directory")) + ", " +
          human_bytes(arena.at("left_bytes").get<std::uint64_t>()) + " left there\n";
  text += "  network: " + text_of(agent.at("transport")) + "\n";
  if (const json& unauthenticated_peers = agent.at("unauthenticated_peers"); unauthenticated_peers.at("count") != 0)
    text += "  unauthenticated peers: " + unauthenticated_peers.at("count").dump() + " turned away; the last one, " +
            text_of(unauthenticated_peers.at("last")) + "\n";
  text += schedule_text(agent.value("schedule", json(nullptr)));
  if (!agent.at("nodes_present").empty()) {
    text += "  nodes present:";
    for (const json& node : agent.at("nodes_present")) text += " " + text_of(node);
    text += "\n";
  }
  for (const json& lost : agent.at("lost"))
    text += "  LOST: node " + text_of(lost.at("node")) + " (" + text_of(lost.at("reason")) + ")\n";
  for (const json& replacement : agent.at("replacements"))
    text +=
        "  node " + text_of(replacement.at("node")) + " replaces node " + text_of(replacement.at("instead_of")) + "\n";
  text += "  counted:";
  for (const auto& [name, count] : agent.at("counters").items())
    text += " " + name + " " + (name.starts_with("bytes_") ? human_bytes(count.get<std::uint64_t>()) : count.dump());
  text += "\n";
  if (!agent.at("ranks").empty()) text += "\n" + ranks_table(agent.at("ranks"));
  if (!agent.at("segments").empty()) text += "\n" + segments_table(agent.at("segments"));
  if (!agent.at("notices").empty()) text += "\n";
  for (const json& notice : agent.at("notices"))
    text += "    notice" + (notice.at("times") == 1 ? "" : " (" + notice.at("times").dump() + " times)") + ": " +
            text_of(notice.at("text")) + "\n";
  return text;
}

}  // namespace

Result status(const Scope& scope) {
  const auto arenas = find_arenas(scope);
  if (arenas.empty()) throw Failure(CKPT_ERR_NO_AGENT, nothing_found(scope, "arena"));
  Result result;
  result.json = {{"agents", json::array()}, {"without_agent", json::array()}};
  std::vector<json> verdicts;
  for (const Arena& arena : arenas) {
    if (!result.text.empty()) result.text += "\n";
    std::string why = "its agent is not running; its memory (" + human_bytes(directory_bytes(arena.directory)) +
                      ") is kept for its next start";
    if (arena.has_agent()) {
      try {
        const json agent = ask(arena, {{"type", "status"}}).body.at("agent");
        const std::string text = agent_text(agent);
        result.text += text;
        result.json["agents"].push_back(agent);
        verdicts.push_back(agent.at("health"));
        continue;
      } catch (const Failure& failure) {
        why = failure.what();
        verdicts.push_back(silent_agent(arena, why));
      } catch (const json::exception&) {
        why = not_understood(arena);
        verdicts.push_back(silent_agent(arena, why));
      }
    }
    result.text += "node " + arena.node + " of job " + arena.job + ": " + why + "\n";
    result.json["without_agent"].push_back(
        {{"job", arena.job}, {"node", arena.node}, {"directory", arena.directory}, {"why", why}});
  }
  const bool nobody_runs = verdicts.empty();
  if (nobody_runs)
    for (const Arena& arena : arenas) verdicts.push_back(no_agent(arena.job));
  std::string headlines;
  for (const json& verdict : worst_of_each_job(verdicts)) headlines += headline(verdict) + "\n";
  result.text = headlines + "\n" + result.text;
  // A command that only looks does not fail for a degraded job. A script that wants to know asks for the health.
  result.good = !result.json["agents"].empty();
  if (!nobody_runs && exit_status_of(verdicts) == 2) result.exit_status = 2;
  return result;
}

}  // namespace ckpt::cli
