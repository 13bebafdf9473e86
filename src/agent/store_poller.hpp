// StorePoller reads the coordination store for the agent, and writes what the protocol's core wants to store there. It
// calls callbacks with the results.
//
// All this runs on a thread of its own, because the store may be slow or gone. After the start, only that thread calls
// the store. If the store notifies of changes, the thread reads it only now and then, in case a notice was lost.
// Otherwise, or when notices stay away, it polls. (A living leader renews its record all the time, so notices must come
// often.) The poller logs when an outage begins and ends, separately for reading and writing.
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
  struct Handlers {
    std::function<void(const core::LeaderRecordRead&)> leader;
    std::function<void(const core::IncarnationRecordRead&)> incarnation_record;
    std::function<void(const core::AssignmentsRead&)> assignments;
    std::function<void(const std::vector<coord::NodeEntry>&)> nodes;  // all nodes, or those that changed
    std::function<void(const std::string&)> notice = {};              // a sentence for people
  };
  // The record of this agent's node. If the store loses the record, the poller writes it again.
  struct Own {
    coord::NodeEntry node;
    std::string token;  // "": the token is not in the store
  };
  struct Intervals {  // between two reads
    std::chrono::milliseconds records, nodes;
  };
  // `store` outlives this object. The leader renews its record four times in each `lease_ms`.
  StorePoller(coord::Store& store, std::int64_t lease_ms, Handlers handlers, Log log, std::optional<Own> own = {});
  ~StorePoller();
  StorePoller(const StorePoller&) = delete;
  StorePoller& operator=(const StorePoller&) = delete;

  // [any thread] Compare-and-swap. The answer is the record as it is afterwards. If several swaps wait for one record,
  // only the last one is made. Work that takes many calls, such as a swap with rank assignments, lets the leader renew
  // its record after each call.
  void carry_out(const core::SwapLeaderRecord& swap);
  void carry_out(core::SwapIncarnationRecord swap);
  // [any thread]
  void carry_out(const core::ReadAssignments& read);
  void carry_out(const core::RemoveAssignments& removal);

  // [any thread] A sentence about the trouble with the store; "" if there is none.
  std::string trouble() const;

 private:
  using Clock = std::chrono::steady_clock;
  // Each kind of access has its own trouble. A swap counts as writing. A swap of an incarnation with its rank
  // assignments counts as assignment_access.
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
  std::string rival_;                      // the rival that was reported
  const std::chrono::milliseconds trust_;  // how long a watch is trusted after its last notice
  const double pace_;                      // factor on all intervals of this agent
  const Intervals silent_;                 // while no watch is trusted
  CachedRecord<core::LeaderRecord> leader_record_;
  CachedRecord<core::IncarnationRecord> incarnation_record_;
  core::AssignmentsRead assignments_;  // written or read last, in case the store loses them
  bool incarnation_seen_ = false;
  std::optional<Step> step_;                                      // the next step of work that takes several
  std::optional<Clock::time_point> polled_at_, nodes_polled_at_;  // used by the thread alone
  std::size_t nodes_listed_ = 0;                                  // likewise: how many the last listing had

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
