// StorePoller reads the coordination store for the agent, and writes what the protocol's core wants to store there. It
// calls handlers with the results.
//
// All this runs on a thread of its own, because the store may be slow or gone. After the start, only that thread calls
// the store. Some stores notify the poller of changes (a watch). Then the thread reads only about every 2 s, in case a
// notification was lost. A living leader renews its record all the time, so notifications must come often. If none
// comes for half of `lease_ms`, or the store has no watch, the thread reads more often. It logs when an outage begins
// and when it ends, separately for reading and writing.
#pragma once

#include <array>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "agent/log.hpp"
#include "coord/node_registry.hpp"
#include "coord/store.hpp"
#include "core/events.hpp"

namespace ckpt::agent {

class StorePoller {
 public:
  // Called on the poller's thread.
  struct Handlers {
    std::function<void(const core::LeaderRecordRead&)> leader;
    std::function<void(const core::IncarnationRecordRead&)> incarnation_record;
    std::function<void(const core::AssignmentsRead&)> assignments;
    std::function<void(const std::vector<coord::NodeEntry>&)> nodes;  // all nodes, or those that changed
    std::function<void(const std::string&)> notice = {};              // a sentence for people
  };
  // The records of this agent's node. If the store loses them, the poller writes them again.
  struct Own {
    coord::NodeEntry node;
    std::string token;  // "": the job's token is in a file, not in the store
  };
  struct Intervals {  // between two polls: of the leader's and the incarnation's record, and of all nodes
    std::chrono::milliseconds records, nodes;
  };
  // `store` outlives this object. A leader renews its record four times in each `lease_ms` (the option). So the poller
  // trusts a watch for half of this time after each notification.
  StorePoller(coord::Store& store, std::int64_t lease_ms, Handlers handlers, Log log, std::optional<Own> own = {});
  ~StorePoller();  // waits until the call of the store that is under way has ended
  StorePoller(const StorePoller&) = delete;
  StorePoller& operator=(const StorePoller&) = delete;

  // [any thread] Compare-and-swap of a record. The record's handler then gets the record as it is afterwards. If the
  // store fails, no handler is called. If several swaps wait for one record, only the last one is made. A swap with
  // rank assignments takes many calls of the store. The leader can renew its record between them.
  void carry_out(const core::SwapLeaderRecord& swap);
  void carry_out(core::SwapIncarnationRecord swap);
  // [any thread] Read rank assignments, and remove those of earlier incarnations.
  void carry_out(const core::ReadAssignments& read);
  void carry_out(const core::RemoveAssignments& removal);

  // [any thread] A sentence about the present trouble with the store; "" if there is none.
  std::string trouble() const;

 private:
  using Clock = std::chrono::steady_clock;
  // The kinds of access to the store. The poller remembers the present trouble of each. `listing` reads the entries of
  // all nodes. `assignment_access` reads rank assignments, or swaps the incarnation's record, which writes rank
  // assignments first. Every other swap is `writing`.
  enum Access { reading, writing, assignment_access, listing };
  struct Work {  // what is to be done next
    std::optional<core::SwapLeaderRecord> leader;
    std::optional<core::SwapIncarnationRecord> incarnation_record;
    std::optional<core::ReadAssignments> assignments;
    std::optional<core::RemoveAssignments> removal;
    std::map<std::string, coord::Entry> watched;
    bool is_any() const { return leader || incarnation_record || assignments || removal || !watched.empty(); }
  };
  struct Step {
    Access access;
    std::function<void()> take;
  };

  template <class Field, class Request>
  void ask(Field Work::*field, Request request);
  void run();
  Work next_work();
  void begin(const Work& work);
  void take_step();
  void write_incarnation_record(const std::shared_ptr<const core::SwapIncarnationRecord>& swap, std::size_t number);
  void read_assignments(const std::shared_ptr<core::AssignmentsRead>& read, std::size_t number);
  void remove_assignments(std::vector<std::string> keys);
  void put_assignments(const core::AssignmentsRead& assignments, std::size_t number);
  void attempt(Access access, const std::function<void()>& body);
  void note(Access access, const std::string& trouble);
  void end_trouble(Access access, const char* how);
  std::string exchange_trouble(Access access, const std::string& trouble);
  // The text of a record as last read, with its parsed form. Most reads find the same text, which need not be parsed
  // again.
  template <class Record>
  struct CachedRecord {
    std::string text = "none";  // of a missing record
    Record record;
    std::uint64_t revision = 0;
  };

  void on_change(const coord::Entry& entry);  // [the store's thread]
  bool is_notified() const;
  const Intervals& intervals() const;
  Clock::time_point next_poll() const;
  void take(const std::map<std::string, coord::Entry>& watched);
  void poll();
  bool nodes_are_due();
  void keep_own(const std::vector<coord::NodeEntry>& nodes);
  void keep_number(const std::vector<coord::NodeEntry>& nodes);
  bool put_own_back();
  void heed_rival(const std::optional<coord::Entry>& entry);
  void read_leader_record();
  void read_incarnation_record();
  void take_leader_record(const std::optional<coord::Entry>& entry);
  void take_incarnation_record(const std::optional<coord::Entry>& entry);

  coord::Store& store_;
  const Handlers handlers_;
  const Log log_;
  const std::optional<Own> own_;
  std::string rival_;                      // the machine whose agent last tried to serve this node, too; "": none did
  const std::chrono::milliseconds trust_;  // how long a watch is trusted after its last notification
  const double pace_;                      // factor on this agent's intervals, so that agents do not read all at once
  const Intervals silent_;                 // intervals while the watch is not trusted
  CachedRecord<core::LeaderRecord> leader_record_;
  CachedRecord<core::IncarnationRecord> incarnation_record_;
  core::AssignmentsRead assignments_;  // those written or read last, in case the store loses them
  bool incarnation_seen_ = false;
  std::optional<Step> step_;                                      // the next step of work that takes several steps
  std::optional<Clock::time_point> polled_at_, nodes_polled_at_;  // only the poller's thread uses these
  std::size_t nodes_listed_ = 0;                                  // how many nodes the last poll found

  mutable std::mutex mutex_;  // for all below
  std::condition_variable wake_;
  Work work_;
  std::optional<Clock::time_point> received_at_;
  std::array<std::string, 4> troubles_;  // by Access
  bool stop_ = false;
  const std::unique_ptr<coord::Watch> watch_;
  std::thread thread_;
};

}  // namespace ckpt::agent
