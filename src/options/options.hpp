// Options has all options of engine, agent and tools. They are parsed once, at start, by one table of keys.
//
// An option can be set in three places: by the caller (code or command line), in the environment (CKPTENGINE_<KEY>),
// and in the JSON file that the option `config` names. The first of these places that has the key wins. An invalid
// value is an error in every place. An unknown key is an error, too, except in the environment. There it causes only a
// warning, because the variable may belong to another program.
//
// Options has only plain values. Threads may share it while nobody changes it. Any thread may call the functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/text.hpp"
#include "placement/pattern.hpp"
#include "placement/protection.hpp"

namespace ckpt {

enum class AgentMode { automatic, attach };
enum class SendMode { idle, immediate };
enum class ReplicationMode { host, device };
enum class OnSuspicion { report, halt };
enum class CaptureMode { every, jit, automatic };

// How shards survive the loss of nodes, as the option `protection` says it.
struct ProtectionChoice {
  placement::Protection stored;
  bool recomputes = false;  // copies are made by repeating updates, if possible (docs/mechanisms.md)
};

struct Options {
  std::string job;
  std::uint32_t rank;
  std::uint32_t world_size;
  std::string node;
  std::string shard;
  AgentMode agent;
  std::string ckptd;
  std::string arena_dir;
  std::uint64_t arena_bytes;
  std::string coordination;
  std::string etcd_user;
  std::string etcd_password_file;
  std::string etcd_ca_file;
  std::string etcd_cert_file;
  std::string etcd_key_file;
  std::uint32_t copies;
  std::optional<ProtectionChoice> protection;    // if set, `copies` is ignored
  std::optional<placement::Strategy> placement;  // not set: chosen from what the ranks hold
  std::string domain;
  bool standby;
  std::string member_hook;
  std::string storage;
  std::int64_t storage_every;
  std::int64_t storage_interval_s;
  std::uint32_t storage_keep_last;
  std::int64_t storage_keep_every;
  std::uint64_t storage_bytes_per_s;
  std::uint32_t storage_depth;
  std::uint64_t storage_block_bytes;
  std::int64_t storage_timeout_ms;
  std::uint64_t slot_bytes;
  std::uint32_t own_slots;
  std::uint32_t copy_threads;
  bool layered_capture;
  std::uint64_t gpu_staging_bytes;
  ReplicationMode replication;
  std::uint64_t gpu_replication_bytes;
  SendMode schedule;
  std::uint32_t profile_iterations;
  std::uint64_t chunk_bytes;
  std::int64_t chunk_ms;
  std::uint32_t sub_buffers;
  std::string transport;
  std::string interface;
  std::uint16_t port;
  std::string token_file;
  std::int64_t heartbeat_ms;
  std::int64_t node_timeout_ms;
  std::uint32_t relay_from;
  std::int64_t lease_ms;
  std::int64_t node_wait_ms;
  std::int64_t unprotected_after_ms;
  std::int64_t hang_floor_ms;
  std::uint32_t hang_factor;
  OnSuspicion on_suspicion;
  CaptureMode capture;
  std::uint32_t capture_every;
  std::int64_t restore_timeout_ms;
  std::int64_t claim_timeout_ms;
  std::int64_t close_timeout_ms;
  std::string log_file;
  std::string config;
  std::vector<std::string> warnings;  // not an option: warnings about environment variables, a sentence each

  std::string private_shard() const { return "rank" + std::to_string(rank) + ".private"; }
  placement::Protection chosen_protection() const {
    return protection ? protection->stored : placement::Protection::of_copies(copies);
  }
  bool recomputes() const { return protection && protection->recomputes; }
  // The name that people write: "copies(2)", "recompute(2)".
  std::string protection_name() const;
  std::string node_dir() const { return arena_dir + "/" + job + "/" + node; }
};

using OptionPairs = std::vector<std::pair<std::string, std::string>>;

// Exit status of ckptd if another agent already serves this node, or is starting to serve it.
inline constexpr int agent_exists_status = 2;

// Which kind of program reads the options. This decides which keys must be given. Every program accepts all keys, so
// that all programs can share one config file.
enum class Reader : unsigned { engine = 1, agent = 2, tool = 4 };

// Reads all options. `caller` has what code or the command line sets; messages call it "option". `environment` is a
// null-terminated list as in environ(7), or null for none. Throws Failure (CKPT_ERR_INVALID), whose sentence names the
// key and the place that sets it.
Options parse_options(Reader reader, const OptionPairs& caller, const char* const* environment);

// Splits words of the form "key=value" into pairs. Throws Failure (CKPT_ERR_INVALID).
OptionPairs split_key_values(const std::vector<std::string>& words);

// Returns "key=value" for every option that `reader` reads, except `config`. If parse_options() gets these, it returns
// the same options.
std::vector<std::string> to_key_values(const Options& options, Reader reader);

// Returns a Markdown table of the options that `reader` reads, or of all options (docs/options.md).
std::string options_help(Reader reader);
std::string options_help();

// All options as a JSON array of {"name", "type", "default", "required", "readers", "help"}. "required" tells whether
// Reader::engine needs the key.
std::string options_json();

}  // namespace ckpt
