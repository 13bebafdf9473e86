// The root's dealings with persistent storage: what is there, and which committed version goes there next. One version
// at a time: when it is there, or failed, the newest commit is next, so that slow storage gets the newest there is.
//
// Nothing here survives a change of root. The next one asks storage what is there and starts over; what an earlier one
// had written of a version is written again, and a step that was never made whole counts for nothing.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "protocol/arrangement.hpp"
#include "protocol/events.hpp"
#include "protocol/recovery.hpp"

namespace ckpt::protocol {

class Storing {
 public:
  Storing(const Config& config, TimeMs now) : config_(config), stored_at_(now) {}

  void on(const StorageListed& listed, TimeMs now);
  void on(const StepEnded& ended, TimeMs now);
  // Of any node, present or not.
  void on(const Report& report);
  // A life's decision asks storage anew, and no version of the life before is written any more; a step that is being
  // made whole becomes so, and until that has ended nothing else is written: what does not become whole is removed
  // then.
  void on_new_life();

  // Asks storage what is there, until it has said all.
  void settle_listing(TimeMs now, Effects& effects);

  // What was heard in this life, if anything was, and whether that is all there is.
  bool has_heard() const { return heard_.has_value(); }
  bool knows_all() const { return heard_ && heard_->trouble.empty() && !is_finishing(); }
  bool knows_incarnations() const { return heard_ && heard_->knows_incarnations; }
  const StorageListed& heard() const { return *heard_; }
  // A step of the life before is being made whole.
  bool is_finishing() const { return writing_ && writing_->is_of_older_life; }

  // Steps that proved damaged when they were read, and one that could not be read for so long that it is passed over
  // in the next life.
  bool is_unusable(Version version) const { return unusable().contains(version); }
  std::set<Version> unusable() const;
  void pass_over(Version version) { passed_over_next_ = version; }
  bool has_read_trouble() const;
  bool has_read_trouble(NodeId node) const;
  // Of a step there that can be used, by shard.
  std::map<std::string, const PieceInfo*> pieces_of(Version version) const;
  std::uint64_t newest_incarnation() const { return newest_incarnation_; }

  // What of the life matters here.
  struct Life {
    Version committed;      // newest commit that is known
    Version began_from;     // what it restored
    bool is_short = false;  // the commit has fewer copies than asked for
    std::uint32_t world_size = 0;
    const Places& restored_places;  // of what it restored
    const Places& places;           // of all else
    const Inventory& inventory;     // of the nodes that are present
  };
  void settle_writes(const Life& life, TimeMs now, Effects& effects);

  WriteOrder order_for(NodeId node) const;
  Version stored() const { return stored_; }
  std::uint64_t skipped() const { return skipped_; }
  std::string trouble() const;

 private:
  struct Writing {
    Version version;
    std::uint64_t attempt = 0;
    std::uint32_t world_size = 0;
    std::map<std::string, NodeId> writers;                 // of every piece
    std::map<NodeId, std::vector<std::string>> by_writer;  // the same
    std::set<std::string> written;
    bool is_committing = false;
    bool is_of_older_life = false;
  };
  std::int64_t periods_passed(const Life& life) const;
  bool is_due(const Life& life, TimeMs now) const;
  void begin(const Life& life);
  bool assign(const Life& life);
  void fail(const std::string& trouble, TimeMs now);
  void take(const StorageListed& listed);

  const Config& config_;
  std::optional<StorageListed> heard_;
  std::uint64_t newest_incarnation_ = 0;
  bool listing_ = false;
  bool listing_is_stale_ = false;  // asked in the life before
  TimeMs list_again_at_ = 0;
  std::set<Version> damaged_;
  std::optional<Version> passed_over_;       // in this life
  std::optional<Version> passed_over_next_;  // in the next one

  std::optional<Writing> writing_;
  std::map<NodeId, Written> reported_;
  std::map<NodeId, std::string> read_troubles_;
  std::uint64_t attempts_ = 0;
  TimeMs write_again_at_ = 0;
  Version stored_;
  TimeMs stored_at_ = 0;
  std::uint64_t skipped_ = 0;
  std::string write_trouble_;
};

}  // namespace ckpt::protocol
