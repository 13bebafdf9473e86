// AdmissionControl is the part of the leader that lets trainers into the incarnation. It also decides when the next
// incarnation begins.
#pragma once

#include <optional>
#include <set>

#include "core/events.hpp"
#include "core/leader/halts.hpp"
#include "core/leader/job_view.hpp"
#include "core/leader/record_writer.hpp"
#include "core/leader/storage.hpp"

namespace ckpt::core {

class AdmissionControl {
 public:
  // Only AdmissionControl changes `bindings`, a field of the view.
  AdmissionControl(const JobView& view, std::map<Rank, Binding>& bindings, std::string& alarm,
                   RecordWriter& record_writer, const JobStorage& storage)
      : view_(view), bindings_(bindings), alarm_(alarm), record_writer_(record_writer), storage_(storage) {}

  void on_new_incarnation();
  // Admits new trainers, and begins the next incarnation if they need one. `halts` can delay that until the ranks of
  // the present incarnation are captured. `has_listened`: see Losses.
  void reconcile(const Halts& halts, bool has_listened, TimeMs now, Effects& effects);
  // True while a new trainer waits for the present incarnation to end.
  bool is_held_back() const { return is_held_back_; }

  // Opens the next incarnation, with a number above all known ones.
  void open_next(std::uint32_t world_size, TimeMs now, Effects& effects);
  // If a node knows of a later incarnation than the record names, opens the next one and returns true.
  bool follow_outlived(TimeMs now, Effects& effects);
  // The world size from the record or, if that is lost, from the ranks. 0 if there are no ranks: then the first rank to
  // come opens an incarnation.
  std::uint32_t newest_world_size() const;
  // The newest incarnation that may have captured anything. Asks all sources, not the store alone: if the store lost
  // its records, the next incarnation could get a number that was used before.
  std::uint64_t newest_written() const;
  // Returns why this trainer takes no part in the incarnation. Nothing if it takes part or may still do so.
  std::optional<Refusal> refusal_of(NodeId node, const RankReport& rank) const;

 private:
  bool contradicts_others(const RankReport& newcomer) const;
  void admit_newcomer(const Peer& peer, const RankReport& rank, bool may_end, TimeMs now, Effects& effects);
  void refresh_bindings();
  void open_incarnation(const RankReport& newcomer, TimeMs now, Effects& effects);
  std::uint64_t newest_served() const;
  std::uint64_t newest_notified() const;
  bool is_outlived() const;
  bool serves_older_incarnation(const RankReport& rank) const;
  bool is_misplaced(const Peer& peer, const RankReport& rank) const;

  const JobView& view_;
  std::map<Rank, Binding>& bindings_;
  std::string& alarm_;
  RecordWriter& record_writer_;
  const JobStorage& storage_;
  std::optional<TimeMs> contradicted_since_;  // when new trainers first had another world size than the ranks that wait
  bool refuses_others_ = false;               // new trainers have had another world size for long
  bool is_held_back_ = false;
  std::set<std::uint64_t> superseded_;  // instances whose rank another instance has claimed later
};

}  // namespace ckpt::core
