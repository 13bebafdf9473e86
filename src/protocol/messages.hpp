// What agents tell each other and what the coordination store holds.
//
// There are two things to say, and both are whole states rather than changes: a Report is all a node has, a Directive
// is all the root wants of a node. Each is sent at every change and repeated as heartbeat, so loss, repetition and
// reordering need no further mechanism: the newest one counts. A new root rebuilds itself from Reports alone. Relays
// carry several of either at once (relay.hpp).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "protocol/health.hpp"
#include "protocol/types.hpp"

namespace ckpt::protocol {

// One trainer on the reporting node.
struct RankReport {
  Rank rank = 0;
  std::uint64_t instance = 0;     // random, one per engine: tells a restarted trainer from the one before
  std::uint64_t incarnation = 0;  // of which it is a member, 0: not admitted yet
  std::uint32_t world_size = 0;
  std::string main_shard;
  std::string private_shard;
  bool waiting = false;         // has asked for restore() and not been served
  std::int64_t attempted = -1;  // last iteration offered to snapshot(), taken or not
  std::int64_t capturing = -1;  // iteration being captured, -1: none
  std::int64_t resume_at = 0;   // it takes no earlier one, whoever is root now
  bool wants_path = false;      // its main shard is to go from GPU to GPU
  bool is_stopped = false;      // its process is (SIGSTOP, a debugger)
  std::uint8_t failed = 0;      // ckpt_status of its newest snapshot where that failed; skips are no failures
  bool operator==(const RankReport&) const = default;
};

// What a node has made of its newest WriteOrder.
struct Written {
  Version version;
  std::uint64_t attempt = 0;
  std::vector<std::string> shards;
  std::string trouble;  // "": they are on the medium
  bool operator==(const Written&) const = default;
};

// Why a node does not have what it was ordered to fetch.
enum class FetchTrouble : std::uint8_t { none = 0, no_space = 1, failed = 2, corrupt = 3 };

// Node -> root.
struct Report {
  NodeId node = 0;
  std::uint64_t arena_id = 0;
  std::uint64_t agent_id = 0;   // this life of the agent, larger than that of earlier ones; `sequence` restarts
  std::uint64_t sequence = 0;   // of one agent life; an older report than the newest seen is ignored
  std::uint64_t epoch = 0;      // that the node obeys: the root counts reports of its own epoch only
  std::uint64_t directive = 0;  // newest one of that epoch that the node has
  std::string domain;           // see Config
  bool standby = false;         // likewise
  Version highest_commit;       // newest commit the node ever heard of, also from the life's record
  Version newest_seen;          // newest version that was ever whole on the node
  Version newest_damaged;       // newest version of which the node ever lost a piece to damage
  std::uint64_t told_life = 0;  // newest decided life that the agent knows of: by store, leader or trainers
  std::vector<RankReport> ranks;
  std::vector<PieceInfo> pieces;  // all whole pieces, each (shard, version) once
  bool storage = false;           // as Config::storage
  Written written;
  std::vector<Version> damaged;      // steps on storage that proved so when they were read
  std::string read_trouble;          // why something could not be read from storage, until something could
  std::uint64_t roll_call = 0;       // newest one heard of the root of `epoch`: all of the above is from after it
  placement::Protection protection;  // as Config::protection
  FetchTrouble fetch_trouble = FetchTrouble::none;  // of what it was ordered to fetch and has not
  NodeId fetch_source = no_node;                    // from whom
  bool coordination_fails = false;                  // it cannot read or write the store
  bool operator==(const Report&) const = default;
};

enum class Verdict : std::uint8_t {
  undecided = 0,
  fresh = 1,     // nothing is stored: start anew
  restore = 2,   // `version`
  lost = 3,      // state was committed and cannot be rebuilt from what is left
  mismatch = 4,  // what is stored is of another world size
};

// A main shard that is stored in `of` parts.
struct Cut {
  std::string shard;
  std::uint32_t of = 1;
  bool operator==(const Cut&) const = default;
};

// The one decision of an incarnation, written once.
struct Decision {
  Verdict verdict = Verdict::undecided;
  Version version;              // with Verdict::restore
  bool behind = false;          // a newer commit is known of and lost
  bool status_unknown = false;  // nodes that did not answer may know of a newer commit
  std::vector<Cut> cuts;        // main shards that `version` has in parts; all others it has whole
  std::string text;             // for people: why, with shards, versions and nodes
  bool operator==(const Decision&) const = default;
};

struct Refusal {
  Rank rank = 0;
  std::uint64_t instance = 0;
  bool superseded = false;  // else: refused for the reason in `text`
  std::uint64_t incarnation = 0;
  std::string text;
  bool operator==(const Refusal&) const = default;
};

// A rank whose piece goes from GPU to GPU to all others of its group, and theirs to it.
struct PathMember {
  NodeId node = 0;
  Rank rank = 0;
  std::string shard;
  bool operator==(const PathMember&) const = default;
};
inline constexpr std::size_t path_members_max = 32;
struct PathGroup {
  std::vector<PathMember> members;  // by rank; none: from host to host
  std::uint32_t member = 0;         // which of them the rank is
  std::string refusal;              // why there are none
  bool operator==(const PathGroup&) const = default;
};

struct Admission {
  Rank rank = 0;
  std::uint64_t instance = 0;
  std::optional<Share> share = {};     // once the root knows where all ranks are
  std::optional<PathGroup> path = {};  // likewise, where it was asked for
  bool operator==(const Admission&) const = default;
};

// What a piece can be made of: pieces of a parity group, and where they are. Each may be named with several nodes.
struct Making {
  Recipe recipe;  // of the group, whichever member it names
  struct Source {
    std::string shard;
    NodeId node = 0;
    std::uint64_t root_digest = 0;
    bool operator==(const Source&) const = default;
  };
  std::vector<Source> sources;
  bool operator==(const Making&) const = default;
};

struct FetchOrder {
  PieceInfo piece;               // root_digest 0: parity that was never made yet
  std::vector<NodeId> sources;   // that have it, best first; or storage_node; or parity_node
  std::optional<Making> making;  // with parity_node
  bool operator==(const FetchOrder&) const = default;
};

// Pieces of a committed version that the node shall write to storage, and keep until it has.
struct WriteOrder {
  Version version;
  std::uint64_t attempt = 0;  // grows from one order to the next of a root
  std::vector<std::string> shards;
  bool operator==(const WriteOrder&) const = default;
};

struct Member {
  NodeId node = 0;
  std::uint64_t arena_id = 0;
  bool operator==(const Member&) const = default;
};

// A standby node that holds what a lost member of the life held, until that comes back or the job's next life begins.
struct StandIn {
  NodeId lost = 0;
  Member by;
  bool operator==(const StandIn&) const = default;
};

// Root -> node.
struct Directive {
  NodeId root = 0;
  std::uint64_t epoch = 0;
  std::uint64_t sequence = 0;     // of one epoch; an older directive than the newest obeyed is ignored
  std::uint64_t heard_agent = 0;  // the node's report that the root had heard: agent_id and sequence
  std::uint64_t heard_report = 0;
  NodeId relay = no_node;  // through whom the node is to report, itself for its group; no_node: to the root
  std::uint64_t incarnation = 0;
  Decision decision;               // of this incarnation
  Version committed;               // newest version with all its copies: each commit, and first of all the restored one
  std::vector<Version> abandoned;  // of this incarnation, newer than `committed`, that will never be complete
  std::int64_t resume_at = 0;      // snapshots of earlier iterations are pointless: some rank has skipped them
  std::vector<Admission> admitted;    // the node's trainers that are members of this incarnation
  std::vector<Refusal> refused;       // the node's trainers that are not, and why
  std::vector<FetchOrder> fetches;    // pieces the node should have and has not, oldest version first
  std::vector<std::string> wanted;    // shards the node should hold, in this incarnation's placement
  std::vector<Rank> missing_ranks;    // while undecided: have not called restore() yet
  std::vector<NodeId> missing_nodes;  // while undecided: members of the last life that do not answer
  std::vector<StandIn> stand_ins;     // of this incarnation
  std::uint32_t copies_now = 0;       // fewest copies of any shard at the newest commit that reports tell of
  std::uint32_t parity_now = 0;       // likewise: how many members each parity group can still lose; 0 without parity
  std::string stranded;               // why the decided version cannot be brought home any more, "" while it can
  std::string alarm;                  // silent corruption or the like, "" if none
  std::uint64_t roll_call = 0;        // of this epoch; a report answers it
  bool reading_storage = false;       // what is to be restored is not in memory yet: nobody goes on before it is
  WriteOrder write;                   // no shards: nothing is to be written
  Version stored;                     // newest step on storage, as far as the root knows
  std::uint64_t stored_skipped = 0;   // versions that were due there and passed over, because it was busy
  std::string storage_trouble;        // "" if none
  Health health;                      // the leader's verdict, for the whole job
  bool operator==(const Directive&) const = default;
};

// Relay -> root: as they came.
struct Gathered {
  std::vector<Report> reports;
  bool operator==(const Gathered&) const = default;
};

// Root -> relay -> node. Without items: reports that were to be passed on have come.
struct Dealt {
  struct Item {
    NodeId to = 0;
    Directive directive;
    bool operator==(const Item&) const = default;
  };
  std::vector<Item> items;
  bool operator==(const Dealt&) const = default;
};

using Message = std::variant<Report, Directive, Gathered, Dealt>;

// Store key "root": who is root. Renewed (beat) every lease_ms / 4, while any other node obeys.
struct RootRecord {
  std::uint64_t epoch = 0;
  NodeId node = no_node;
  std::uint64_t beat = 0;
  bool operator==(const RootRecord&) const = default;
};

// A rank of a life, and where it sits.
struct Seat {
  Rank rank = 0;
  NodeId node = 0;
  std::uint64_t arena_id = 0;  // of the node
  std::string domain;          // likewise
  std::string main_shard;
  std::string private_shard;
  std::uint32_t restored_parts = 1;  // in how many the version that is restored has its main shard
  bool wants_path = false;           // as reported
  bool operator==(const Seat&) const = default;
};

// What the seats of a life are called in the store, where they are in records of their own: all that is in proportion
// to the nodes. It follows from what they say (seating.hpp).
struct SeatsName {
  std::uint64_t life = 0;   // 0: there are none
  std::uint32_t count = 0;  // of ranks
  std::uint64_t digest = 0;
  auto operator<=>(const SeatsName&) const = default;
};

// Store keys "seats/LIFE.DIGEST.NUMBER": some of them at a time, by rank. Never changed, and removed when a later life
// has begun.
struct SeatsRecord {
  std::vector<Seat> seats;
  bool operator==(const SeatsRecord&) const = default;
};
inline constexpr std::size_t seats_per_record = 1024;  // with the longest names they have less than a record may

// Store key "life": the current life of the job. A root of epoch e first writes its epoch here, so that a
// compare-and-swap by an older root fails: fencing needs nothing else.
struct LifeRecord {
  std::uint64_t epoch = 0;
  std::uint64_t incarnation = 0;
  std::uint32_t world_size = 0;
  Decision decision;               // without cuts: the seats tell them
  std::vector<StandIn> stand_ins;  // for members of the newest life that began: the nodes that may hold state
  // Who captures and holds what in that life follows from these alone: every root of the life finds the same.
  SeatsName seats;
  std::optional<placement::Strategy> strategy;
  placement::Protection protection;
  Version restored;      // what it went on from, commit or not
  Version base;          // newest commit that it went on from: the version it restored, once that has all its copies
  Version first_commit;  // newest of each life's first commits: state existed, even when every node is gone
  bool operator==(const LifeRecord&) const = default;
};

}  // namespace ckpt::protocol
