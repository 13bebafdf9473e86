#include "cli/timeline/timeline.hpp"

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <set>

#include "options/options.hpp"

namespace ckpt::cli {
namespace {

using nlohmann::json;

constexpr std::int64_t time_max_us = std::int64_t{1} << 52;
constexpr std::uint64_t no_rank = std::numeric_limits<std::uint64_t>::max();

// Names a track. Ordered as tracks are shown: rank by rank, then those of no rank.
struct Key {
  std::uint64_t rank = no_rank;
  Lane lane = Lane::iteration;
  std::string peer;
  auto operator<=>(const Key&) const = default;
};
struct Event {
  Key key;
  Mark mark;
};
using Marks = std::map<Key, std::vector<Mark>>;

std::optional<std::int64_t> time_us(const json& event, const char* name) {
  const auto field = event.find(name);
  if (field == event.end() || !field->is_number_integer()) return std::nullopt;
  if (field->is_number_unsigned() && field->get<std::uint64_t>() > time_max_us) return std::nullopt;
  const auto time = field->get<std::int64_t>();
  return time >= 0 ? std::optional(time) : std::nullopt;
}

std::optional<Extent> extent_of(const json& event, bool is_instant) {
  const auto begin = time_us(event, is_instant ? "at_us" : "begin_us");
  const auto end = is_instant ? begin : time_us(event, "end_us");
  if (!begin || !end || *end < *begin) return std::nullopt;
  return Extent{*begin, *end};
}

json args_of(const json& event) {
  json args = json::object();
  for (const char* name : {"rank", "incarnation", "iteration", "bytes"})
    if (const auto field = event.find(name); field != event.end() && field->is_number_integer()) args[name] = *field;
  if (const auto shard = event.find("shard"); shard != event.end() && shard->is_string()) args["shard"] = *shard;
  return args;
}

std::string name_of(Lane lane, const json& args) {
  const std::string iteration = args.contains("iteration") ? " " + args.at("iteration").dump() : "";
  switch (lane) {
    case Lane::iteration:
      return "iteration ended";
    case Lane::communication:
      return "communication";
    case Lane::idle:
      return "idle";
    case Lane::bubble:
      return "bubble";
    case Lane::copy:
      return "copy";
    case Lane::capture:
      return "capture" + iteration;
    case Lane::chunk:
      return args.value("shard", "chunk") + iteration;
    case Lane::commit:
      return "commit" + iteration;
  }
  return "";
}

std::string track_name(const Key& key) {
  const std::string rank = "rank " + std::to_string(key.rank) + ": ";
  switch (key.lane) {
    case Lane::iteration:
      return rank + "iterations";
    case Lane::communication:
      return rank + "communication";
    case Lane::idle:
      return rank + "idle spans";
    case Lane::bubble:
      return rank + "bubbles";
    case Lane::copy:
      return rank + "copying";
    case Lane::capture:
      return rank + "capture";
    case Lane::chunk:
      return "chunks to " + key.peer;
    case Lane::commit:
      return "commits";
  }
  return "";
}

std::optional<Lane> lane_of(const json& event) {
  const auto& kind = event.at("kind").get_ref<const std::string&>();
  for (const auto& [name, lane] :
       {std::pair("communication", Lane::communication), std::pair("iteration", Lane::iteration),
        std::pair("bubble", Lane::bubble), std::pair("copy", Lane::copy), std::pair("capture", Lane::capture),
        std::pair("chunk", Lane::chunk), std::pair("commit", Lane::commit)})
    if (kind == name) return lane;
  return std::nullopt;
}

bool has_kind(const json& event) { return event.is_object() && event.contains("kind") && event.at("kind").is_string(); }

std::optional<Event> event_of(const json& event, Lane lane) {
  Event read;
  read.key.lane = lane;
  const auto extent = extent_of(event, lane == Lane::iteration || lane == Lane::commit);
  if (!extent) return std::nullopt;
  if (lane == Lane::chunk) {
    const auto peer = event.find("peer");
    if (peer == event.end() || !peer->is_string() || !is_plain_name(peer->get_ref<const std::string&>()))
      return std::nullopt;
    read.key.peer = *peer;
  } else if (lane != Lane::commit) {
    const auto rank = event.find("rank");
    if (rank == event.end() || !rank->is_number_unsigned() || *rank == no_rank) return std::nullopt;
    read.key.rank = *rank;
  }
  read.mark.extent = *extent;
  read.mark.args = args_of(event);
  read.mark.name = name_of(lane, read.mark.args);
  return read;
}

struct Node {
  std::string job;
  std::string node;
  Marks marks;
  std::int64_t asked_us = time_max_us;
};

Node read(const Recording& recording, std::size_t& malformed) {
  Node node{recording.job, recording.node, {}, time_max_us};
  if (!recording.trace.is_object()) return ++malformed, node;
  if (const auto now = time_us(recording.trace, "now_us")) node.asked_us = *now;
  const auto events = recording.trace.find("events");
  if (events == recording.trace.end() || !events->is_array()) return ++malformed, node;
  for (const json& event : *events) {
    if (!has_kind(event)) {
      ++malformed;
    } else if (const auto lane = lane_of(event)) {
      if (auto known = event_of(event, *lane))
        node.marks[known->key].push_back(std::move(known->mark));
      else
        ++malformed;
    }
  }
  for (auto& [key, marks] : node.marks)
    std::stable_sort(marks.begin(), marks.end(), [](const Mark& a, const Mark& b) {
      return std::pair(a.extent.begin_us, a.extent.end_us) < std::pair(b.extent.begin_us, b.extent.end_us);
    });
  return node;
}

struct Window {
  Extent shown;
  std::uint32_t iterations = 0;
};

Extent all_there_is(const std::vector<const Node*>& nodes) {
  Extent all{time_max_us, 0};
  for (const Node* node : nodes)
    for (const auto& [key, marks] : node->marks)
      for (const Mark& mark : marks) {
        all.begin_us = std::min(all.begin_us, mark.extent.begin_us);
        all.end_us = std::max(all.end_us, mark.extent.end_us);
      }
  return all;
}

// The timeline of one job. Agents were asked one after another. Events after the first answer are not known of all
// agents.
Window window_of(const std::vector<const Node*>& nodes, std::uint32_t iterations) {
  std::int64_t asked_us = time_max_us;
  for (const Node* node : nodes) asked_us = std::min(asked_us, node->asked_us);
  std::vector<std::int64_t> newest;
  for (const Node* node : nodes)
    for (const auto& [key, marks] : node->marks) {
      if (key.lane != Lane::iteration) continue;
      std::vector<std::int64_t> ends;
      for (const Mark& mark : marks)
        if (mark.extent.end_us <= asked_us) ends.push_back(mark.extent.end_us);
      ends.erase(std::unique(ends.begin(), ends.end()), ends.end());
      if (ends.size() >= 2 && (newest.empty() || ends.back() > newest.back())) newest = std::move(ends);
    }
  if (newest.empty()) return {all_there_is(nodes), 0};
  const std::size_t shown = std::min<std::size_t>(iterations, newest.size() - 1);
  return {{newest[newest.size() - 1 - shown], newest.back()}, static_cast<std::uint32_t>(shown)};
}

bool is_in(const Extent& extent, const Extent& shown) {
  if (extent.begin_us == extent.end_us) return shown.begin_us <= extent.begin_us && extent.end_us <= shown.end_us;
  return extent.begin_us < shown.end_us && extent.end_us > shown.begin_us;
}

std::vector<Extent> extents_of(const std::vector<Mark>& marks) {
  std::vector<Extent> extents;
  for (const Mark& mark : marks) extents.push_back(mark.extent);
  return extents;
}

// The spans without communication of the rank, each within one of its iterations.
std::vector<Mark> idle_spans(const Extent& shown, const Marks& marks, std::uint64_t rank) {
  std::vector<Extent> busy = extents_of(marks.at({rank, Lane::communication, ""}));
  if (const auto ends = marks.find({rank, Lane::iteration, ""}); ends != marks.end())
    for (const Mark& end : ends->second) busy.push_back(end.extent);
  std::vector<Mark> spans;
  for (const Extent& gap : gaps(shown, std::move(busy)))
    spans.push_back({gap, name_of(Lane::idle, json::object()), json{{"rank", rank}}, 0});
  return spans;
}

// The first row in which it overlaps nothing.
std::uint32_t assign_rows(std::vector<Mark>& marks) {
  std::vector<std::int64_t> ends_us;
  for (Mark& mark : marks) {
    const auto free = std::find_if(ends_us.begin(), ends_us.end(),
                                   [&](std::int64_t end_us) { return end_us <= mark.extent.begin_us; });
    mark.row = static_cast<std::uint32_t>(free - ends_us.begin());
    if (free == ends_us.end())
      ends_us.push_back(mark.extent.end_us);
    else
      *free = mark.extent.end_us;
  }
  return static_cast<std::uint32_t>(std::max<std::size_t>(ends_us.size(), 1));
}

NodeTimeline shown_of(Node node, const Extent& shown) {
  NodeTimeline timeline{node.job, node.node, shown, {}};
  for (auto& [key, marks] : node.marks) std::erase_if(marks, [&](const Mark& m) { return !is_in(m.extent, shown); });
  std::erase_if(node.marks, [](const auto& track) { return track.second.empty(); });
  std::set<std::uint64_t> ranks;
  for (const auto& [key, marks] : node.marks)
    if (key.lane == Lane::communication) ranks.insert(key.rank);
  for (const std::uint64_t rank : ranks)
    if (auto spans = idle_spans(shown, node.marks, rank); !spans.empty())
      node.marks[{rank, Lane::idle, ""}] = std::move(spans);
  for (auto& [key, marks] : node.marks) {
    Track track{key.lane, track_name(key), std::move(marks), 1};
    if (!track.is_of_instants()) track.rows = assign_rows(track.marks);
    timeline.tracks.push_back(std::move(track));
  }
  return timeline;
}

}  // namespace

std::vector<Extent> gaps(const Extent& shown, std::vector<Extent> busy) {
  std::sort(busy.begin(), busy.end(), [](const Extent& a, const Extent& b) { return a.begin_us < b.begin_us; });
  std::vector<Extent> gaps;
  std::int64_t free_us = shown.begin_us;  // free since then
  for (const Extent& extent : busy) {
    const std::int64_t until_us = std::min(extent.begin_us, shown.end_us);
    if (until_us > free_us) gaps.push_back({free_us, until_us});
    free_us = std::max(free_us, extent.end_us);
  }
  if (shown.end_us > free_us) gaps.push_back({free_us, shown.end_us});
  return gaps;
}

Timeline timeline_of(const std::vector<Recording>& recordings, std::uint32_t iterations) {
  Timeline timeline;
  std::vector<Node> nodes;
  for (const Recording& recording : recordings) nodes.push_back(read(recording, timeline.malformed));
  std::map<std::string, std::vector<const Node*>> jobs;
  for (const Node& node : nodes) jobs[node.job].push_back(&node);
  std::map<std::string, Window> windows;
  for (const auto& [job, of_job] : jobs) windows[job] = window_of(of_job, iterations);
  for (Node& node : nodes) {
    const Window& window = windows.at(node.job);
    NodeTimeline shown = shown_of(std::move(node), window.shown);
    if (shown.tracks.empty()) continue;
    timeline.iterations = std::max(timeline.iterations, window.iterations);
    timeline.nodes.push_back(std::move(shown));
  }
  return timeline;
}

}  // namespace ckpt::cli
