#include "options/options.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.hpp"
#include "core/shard_parts.hpp"
#include "options/environment.hpp"

namespace ckpt {
namespace {

// Says what a value must be: the end of the sentence "option "x" has the value "y", but ...".
struct BadValue {
  std::string reason;
};

std::uint64_t parse_count(std::string_view text, std::uint64_t low, std::uint64_t high) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || error != std::errc() || end != text.data() + text.size() || value < low || value > high)
    throw BadValue{"must be a whole number from " + std::to_string(low) + " to " + std::to_string(high)};
  return value;
}

std::uint64_t parse_size_bytes(std::string_view text) {
  constexpr std::array<std::pair<std::string_view, int>, 4> units = {
      {{"KiB", 10}, {"MiB", 20}, {"GiB", 30}, {"TiB", 40}}};
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, std::chars_format::fixed);
  const std::string_view unit = text.substr(static_cast<std::size_t>(end - text.data()));
  int shift = unit.empty() ? 0 : -1;
  for (const auto& [name, bits] : units)
    if (unit == name) shift = bits;
  const double bytes = std::ldexp(value, shift);
  if (error != std::errc() || shift < 0 || !(value >= 0) || bytes > std::ldexp(1.0, 53) || bytes != std::floor(bytes))
    throw BadValue{"must be a number of bytes, plain or with KiB, MiB, GiB or TiB, as in 512MiB"};
  return static_cast<std::uint64_t>(bytes);
}

// Each of the types below reads and writes one kind of value.
template <std::uint64_t low, std::uint64_t high>
struct Count {
  static std::string type() { return "integer"; }
  template <class T>
  static void parse(T& to, std::string_view text) {
    to = static_cast<T>(parse_count(text, low, high));
  }
  template <class T>
  static std::string text(const T& from) {
    return std::to_string(from);
  }
};
using Milliseconds = Count<1, 24ull * 3600 * 1000>;
// Milliseconds. With less, reading and renewing the lease would overload the store. With more, an etcd watch would be
// without a message for so long that it takes the connection for broken.
using Lease = Count<200, 30'000>;

struct Bytes {
  static std::string type() { return "bytes"; }
  static void parse(std::uint64_t& to, std::string_view text) { to = parse_size_bytes(text); }
  static std::string text(std::uint64_t from) { return size_text(from); }
};

struct Text {
  static std::string type() { return "text"; }
  static void parse(std::string& to, std::string_view text) {
    if (text.size() > 4096) throw BadValue{"must have at most 4096 characters"};
    if (std::any_of(text.begin(), text.end(), [](char c) { return c >= 0 && c < ' '; }))
      throw BadValue{"must not have control characters, such as line breaks"};
    to = text;
  }
  static std::string text(const std::string& from) { return from; }
};

struct Name {
  static std::string type() { return "text"; }
  static void parse(std::string& to, std::string_view text) {
    if (!is_plain_name(text)) throw BadValue{"must be 1 to 64 characters of A-Z a-z 0-9 . _ -"};
    to = text;
  }
  static std::string text(const std::string& from) { return from; }
};

struct ShardName {
  static std::string type() { return "text"; }
  static void parse(std::string& to, std::string_view text) {
    // The parts of a shard are named after it (core/shard_parts.hpp), and names have at most 64 characters.
    if (!is_plain_name(text) || text.size() > 48) throw BadValue{"must be 1 to 48 characters of A-Z a-z 0-9 . _ -"};
    if (core::is_reserved(text))
      throw BadValue{"must not be 'parity' or begin with 'parity.', because parity has such names"};
    if (text.ends_with(core::private_suffix))
      throw BadValue{"must not end in '.private', because private shards have such names"};
    if (core::parse_part(text).of != 1)
      throw BadValue{"must not end like '.0of2', because parts of shards have such names"};
    to = text;
  }
  static std::string text(const std::string& from) { return from; }
};

struct AbsolutePath {
  static std::string type() { return "text"; }
  static void parse(std::string& to, std::string_view text) {
    Text::parse(to, text);
    if (!text.starts_with('/')) throw BadValue{"must be an absolute path, beginning with /"};
    while (to.size() > 1 && to.ends_with('/')) to.pop_back();
  }
  static std::string text(const std::string& from) { return from; }
};

// The path of an optional file.
struct OptionalPath {
  static std::string type() { return "text"; }
  static void parse(std::string& to, std::string_view text) {
    to.clear();
    if (!text.empty()) AbsolutePath::parse(to, text);
  }
  static std::string text(const std::string& from) { return from; }
};

// The coordination store: a directory or etcd.
struct Coordination {
  static std::string type() { return "text"; }
  static void parse(std::string& to, std::string_view text) {
    if (text.starts_with("etcd://") || text.starts_with("etcds://")) return Text::parse(to, text);
    if (!text.starts_with('/'))
      throw BadValue{"must be an absolute path, or etcd://host:port as docs/operations.md says"};
    AbsolutePath::parse(to, text);
  }
  static std::string text(const std::string& from) { return from; }
};

// The location of persistent storage; "" for none.
struct Location {
  static std::string type() { return "text"; }
  static void parse(std::string& to, std::string_view text) {
    if (text.empty() || text.starts_with("nfs://")) return Text::parse(to, text);
    if (!text.starts_with('/')) throw BadValue{"must be an absolute path or nfs://server/export/path"};
    AbsolutePath::parse(to, text);
  }
  static std::string text(const std::string& from) { return from; }
};

// The size of a transfer to or from storage, or between nodes. A multiple of 64 KiB, the unit in which pieces are
// digested and sent.
struct BlockBytes {
  static std::string type() { return "bytes"; }
  static void parse(std::uint64_t& to, std::string_view text) {
    const std::uint64_t bytes = parse_size_bytes(text);
    if (bytes == 0 || bytes % (64u << 10) != 0 || bytes > (64u << 20))
      throw BadValue{"must be a multiple of 64KiB up to 64MiB"};
    to = bytes;
  }
  static std::string text(std::uint64_t from) { return size_text(from); }
};

// GPU memory for replication from GPU to GPU. It has room for chunks from every rank of a replication group, in each of
// four sub-buffers.
struct PathBytes {
  static std::string type() { return "bytes"; }
  static void parse(std::uint64_t& to, std::string_view text) {
    const std::uint64_t bytes = parse_size_bytes(text);
    if (bytes < (8u << 20) || bytes > (std::uint64_t{64} << 30)) throw BadValue{"must be from 8MiB to 64GiB"};
    to = bytes;
  }
  static std::string text(std::uint64_t from) { return size_text(from); }
};

struct Placement {
  static std::string type() {
    std::string names = "auto";
    for (const auto strategy : placement::all_strategies) names += "|" + std::string(placement::name(strategy));
    return names;
  }
  static void parse(std::optional<placement::Strategy>& to, std::string_view text) {
    to.reset();
    if (text == "auto") return;
    std::string names = "auto";
    for (const auto strategy : placement::all_strategies) {
      if (text == placement::name(strategy)) to = strategy;
      names += ", " + std::string(placement::name(strategy));
    }
    if (!to) throw BadValue{"must be one of " + names};
  }
  static std::string text(std::optional<placement::Strategy> from) {
    return from ? std::string(placement::name(*from)) : "auto";
  }
};

struct Protection {
  static std::string type() { return "text"; }
  static void parse(std::optional<ProtectionChoice>& to, std::string_view text) {
    to.reset();
    if (text.empty()) return;
    const bool recomputes = text.starts_with(recompute);
    std::string named(text);
    if (recomputes) named.replace(0, recompute.size(), copies);
    try {
      to = ProtectionChoice{placement::protection_named(named), recomputes};
    } catch (const std::invalid_argument& what) {
      throw BadValue{what.what()};
    }
    if (recomputes && to->stored.copies < 2) throw BadValue{"must have at least 2 copies, as in recompute(2)"};
  }
  static std::string text(const std::optional<ProtectionChoice>& from) {
    if (!from) return "";
    std::string name = placement::name(from->stored);
    if (from->recomputes) name.replace(0, copies.size(), recompute);
    return name;
  }

 private:
  static constexpr std::string_view copies = "copies(", recompute = "recompute(";
};

// A failure domain: its levels, the outermost first, as in "row2/rack7"; "" if nothing is known.
struct Domain {
  static std::string type() { return "text"; }
  static void parse(std::string& to, std::string_view text) {
    for (std::string_view rest = text; !rest.empty();) {
      const auto slash = rest.find('/');
      if (!is_plain_name(rest.substr(0, slash)) || slash == rest.size() - 1)
        throw BadValue{"must be names of A-Z a-z 0-9 . _ - with / between them, as in row2/rack7"};
      rest = slash == std::string_view::npos ? std::string_view() : rest.substr(slash + 1);
    }
    if (text.size() > 256) throw BadValue{"must be at most 256 characters"};
    to = text;
  }
  static std::string text(const std::string& from) { return from; }
};

struct Mode {
  static std::string type() { return "auto|attach"; }
  static void parse(AgentMode& to, std::string_view text) {
    if (text != "auto" && text != "attach") throw BadValue{"must be auto or attach"};
    to = text == "auto" ? AgentMode::automatic : AgentMode::attach;
  }
  static std::string text(AgentMode from) { return from == AgentMode::automatic ? "auto" : "attach"; }
};

struct Sending {
  static std::string type() { return "idle|immediate"; }
  static void parse(SendMode& to, std::string_view text) {
    if (text != "idle" && text != "immediate") throw BadValue{"must be idle or immediate"};
    to = text == "idle" ? SendMode::idle : SendMode::immediate;
  }
  static std::string text(SendMode from) { return from == SendMode::idle ? "idle" : "immediate"; }
};

struct Replication {
  static std::string type() { return "host|gpu"; }
  static void parse(ReplicationMode& to, std::string_view text) {
    if (text != "host" && text != "gpu") throw BadValue{"must be host or gpu"};
    to = text == "host" ? ReplicationMode::host : ReplicationMode::device;
  }
  static std::string text(ReplicationMode from) { return from == ReplicationMode::host ? "host" : "gpu"; }
};

struct Reaction {
  static std::string type() { return "report|halt"; }
  static void parse(OnSuspicion& to, std::string_view text) {
    if (text != "report" && text != "halt") throw BadValue{"must be report or halt"};
    to = text == "report" ? OnSuspicion::report : OnSuspicion::halt;
  }
  static std::string text(OnSuspicion from) { return from == OnSuspicion::report ? "report" : "halt"; }
};

struct Capturing {
  static std::string type() { return "every|jit|auto"; }
  static void parse(CaptureMode& to, std::string_view text) {
    if (text != "every" && text != "jit" && text != "auto") throw BadValue{"must be every, jit or auto"};
    to = text == "every" ? CaptureMode::every : text == "jit" ? CaptureMode::jit : CaptureMode::automatic;
  }
  static std::string text(CaptureMode from) {
    return from == CaptureMode::every ? "every" : from == CaptureMode::jit ? "jit" : "auto";
  }
};

struct Flag {
  static std::string type() { return "flag"; }
  static void parse(bool& to, std::string_view text) {
    if (text != "true" && text != "false") throw BadValue{"must be true or false"};
    to = text == "true";
  }
  static std::string text(bool from) { return from ? "true" : "false"; }
};

struct Key {
  const char* name;
  const char* standard;  // the default as text; empty: it is computed or there is none, as `standard_help` says
  const char* standard_help;
  const char* help;
  unsigned readers;
  unsigned required_by;
  std::string (*type)();  // "integer", "bytes", "text", "flag", or all values with '|' between them
  void (*parse)(Options&, std::string_view);
  std::string (*text)(const Options&);
};

template <auto member, class Kind>
constexpr Key entry(const char* name, const char* standard, const char* standard_help, unsigned readers,
                    unsigned required_by, const char* help) {
  return {name,
          standard,
          standard_help,
          help,
          readers,
          required_by,
          Kind::type,
          [](Options& options, std::string_view text) { Kind::parse(options.*member, text); },
          [](const Options& options) { return Kind::text(options.*member); }};
}

constexpr unsigned engine = static_cast<unsigned>(Reader::engine);
constexpr unsigned agent = static_cast<unsigned>(Reader::agent);
constexpr unsigned tool = static_cast<unsigned>(Reader::tool);
constexpr unsigned all = engine | agent | tool;
constexpr std::uint64_t ranks_max = 1u << 20;
constexpr std::uint64_t iterations_max = 1ull << 40;

const std::array keys = {
    entry<&Options::job, Name>("job", "", "required", all, engine | agent,
                               "Name of the training run. A restarted job finds its checkpoints by this name."),
    entry<&Options::rank, Count<0, ranks_max - 1>>("rank", "0", "required", engine, engine,
                                                   "Number of this training process within the job, from 0."),
    entry<&Options::world_size, Count<1, ranks_max>>("world_size", "1", "required", engine, engine,
                                                     "Number of training processes in the job."),
    entry<&Options::node, Name>(
        "node", "", "the host name", all, 0,
        "Name of this machine within the job. Several agents on one machine need different names."),
    entry<&Options::shard, ShardName>("shard", "", "`rank<rank>`", engine, 0,
                                      "Name of this rank's main shard. Ranks with identical state give the same name."),
    entry<&Options::agent, Mode>("agent", "auto", "", engine, 0,
                                 "`auto`: start the node's agent if none runs. `attach`: the agent must already run."),
    entry<&Options::ckptd, Text>("ckptd", "", "beside the library, then `PATH`", engine, 0,
                                 "Path of the agent program."),
    entry<&Options::arena_dir, AbsolutePath>("arena_dir", "", "`/dev/shm/ckptengine-<uid>`", all, 0,
                                             "Directory in a tmpfs that holds the checkpoints in memory."),
    entry<&Options::arena_bytes, Bytes>(
        "arena_bytes", "0", "", agent, 0,
        "Upper limit for the memory of the node's arena. 0: as much as the file system has."),
    entry<&Options::coordination, Coordination>(
        "coordination", "", "`/tmp/ckptengine-<uid>`", agent | tool, 0,
        "The coordination store, through which agents find each other: a directory, or etcd as "
        "`etcd://host:port,host:port/prefix` (`etcds://` with TLS). The same on all nodes of the job."),
    entry<&Options::etcd_user, Text>("etcd_user", "", "none", agent | tool, 0,
                                     "User name for etcd, if etcd asks for one."),
    entry<&Options::etcd_password_file, OptionalPath>("etcd_password_file", "", "none", agent | tool, 0,
                                                      "File with that user's password. Its mode must be 0600 or 0400."),
    entry<&Options::etcd_ca_file, OptionalPath>(
        "etcd_ca_file", "", "the system's", agent | tool, 0,
        "File with the certificates (PEM) of the authorities that sign etcd's certificates."),
    entry<&Options::etcd_cert_file, OptionalPath>("etcd_cert_file", "", "none", agent | tool, 0,
                                                  "File with the client certificate (PEM) for etcd."),
    entry<&Options::etcd_key_file, OptionalPath>("etcd_key_file", "", "none", agent | tool, 0,
                                                 "File with the private key (PEM) of that certificate."),
    entry<&Options::copies, Count<1, 16>>(
        "copies", "2", "", agent | engine, 0,
        "How many nodes hold each shard, its own node included. Short for `protection=copies(m)`."),
    entry<&Options::protection, Protection>(
        "protection", "", "`copies(<copies>)`", agent | engine, 0,
        "How shards survive the loss of nodes: `copies(m)`; `xor(n)`, parity in groups of n nodes, which survives one "
        "lost node per group; `rs(n,p)`, which survives p; or copies and parity, as in `copies(2)+xor(8)`. "
        "`recompute(m)` is `copies(m)`, but nodes repeat updates where they can, instead of fetching their results "
        "([recompute](mechanisms.md#repeated-updates)). Overrides `copies`."),
    entry<&Options::placement, Placement>(
        "placement", "auto", "", agent | engine, 0,
        "Which nodes hold which pieces ([placement](protection.md#placement)). `auto`: the nodes of a group hold each "
        "other's copies; a shard that several ranks name is cut into parts. Or `group`, `ring`, `mixed`, `cover`, "
        "`sharded`, `sharded+copy`."),
    entry<&Options::domain, Domain>("domain", "", "none", agent | engine, 0,
                                    "Failure domain of this node, outermost level first, as in `row2/rack7`."),
    entry<&Options::standby, Flag>(
        "standby", "false", "", agent, 0,
        "`true`: this node is a standby node. It has no rank and holds nothing until it replaces a lost node."),
    entry<&Options::member_hook, Text>("member_hook", "", "none", agent | tool, 0,
                                       "Command or http(s) URL that the leader calls when a node is lost, replaced, "
                                       "back, or no longer used ([operations](operations.md#member-hook))."),
    entry<&Options::storage, Location>("storage", "", "none", engine | agent | tool, 0,
                                       "Where checkpoints go that must survive the loss of memory: a directory that "
                                       "all nodes see, or `nfs://server/export/path`."),
    entry<&Options::storage_every, Count<0, iterations_max>>(
        "storage_every", "0", "", engine | agent, 0,
        "A checkpoint goes to storage every so many iterations. 0: only `storage_interval_s` decides."),
    entry<&Options::storage_interval_s, Count<0, 30u * 24 * 3600>>(
        "storage_interval_s", "300", "", engine | agent, 0,
        "A checkpoint goes to storage every so many seconds. 0: only `storage_every` decides."),
    entry<&Options::storage_keep_last, Count<1, 1'000'000>>("storage_keep_last", "2", "", engine | agent, 0,
                                                            "How many of the newest checkpoints stay on storage."),
    entry<&Options::storage_keep_every, Count<0, iterations_max>>(
        "storage_keep_every", "0", "", engine | agent, 0,
        "Checkpoints whose iteration is a multiple of this number stay on storage for good. 0: none."),
    entry<&Options::storage_bytes_per_s, Bytes>("storage_bytes_per_s", "0", "", engine | agent, 0,
                                                "Most bytes per second that a node writes to storage. 0: no limit."),
    entry<&Options::storage_depth, Count<1, 256>>(
        "storage_depth", "16", "", engine | agent | tool, 0,
        "Number of transfers to or from storage that are in flight at the same time."),
    entry<&Options::storage_block_bytes, BlockBytes>("storage_block_bytes", "1MiB", "", engine | agent | tool, 0,
                                                     "Size of one transfer to or from storage."),
    entry<&Options::storage_timeout_ms, Milliseconds>("storage_timeout_ms", "30000", "", engine | agent | tool, 0,
                                                      "Time after which one storage operation counts as failed."),
    entry<&Options::slot_bytes, Bytes>(
        "slot_bytes", "0", "", engine,
        0,
        "Minimum size of a main shard's slot, for state that will grow. State that outgrows "
        "its slots gets larger ones, which takes memory for both for a moment. 0: the "
        "size of the registered state."),
    entry<&Options::own_slots, Count<2, 3>>(
        "own_slots", "2", "", engine | agent, 0,
        "Slots that a rank of this node starts with. Each holds one snapshot. With `storage`, the rank gets one more. "
        "2 suffice if each checkpoint is committed before the next `before_update()`. If a rank's captures often wait "
        "longer for replication, the agent adds a slot."),
    entry<&Options::copy_threads, Count<1, 64>>("copy_threads", "1", "", engine, 0,
                                                "Threads that copy and digest tensors in host memory."),
    entry<&Options::layered_capture, Flag>(
        "layered_capture", "false", "", engine, 0,
        "When a capture copies tensors ([layers](mechanisms.md#layers-of-a-capture)). `false`: at once, as fast as it "
        "can. `true`: first while training waits for other ranks, and what is left beside computation, at a limited "
        "rate. With tensors on a GPU, the host may then wait in `before_update()`."),
    entry<&Options::gpu_staging_bytes, Bytes>(
        "gpu_staging_bytes", "128MiB", "", engine, 0,
        "GPU memory through which tensors are copied. If it is as large as the main shard, the next update can start "
        "as soon as the state is copied within the GPU. The engine takes less if less is free."),
    entry<&Options::replication, Replication>(
        "replication", "host", "", engine, 0,
        "How main shards go to other nodes. `host`: from host memory to host memory. `gpu`: from GPU to GPU with NCCL, "
        "if the tensors are on GPUs and the nodes form groups ([gpu](gpu.md#groups)); parity is then made on the GPU. "
        "Otherwise as with `host`. The same on all ranks."),
    entry<&Options::gpu_replication_bytes, PathBytes>(
        "gpu_replication_bytes", "128MiB", "", engine, 0,
        "GPU memory for chunks that go from GPU to GPU, with `replication` = `gpu`. The engine takes less if the "
        "ranks' state needs less."),
    entry<&Options::schedule, Sending>(
        "schedule", "idle", "", agent | engine, 0,
        "When checkpoints cross the network. `idle`: while training leaves the network idle, as its communication "
        "hooks show. `immediate`: as soon as there is something to send."),
    entry<&Options::profile_iterations, Count<1, 10'000>>(
        "profile_iterations", "20", "", agent | engine, 0,
        "Number of iterations from which the agent learns when the network is idle. Until then it sends checkpoints "
        "whenever no communication runs. With `layered_capture`, the engine learns bubbles from as many."),
    entry<&Options::chunk_bytes, BlockBytes>("chunk_bytes", "2MiB", "", agent, 0,
                                             "Largest size of one transfer between nodes."),
    entry<&Options::chunk_ms, Count<1, 1000>>("chunk_ms", "10", "", agent, 0,
                                              "Longest time for which one transfer may occupy the network while "
                                              "training may use it, too. A transfer of 64KiB may take longer."),
    entry<&Options::sub_buffers, Count<1, 64>>("sub_buffers", "4", "", agent, 0,
                                               "How many transfers of one piece may wait for verification at the "
                                               "receiver. More are not sent until one is verified."),
    entry<&Options::transport, Text>(
        "transport", "tcp", "", agent, 0,
        "How agents talk to each other: `tcp`; `shm`, which is `tcp` but reads the memory of agents on the same "
        "machine directly; or UCX, by a list as for UCX_TLS, e.g. `rc,ud` or `all`. The same on all nodes."),
    entry<&Options::interface, Text>(
        "interface", "", "the one that others most likely reach", agent, 0,
        "Network interface on which the agent listens and whose address it publishes, e.g. `eth0`. With UCX: a list of "
        "devices as for UCX_NET_DEVICES. The agent then listens on the first that has an address."),
    entry<&Options::port, Count<0, 65528>>(
        "port", "0", "", agent, 0,
        "TCP port of the agent's listener. UCX also uses the seven ports after it. 0: any free ports."),
    entry<&Options::token_file, OptionalPath>("token_file", "", "the token is a record of `coordination`", agent, 0,
                                              "File with the job's token, the same on all nodes. Its mode must be 0600 "
                                              "or 0400. `ckptctl token FILE` makes one."),
    entry<&Options::heartbeat_ms, Milliseconds>("heartbeat_ms", "250", "", agent, 0,
                                                "Time between the heartbeats of an agent."),
    entry<&Options::node_timeout_ms, Milliseconds>(
        "node_timeout_ms", "2000", "", agent, 0,
        "A node counts as dead after this time without a sign from it. At least three times `heartbeat_ms`."),
    entry<&Options::relay_from, Count<2, ranks_max>>(
        "relay_from", "256", "", agent, 0,
        "In jobs with at least so many nodes, agents report to the leader in groups, each through a relay."),
    entry<&Options::lease_ms, Lease>("lease_ms", "2000", "", agent, 0,
                                     "How long the leader's term lasts without renewal. 200 to 30000."),
    entry<&Options::node_wait_ms, Milliseconds>("node_wait_ms", "5000", "", agent, 0,
                                                "How long a restore waits for missing nodes."),
    entry<&Options::unprotected_after_ms, Milliseconds>(
        "unprotected_after_ms", "5000", "", agent | engine, 0,
        "A job that commits nothing for this time, and for four times the time between captures of main shards, is "
        "*not protected* ([protection](protection.md))."),
    entry<&Options::hang_floor_ms, Milliseconds>(
        "hang_floor_ms", "2500", "", agent, 0,
        "Shortest time without progress after which a rank is suspected to hang ([jit](jit.md))."),
    entry<&Options::hang_factor, Count<2, 1000>>(
        "hang_factor", "3", "", agent, 0,
        "A rank is suspected to hang if a communication, the computing between two, or all computing of an iteration "
        "takes this many times as long as the longest in the last 32 iterations. A rank that computes this many times "
        "as long as the others is a straggler ([jit](jit.md))."),
    entry<&Options::on_suspicion, Reaction>(
        "on_suspicion", "report", "", agent | engine, 0,
        "What happens once a rank is suspected to hold the others up. `report`: it is named. `halt`: all ranks freeze, "
        "and the state that they have is captured ([jit](jit.md)). The same on all ranks and nodes."),
    entry<&Options::capture, Capturing>(
        "capture", "every", "", agent | engine, 0,
        "When main shards are captured. `every`: as `capture_every` says, by default in every iteration. `jit`: every "
        "30 iterations by default, because after a failure they are captured late, from ranks on other nodes that have "
        "the same shard. `auto`: `jit` if ranks on two nodes or more have each main shard of the job, and in every "
        "iteration otherwise ([jit](jit.md#capture-modes)). The same on all ranks and nodes."),
    entry<&Options::capture_every, Count<0, 1'000'000>>(
        "capture_every", "0", "1, or 30 with `capture=jit` or `auto`", agent | engine, 0,
        "Main shards are captured every so many (N) iterations only, private shards in every iteration. Without a "
        "successful halt, a failure costs up to N iterations ([jit](jit.md)). The same on all ranks and nodes."),
    entry<&Options::restore_timeout_ms, Milliseconds>("restore_timeout_ms", "60000", "", engine | agent, 0,
                                                      "Longest time for a whole restore."),
    entry<&Options::claim_timeout_ms, Milliseconds>(
        "claim_timeout_ms", "5000", "", engine | agent, 0,
        "How long a new trainer waits for an earlier process of its rank to end."),
    entry<&Options::close_timeout_ms, Milliseconds>(
        "close_timeout_ms", "2000", "", engine, 0,
        "How long closing the engine may wait until the last snapshot is committed."),
    entry<&Options::log_file, AbsolutePath>("log_file", "", "`ckptd.log` in the node's arena", engine | agent, 0,
                                            "The log of the agent."),
    entry<&Options::config, Text>("config", "", "none", all, 0,
                                  "JSON file with options: one object of keys and values."),
};

const Key* find_key(std::string_view name) {
  const auto found = std::find_if(keys.begin(), keys.end(), [&](const Key& k) { return name == k.name; });
  return found == keys.end() ? nullptr : &*found;
}

struct Setting {
  std::string value;
  std::string from;  // names the key and the place that sets it, for messages
};
using Settings = std::map<std::string, Setting>;

[[noreturn]] void refuse(const std::string& sentence) { throw Failure(CKPT_ERR_INVALID, sentence); }

// Checks the value. Keeps it unless the key is in `settings` already.
void offer(Settings& settings, const std::string& name, Setting&& setting, const std::string& where_keys_are) {
  const Key* key = find_key(name);
  if (key == nullptr) refuse(setting.from + " is not known; " + where_keys_are);
  try {
    Options scratch{};
    key->parse(scratch, setting.value);
  } catch (const BadValue& bad) {
    refuse(setting.from + " has the value \"" + setting.value + "\", but " + bad.reason);
  }
  settings.try_emplace(name, std::move(setting));
}

constexpr const char* see_help = "docs/options.md lists all options";

void offer_caller(Settings& settings, const OptionPairs& caller) {
  std::set<std::string> seen;
  for (const auto& [name, value] : caller) {
    if (!seen.insert(name).second) refuse("option \"" + name + "\" is given twice; give it once");
    offer(settings, name, {value, "option \"" + name + "\""}, see_help);
  }
}

bool is_key(std::string_view name) { return find_key(name) != nullptr; }

void offer_environment(Settings& settings, const Environment& environment) {
  for (const auto& [key, value] : environment.values)
    offer(settings, key, {value, "environment variable " + variable_of(key)}, see_help);
}

[[noreturn]] void refuse_missing(const char* key, const Environment& environment) {
  std::string sentence = std::string("option \"") + key +
                         "\" is missing; give it as an option, as environment variable " + variable_of(key) +
                         " or in the config file";
  if (environment.former.contains(key))
    sentence += "; " + former_variable_of(key) + " is set, but it is not read any more";
  refuse(sentence);
}

void offer_file(Settings& settings, const std::string& path) {
  std::ifstream file(path);
  if (!file) refuse("cannot read the file \"" + path + "\" that option \"config\" names; give a file that exists");
  std::string text;
  if (std::error_code error; !std::filesystem::is_directory(path, error))
    text.assign(std::istreambuf_iterator(file), {});
  const auto json = nlohmann::json::parse(text, nullptr, false);
  if (!json.is_object()) refuse("config file " + path + " is not a JSON object of options; correct it");
  for (const auto& [name, value] : json.items()) {
    const std::string from = "key \"" + name + "\" in config file " + path;
    if (name == "config") refuse(from + " is not allowed; a config file cannot name another");
    if (!value.is_string() && !value.is_number_integer() && !value.is_boolean())
      refuse(from + " must be a string, a whole number, true or false; correct it");
    offer(settings, name, {value.is_string() ? value.get<std::string>() : value.dump(), from}, see_help);
  }
}

std::string host_name() {
  std::array<char, 256> buffer{};
  if (gethostname(buffer.data(), buffer.size() - 1) != 0) return "localhost";
  std::string name(buffer.data());
  name.resize(std::min<std::size_t>(name.size(), 64));
  return is_plain_name(name) ? name : "localhost";
}

// Seldom enough that copies cost nothing, often enough that the loss of all replicas costs a minute or so.
constexpr std::uint32_t jit_capture_every = 30;

void fill_capture(Options& options) {
  if (options.on_suspicion == OnSuspicion::report) {
    if (options.capture == CaptureMode::jit)
      refuse(
          "capture is jit, but on_suspicion is report, so nothing would be captured after a failure; give "
          "on_suspicion=halt, or leave capture out");
    if (options.capture == CaptureMode::automatic) {
      options.capture = CaptureMode::every;
      options.capture_every = 1;
    }
  }
  if (options.capture_every == 0) options.capture_every = options.capture == CaptureMode::every ? 1 : jit_capture_every;
}

void fill_computed(Options& options, const Settings& settings) {
  const std::string user = "ckptengine-" + std::to_string(geteuid());
  if (options.node.empty()) options.node = host_name();
  if (options.shard.empty()) options.shard = "rank" + std::to_string(options.rank);
  if (options.arena_dir.empty()) options.arena_dir = "/dev/shm/" + user;
  if (options.coordination.empty()) options.coordination = "/tmp/" + user;
  if (options.log_file.empty() && !options.job.empty()) options.log_file = options.node_dir() + "/ckptd.log";
  if (options.rank >= options.world_size && settings.contains("rank") && settings.contains("world_size"))
    refuse(settings.at("rank").from + " is " + std::to_string(options.rank) + ", but the world size is " +
           std::to_string(options.world_size) +
           "; ranks are numbered from 0, and the highest is the world size less 1");
  fill_capture(options);
  // With less, a node would count as dead because of a single lost or late message.
  if (options.node_timeout_ms < 3 * options.heartbeat_ms)
    refuse("node_timeout_ms is " + std::to_string(options.node_timeout_ms) +
           ", but must be at least three times heartbeat_ms, which is " + std::to_string(options.heartbeat_ms) +
           "; raise node_timeout_ms or lower heartbeat_ms");
}

std::string table(unsigned readers) {
  std::string out = "| option | default | meaning |\n|---|---|---|\n";
  for (const Key& key : keys) {
    if ((key.readers & readers) == 0) continue;
    const std::string standard = *key.standard_help ? key.standard_help : std::string("`") + key.standard + "`";
    out += std::string("| `") + key.name + "` | " + standard + " | " + key.help + " |\n";
  }
  return out;
}

}  // namespace

std::string Options::protection_name() const {
  return Protection::text(protection ? protection : ProtectionChoice{chosen_protection(), false});
}

Options parse_options(Reader reader, const OptionPairs& caller, const char* const* environment) {
  Settings settings;
  const Environment variables = read_environment(environment, is_key);
  offer_caller(settings, caller);
  offer_environment(settings, variables);
  if (const auto config = settings.find("config"); config != settings.end() && !config->second.value.empty())
    offer_file(settings, config->second.value);

  Options options{};
  for (const Key& key : keys) {
    const auto setting = settings.find(key.name);
    if (setting != settings.end())
      key.parse(options, setting->second.value);
    else if ((key.required_by & static_cast<unsigned>(reader)) != 0)
      refuse_missing(key.name, variables);
    else if (*key.standard != '\0')
      key.parse(options, key.standard);
  }
  fill_computed(options, settings);
  options.warnings = warnings_of(variables, see_help);
  return options;
}

OptionPairs split_key_values(const std::vector<std::string>& words) {
  OptionPairs pairs;
  for (const std::string& word : words) {
    const auto equals = word.find('=');
    if (equals == std::string::npos || equals == 0)
      refuse("\"" + word + "\" is not an option; write key=value, " + see_help);
    pairs.emplace_back(word.substr(0, equals), word.substr(equals + 1));
  }
  return pairs;
}

std::vector<std::string> to_key_values(const Options& options, Reader reader) {
  std::vector<std::string> words;
  for (const Key& key : keys) {
    // `options` already has the values of the config file, so there is no need to read that file again.
    if ((key.readers & static_cast<unsigned>(reader)) == 0 || std::string_view(key.name) == "config") continue;
    words.push_back(std::string(key.name) + "=" + key.text(options));
  }
  return words;
}

std::string options_json() {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const Key& key : keys) {
    nlohmann::ordered_json readers = nlohmann::ordered_json::array();
    for (const auto& [bit, name] : {std::pair(engine, "engine"), {agent, "agent"}, {tool, "tool"}})
      if ((key.readers & bit) != 0) readers.push_back(name);
    list.push_back({{"name", key.name},
                    {"type", key.type()},
                    {"default", *key.standard_help ? key.standard_help : key.standard},
                    {"required", (key.required_by & engine) != 0},
                    {"readers", std::move(readers)},
                    {"help", key.help}});
  }
  return list.dump(2);
}

std::string options_help(Reader reader) { return table(static_cast<unsigned>(reader)); }
std::string options_help() { return table(all); }

}  // namespace ckpt
