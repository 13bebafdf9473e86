// Which trainers make up the incarnation, and when the next incarnation begins.
#pragma once

#include <optional>
#include <set>

#include "core/events.hpp"
#include "core/leader/job_view.hpp"
#include "core/leader/record_writer.hpp"
#include "core/leader/storage.hpp"

namespace ckpt::core {

class AdmissionControl {
 public:
  // It alone changes `bindings`, which are the view's.
  AdmissionControl(const JobView& view, std::map<Rank, Binding>& bindings, std::string& alarm,
                   RecordWriter& record_writer, const JobStorage& storage)
      : view_(view), bindings_(bindings), alarm_(alarm), record_writer_(record_writer), storage_(storage) {}

  void on_new_incarnation();
  void reconcile(TimeMs now, Effects& effects);

  // Opens the next incarnation, with a number above all that are known.
  void open_next(std::uint32_t world_size, TimeMs now, Effects& effects);
  // The same, if nodes know of a later incarnation than the record does. True: they do.
  bool follow_outlived(TimeMs now, Effects& effects);
  // By the record, or, where that is lost, by the ranks; 0 where there are none: then the first of them opens an
  // incarnation.
  std::uint32_t newest_world_size() const;
  // The newest incarnation of which anything is known to have been captured. The store says so, unless its records were
  // lost or are older ones again: then an incarnation might get a number for the second time, or one below what is to
  // be restored.
  std::uint64_t newest_written() const;
  // Why this trainer takes no part in the incarnation; none if it does, or may yet.
  std::optional<Refusal> refusal_of(NodeId node, const RankReport& rank) const;

 private:
  bool contradicts_others(const RankReport& newcomer) const;
  void admit_newcomer(const Peer& peer, const RankReport& rank, TimeMs now, Effects& effects);
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
  std::optional<TimeMs> contradicted_since_;  // newcomers have named another world size than ranks that wait
  bool refuses_others_ = false;               // and have for long
  std::set<std::uint64_t> superseded_;        // instances whose rank another instance has claimed since
};

}  // namespace ckpt::core
