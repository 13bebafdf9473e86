// Parses the command lines of `ckptctl ls`, `inspect`, `verify`, `export` and `rm`.
#pragma once

#include <string>
#include <vector>

#include "cli/storage/storage_commands.hpp"
#include "options/options.hpp"

namespace CLI {  // NOLINT(readability-identifier-naming): the library's
class App;
}

namespace ckpt::cli {

StorageScope storage_scope(const Options& options);

class StorageCommands {
 public:
  // Declares the subcommands. Parsing stores their arguments in this object and in `json`. So both must exist, and must
  // not move, while `app` parses.
  StorageCommands(CLI::App& app, bool& json);

  // Whether the command line has one of these subcommands.
  bool parsed() const;
  // Runs that subcommand. Throws Failure with one sentence.
  Result run() const;

 private:
  CLI::App* add(CLI::App& app, bool& json, const char* name, const char* help);
  void add_export(CLI::App& app, bool& json);
  StorageScope scope() const;
  std::vector<std::string> stored_checkpoints() const;
  std::string one_checkpoint() const;

  CLI::App *ls_, *inspect_, *verify_, *export_ = nullptr, *rm_;
  std::string location_, job_;
  std::vector<std::string> words_;  // checkpoints, and options as key=value
  std::string shard_;
  bool yes_ = false, force_ = false, no_verify_ = false;
  ExportOptions exporting_;
};

}  // namespace ckpt::cli
