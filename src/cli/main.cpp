// ckptctl: the tool for this machine's agents and arenas, and for checkpoints on storage.

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdlib>
#include <iostream>
#include <thread>

#include "base/error.hpp"
#include "cli/commands.hpp"
#include "cli/placement/placement_command.hpp"
#include "cli/plan/plan_command.hpp"
#include "cli/read_options.hpp"
#include "cli/storage/storage_command.hpp"
#include "cli/versions.hpp"
#include "options/options.hpp"

namespace {

using namespace ckpt;

struct CommandLine {
  bool json = false;
  cli::GcOptions gc;
  std::string job, node, arena_dir, coordination, storage;
  std::vector<std::string> words;  // key=value, as for ckptd and trainers

  OptionPairs pairs() const {
    OptionPairs pairs = split_key_values(words);
    for (const auto& [key, value] :
         {std::pair("job", &job), std::pair("node", &node), std::pair("arena_dir", &arena_dir),
          std::pair("coordination", &coordination), std::pair("storage", &storage)})
      if (!value->empty()) pairs.emplace_back(key, *value);
    return pairs;
  }
};

Options options_of(const CommandLine& line) { return cli::read_options(line.pairs()); }

cli::Scope scope_of(const CommandLine& line) {
  const OptionPairs pairs = line.pairs();
  const Options options = options_of(line);
  // The default, the host name, selects nothing: several nodes may share a machine.
  const bool node_given =
      std::any_of(pairs.begin(), pairs.end(), [](const auto& pair) { return pair.first == "node"; });
  return {options.arena_dir, coord::StoreLocation(options), options.job, node_given ? options.node : ""};
}

void add_scope_options(CLI::App* command, CommandLine& line) {
  command->add_option("--node", line.node, "Only this node");
  command->add_option("--arena-dir,--arena_dir", line.arena_dir,
                      "Directory of the arenas (default: /dev/shm/ckptengine-<uid>)");
  command->add_option("--coordination", line.coordination,
                      "Coordination store: a directory or etcd://host:port (default: /tmp/ckptengine-<uid>)");
}

CLI::App* add_command(CLI::App& app, CommandLine& line, const char* name, const char* help) {
  CLI::App* command = app.add_subcommand(name, help);
  command->add_flag("--json", line.json, "Print JSON");
  command->add_option("--job", line.job, "Only this job");
  add_scope_options(command, line);
  command->add_option("OPTION", line.words, "Options as KEY=VALUE, e.g. job=demo");
  return command;
}

CLI::App* add_trace_command(CLI::App& app, CommandLine& line, cli::TraceOptions& options) {
  CLI::App* command = add_command(app, line, "trace",
                                  "Write a timeline of the last iterations: communication, idle spans, checkpoints");
  command->add_option("--iterations", options.iterations, "Number of complete iterations")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  command->add_option("--output", options.output, "File for the trace events, for ui.perfetto.dev")
      ->capture_default_str();
  command->add_option("--plot", options.plot, "Also draw the timeline: a .png or .svg file (needs gnuplot)");
  return command;
}

CLI::App* add_hook_command(CLI::App& app, CommandLine& line, cli::HookRequest& request) {
  CLI::App* command = app.add_subcommand("hook", "Call the member hook as the leader does, to try it");
  command->add_option("CHANGE", request.change, "What happened to the node")
      ->required()
      ->check(CLI::IsMember({"lost", "replaced", "returned", "released"}));
  command->add_option("NODE", request.node, "The node's name")->required();
  command->add_option("--replacement", request.replacement, "The node that replaces it, if it was replaced");
  command->add_option("--reason", request.reason, "What the probe of a lost node found")
      ->check(
          CLI::IsMember({"ended", "silent", "unreachable", "answers", "wrong_token", "unauthenticated", "unknown"}));
  command->add_flag("--dry-run", request.dry_run, "Only print what it would call");
  command->add_option("--hook", request.hook, "Command or URL (default: the option member_hook)");
  command->add_option("--job", line.job, "The job");
  command->add_flag("--json", line.json, "Print JSON");
  return command;
}

// One line per document.
std::string line_of(const nlohmann::json& json) {
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

std::string look(const cli::Scope& scope, bool json) {
  try {
    const cli::Result result = cli::status(scope);
    return json ? line_of(result.json) : result.text;
  } catch (const Failure& failure) {
    return json ? line_of({{"error", failure.what()}}) : failure.what() + std::string("\n");
  }
}

// Prints the status every second until it is interrupted. On a terminal each status replaces the one before.
[[noreturn]] void watch(const cli::Scope& scope, bool json) {
  const bool is_terminal = !json && ::isatty(STDOUT_FILENO) == 1;
  for (;; std::this_thread::sleep_for(std::chrono::seconds(1))) {
    const std::string text = look(scope, json);
    std::cout << (is_terminal ? "\033[H\033[2J" : "") << text << (is_terminal || json ? "" : "\n") << std::flush;
    if (!std::cout) std::exit(1);
  }
}

int print(const cli::Result& result, bool json) {
  if (json)
    std::cout << result.json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) << '\n';
  else
    std::cout << result.text;
  return result.exit_status.value_or(result.good ? 0 : 1);
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app(
      "ckptctl manages the agents (ckptd) of this machine, their checkpoint memory, and the checkpoints on storage.",
      "ckptctl");
  app.set_version_flag("--version", cli::versions_text(CKPT_VERSION));
  app.require_subcommand(0, 1);
  app.failure_message([](const CLI::App*, const CLI::Error& error) {
    return "ckptctl: " + std::string(error.what()) + " (--help lists commands and options)\n";
  });
  app.footer(
      "Options may also come from the environment: CKPTENGINE_JOB, CKPTENGINE_ARENA_DIR and so on.\n"
      "Exit status: 0, or 1 if something failed or is in a bad state. Then standard error says why.\n"
      "`ckptctl health` exits with 0 if the job is protected, 1 if degraded, 2 if not protected or unknown.\n"
      "`ckptctl status` exits with 2 if a job is not protected.");
  CommandLine line;
  CLI::App* status = add_command(app, line, "status", "Show what the agents are doing");
  const CLI::App* health = add_command(app, line, "health", "Show whether the job is protected, and if not, why");
  bool is_watched = false;
  status->add_flag("--watch", is_watched, "Repeat every second until interrupted; with --json print one line each");
  const CLI::App* stop = add_command(
      app, line, "stop", "End the agents; checkpoints stay in memory, and trainers continue without an agent");
  cli::HookRequest hook_request;
  const CLI::App* hook = add_hook_command(app, line, hook_request);
  std::string token_path;
  CLI::App* token = app.add_subcommand("token", "Write a new token for a job to a new file of mode 0600");
  token->add_option("FILE", token_path, "The file")->required();
  token->add_flag("--json", line.json, "Print JSON");
  cli::TraceOptions trace_options;
  const CLI::App* trace = add_trace_command(app, line, trace_options);
  CLI::App* gc = add_command(app, line, "gc", "Remove the memory and records of a job whose agents have ended");
  gc->add_flag("--all", line.gc.all, "All jobs that have no agent any more");
  gc->add_flag("--records", line.gc.records_only, "Only the coordination records: the job can go on from its memory");
  add_command(app, line, "doctor", "Look for problems: memory, stale arenas, limits, storage")
      ->add_option("--storage", line.storage, "Also check this storage: an absolute path, or nfs://server/export/path");
  const cli::StorageCommands storage(app, line.json);
  cli::PlacementOptions placement_options;
  CLI::App* list = app.add_subcommand("options", "List all options of trainers, agents and tools");
  list->add_flag("--json", line.json, "Print JSON");
  const CLI::App* placement = cli::add_placement_command(app, placement_options, line.json);
  cli::PlanOptions plan_options;
  CLI::App* plan = cli::add_plan_command(app, plan_options, line.json);
  add_scope_options(plan, line);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    const bool asks_for_health = argc > 1 && std::string_view(argv[1]) == "health";
    return app.exit(error) == 0 ? 0 : asks_for_health ? 2 : 1;
  }
  if (app.get_subcommands().empty()) {
    std::cerr << app.help();
    return 1;
  }
  try {
    if (list->parsed()) {
      std::cout << (line.json ? options_json() + "\n" : options_help());
      return 0;
    }
    if (placement->parsed()) return print(cli::show_placement(placement_options), line.json);
    if (plan->parsed()) {
      line.job = plan_options.job;
      const bool asks_agents = plan_options.is_given("job");
      return print(cli::show_plan(plan_options, asks_agents ? scope_of(line) : cli::Scope{}), line.json);
    }
    if (token->parsed()) return print(cli::make_token(token_path), line.json);
    if (storage.parsed()) return print(storage.run(), line.json);
    if (hook->parsed()) {
      const Options options = options_of(line);
      if (hook_request.hook.empty()) hook_request.hook = options.member_hook;
      hook_request.job = options.job;
      return print(cli::hook(hook_request), line.json);
    }
    const cli::Scope scope = scope_of(line);
    if (health->parsed()) return print(cli::health(scope), line.json);
    if (status->parsed() && is_watched) watch(scope, line.json);
    if (status->parsed()) return print(cli::status(scope), line.json);
    if (trace->parsed()) return print(cli::trace(scope, trace_options), line.json);
    if (stop->parsed()) return print(cli::stop(scope), line.json);
    if (gc->parsed()) return print(cli::gc(scope, line.gc), line.json);
    return print(cli::doctor(scope, cli::storage_scope(options_of(line))), line.json);
  } catch (const std::exception& failure) {
    if (line.json) std::cout << nlohmann::json{{"error", failure.what()}}.dump(2) << '\n';
    std::cerr << "ckptctl: " << failure.what() << '\n';
    return health->parsed() ? 2 : 1;
  }
}
