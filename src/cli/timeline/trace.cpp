#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <set>
#include <string_view>

#include "base/error.hpp"
#include "cli/commands.hpp"
#include "cli/gnuplot.hpp"
#include "cli/timeline/timeline.hpp"
#include "cli/timeline/timeline_plot.hpp"

namespace ckpt::cli {
namespace {

using nlohmann::json;

struct Answers {
  std::vector<Recording> recordings;
  std::vector<std::string> failures;  // sentences about the arenas without a recording
};

Answers ask_all(const std::vector<Arena>& arenas) {
  Answers answers;
  for (const Arena& arena : arenas) {
    const std::string who = "node " + arena.node + " of job " + arena.job + ": ";
    if (!arena.has_agent()) {
      answers.failures.push_back(who + "its agent is not running");
      continue;
    }
    try {
      json body = ask(arena, {{"type", "trace"}}).body;
      if (!body.contains("trace"))
        throw Failure(CKPT_ERR_INVALID, "the agent's answer has no recording; run ckptd and ckptctl of one version");
      answers.recordings.push_back({arena.job, arena.node, std::move(body["trace"])});
    } catch (const Failure& failure) {
      answers.failures.push_back(who + failure.what());
    }
  }
  return answers;
}

void write_file(const std::string& path, std::string_view text) {
  const UniqueFd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
  if (!file) throw_errno(CKPT_ERR_SYSTEM, "cannot write " + path);
  while (!text.empty()) {
    const ssize_t written = ::write(file.get(), text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) throw_errno(CKPT_ERR_SYSTEM, "cannot write " + path);
    text.remove_prefix(static_cast<std::size_t>(written));
  }
}

std::size_t events_of(const NodeTimeline& node) {
  std::size_t events = 0;
  for (const Track& track : node.tracks)
    if (track.lane != Lane::idle) events += track.marks.size();
  return events;
}

std::string counted(std::size_t count, const std::string& what) {
  return std::to_string(count) + " " + what + (count == 1 ? "" : "s");
}

// A plot has one time axis.
void check_one_job(const Timeline& timeline) {
  std::set<std::string> jobs;
  for (const NodeTimeline& node : timeline.nodes) jobs.insert(node.job);
  if (jobs.size() == 1) return;
  std::string names;
  for (const std::string& job : jobs) names += (names.empty() ? "" : ", ") + job;
  throw Failure(CKPT_ERR_INVALID, "a plot shows one job, and here are " + names + ": name one with --job");
}

Result result_of(const Timeline& timeline, const Answers& answers, const TraceOptions& options) {
  Result result;
  result.json = {{"output", options.output},
                 {"plot", options.plot.empty() ? json() : json(options.plot)},
                 {"iterations", timeline.iterations},
                 {"malformed", timeline.malformed},
                 {"nodes", json::array()},
                 {"failures", answers.failures}};
  std::size_t events = 0;
  for (const NodeTimeline& node : timeline.nodes) {
    events += events_of(node);
    result.json["nodes"].push_back({{"job", node.job}, {"node", node.node}, {"events", events_of(node)}});
  }
  result.text = "wrote " + counted(events, "event") + " of " + counted(timeline.nodes.size(), "node") + " from " +
                (timeline.iterations == 0 ? "less than an iteration" : counted(timeline.iterations, "iteration")) +
                " to " + options.output + ": open it in https://ui.perfetto.dev or chrome://tracing\n";
  if (!options.plot.empty()) result.text += "drew them in " + options.plot + "\n";
  if (timeline.malformed != 0)
    result.text += counted(timeline.malformed, "event") + " could not be read; run ckptd and ckptctl of one version\n";
  for (const std::string& failure : answers.failures) result.text += "without " + failure + "\n";
  return result;
}

}  // namespace

Result trace(const Scope& scope, const TraceOptions& options) {
  if (!options.plot.empty()) gnuplot_output(options.plot, 0, 0);  // throws if it is neither .png nor .svg
  const auto arenas = find_arenas(scope);
  if (arenas.empty()) throw Failure(CKPT_ERR_NO_AGENT, nothing_found(scope, "arena"));
  const Answers answers = ask_all(arenas);
  if (answers.recordings.empty()) throw Failure(CKPT_ERR_NO_AGENT, answers.failures.front());
  const Timeline timeline = timeline_of(answers.recordings, options.iterations);
  if (timeline.nodes.empty())
    throw Failure(CKPT_ERR_INVALID,
                  "there is nothing to show yet: no agent has recorded a communication, a snapshot, a chunk or a "
                  "commit; try again after some iterations");
  if (!options.plot.empty()) check_one_job(timeline);
  write_file(options.output, trace_events(timeline).dump(-1, ' ', false, json::error_handler_t::replace) + "\n");
  if (!options.plot.empty()) run_gnuplot(timeline_script(timeline, options.plot), options.plot);
  return result_of(timeline, answers, options);
}

}  // namespace ckpt::cli
