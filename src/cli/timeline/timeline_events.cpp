// The trace event format, as chrome://tracing and ui.perfetto.dev read it.
#include "cli/timeline/timeline.hpp"

namespace ckpt::cli {
namespace {

using nlohmann::json;

const char* category(Lane lane) {
  switch (lane) {
    case Lane::iteration:
    case Lane::communication:
    case Lane::idle:
    case Lane::bubble:
      return "training";
    case Lane::copy:
    case Lane::capture:
    case Lane::chunk:
    case Lane::commit:
      return "checkpoint";
  }
  return "";
}

// Names and orders a process or, if `tid` is not 0, one of its threads.
void add_metadata(json& events, std::uint32_t pid, std::uint32_t tid, const std::string& name) {
  const std::string of = tid == 0 ? "process" : "thread";
  json named = {{"ph", "M"}, {"pid", pid}, {"name", of + "_name"}, {"args", {{"name", name}}}};
  json sorted = {
      {"ph", "M"}, {"pid", pid}, {"name", of + "_sort_index"}, {"args", {{"sort_index", tid == 0 ? pid : tid}}}};
  if (tid != 0) named["tid"] = sorted["tid"] = tid;
  events.push_back(std::move(named));
  events.push_back(std::move(sorted));
}

json event_of(const Track& track, const Mark& mark, std::uint32_t pid, std::uint32_t tid) {
  json event = {{"name", mark.name}, {"cat", category(track.lane)}, {"pid", pid},
                {"tid", tid},        {"ts", mark.extent.begin_us},  {"args", mark.args}};
  if (track.is_of_instants()) {
    event["ph"] = "i";
    event["s"] = "t";
  } else {
    event["ph"] = "X";
    event["dur"] = mark.extent.end_us - mark.extent.begin_us;
  }
  return event;
}

}  // namespace

json trace_events(const Timeline& timeline) {
  json events = json::array();
  std::uint32_t pid = 0;
  std::uint32_t tid = 0;  // unique in the file: some readers treat threads as the machine's
  for (const NodeTimeline& node : timeline.nodes) {
    add_metadata(events, ++pid, 0, "node " + node.node + " of job " + node.job);
    for (const Track& track : node.tracks) {
      const std::uint32_t first_tid = tid + 1;
      for (std::uint32_t row = 0; row < track.rows; ++row)
        add_metadata(events, pid, ++tid, row == 0 ? track.name : track.name + " (" + std::to_string(row + 1) + ")");
      for (const Mark& mark : track.marks) events.push_back(event_of(track, mark, pid, first_tid + mark.row));
    }
  }
  return {{"displayTimeUnit", "ms"}, {"traceEvents", std::move(events)}};
}

}  // namespace ckpt::cli
