#include "cli/storage/storage_command.hpp"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <iostream>

#include "cli/read_options.hpp"

namespace ckpt::cli {
namespace {

bool is_option(const std::string& word) { return word.find('=') != std::string::npos; }

// Writes to standard error, which people see even if the result goes into a file.
Progress::Form progress_form() { return ::isatty(STDERR_FILENO) != 0 ? Progress::Form::bar : Progress::Form::lines; }

bool confirmed(const std::string& question) {
  std::cerr << question << " [y/N] " << std::flush;
  std::string answer;
  std::getline(std::cin, answer);
  return answer == "y" || answer == "Y" || answer == "yes";
}

}  // namespace

StorageScope storage_scope(const Options& options) {
  persist::FileSystemOptions files;
  files.timeout_ms = options.storage_timeout_ms;
  files.queue_depth = options.storage_depth;
  files.block_bytes = options.storage_block_bytes;
  return {options.storage, options.job, files};
}

CLI::App* StorageCommands::add(CLI::App& app, bool& json, const char* name, const char* help) {
  CLI::App* command = app.add_subcommand(name, help);
  command->add_flag("--json", json, "Print JSON");
  command->add_option("--storage", location_, "An absolute path, or nfs://server/export/path");
  command->add_option("--job", job_, "The job");
  return command;
}

void StorageCommands::add_export(CLI::App& app, bool& json) {
  export_ = add(app, json, "export", "Turn a checkpoint into a file for torch.load, or into a DCP directory");
  export_->add_option("CHECKPOINT", words_, "An iteration, or latest; options as KEY=VALUE");
  export_->add_option("--shard", exporting_.shard, "Only this shard");
  export_->add_option("--to", exporting_.file, "File for torch.load");
  export_->add_option("--dcp", exporting_.dcp, "Directory for torch.distributed.checkpoint");
  export_->add_option("--raw", exporting_.raw,
                      "Directory to copy the checkpoint to unchanged; it can be used as storage");
  export_->add_flag("--no-verify", no_verify_, "Do not check the digests");
  export_->add_option("--python", exporting_.python, "Python interpreter that has torch and the package ckptengine")
      ->envname("PYTHON")
      ->default_str("python3");
}

StorageCommands::StorageCommands(CLI::App& app, bool& json) {
  ls_ = add(app, json, "ls", "List the jobs on storage, or the checkpoints of one");
  ls_->add_option("OPTION", words_, "Options as KEY=VALUE");
  inspect_ = add(app, json, "inspect", "Show the shards of a checkpoint, or the tensors of one shard");
  inspect_->add_option("CHECKPOINT", words_, "An iteration, or latest; options as KEY=VALUE");
  inspect_->add_option("--shard", shard_, "Show the tensors of this shard");
  verify_ = add(app, json, "verify", "Read checkpoints to the last byte and check every digest");
  verify_->add_option("CHECKPOINT", words_, "Iterations or latest (default: all checkpoints); options as KEY=VALUE");
  add_export(app, json);
  rm_ = add(app, json, "rm", "Remove checkpoints");
  rm_->add_option("CHECKPOINT", words_, "Iterations; options as KEY=VALUE");
  rm_->add_flag("--yes,-y", yes_, "Do not ask");
  rm_->add_flag(
      "--force", force_,
      "Also remove the newest usable checkpoint, which a restore would take, and one that a job may be writing now");
}

bool StorageCommands::parsed() const {
  return ls_->parsed() || inspect_->parsed() || verify_->parsed() || export_->parsed() || rm_->parsed();
}

StorageScope StorageCommands::scope() const {
  std::vector<std::string> options;
  std::copy_if(words_.begin(), words_.end(), std::back_inserter(options), is_option);
  OptionPairs pairs = split_key_values(options);
  if (!location_.empty()) pairs.emplace_back("storage", location_);
  if (!job_.empty()) pairs.emplace_back("job", job_);
  return storage_scope(read_options(pairs));
}

std::vector<std::string> StorageCommands::stored_checkpoints() const {
  std::vector<std::string> stored_checkpoints;
  std::copy_if(words_.begin(), words_.end(), std::back_inserter(stored_checkpoints), std::not_fn(is_option));
  return stored_checkpoints;
}

std::string StorageCommands::one_checkpoint() const {
  const auto named = stored_checkpoints();
  if (named.size() != 1)
    throw Failure(CKPT_ERR_INVALID, "name one checkpoint, an iteration or latest; ckptctl ls lists them");
  return named.front();
}

Result StorageCommands::run() const {
  const StorageScope where = scope();
  Progress progress(progress_form(), stderr);
  if (ls_->parsed()) {
    if (!stored_checkpoints().empty())
      throw Failure(CKPT_ERR_INVALID, "ls lists all checkpoints of a job and takes no \"" +
                                          stored_checkpoints().front() +
                                          "\"; give --job, or name one checkpoint to ckptctl inspect");
    return ls(where);
  }
  if (inspect_->parsed()) return inspect(where, one_checkpoint(), shard_);
  if (verify_->parsed()) return verify(where, stored_checkpoints(), progress);
  if (rm_->parsed()) {
    RemoveOptions options{force_, nullptr};
    if (yes_)
      options.agree = [](const std::string&) { return true; };
    else if (::isatty(STDIN_FILENO) != 0 && ::isatty(STDERR_FILENO) != 0)
      options.agree = confirmed;
    return rm(where, stored_checkpoints(), options);
  }
  ExportOptions options = exporting_;
  options.checkpoint = one_checkpoint();
  options.verify = !no_verify_;
  if (options.python.empty()) options.python = "python3";
  return export_checkpoint(where, options, progress);
}

}  // namespace ckpt::cli
