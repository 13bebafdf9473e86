// Keeps an eye on the coordination store and writes to it what the core asks for.
//
// Where the store tells of changes by itself, and has told anything lately (a living leader renews its record all the
// time), the store is read only seldom, in case that something was missed; else it is polled. Owns one thread, the only
// one that calls the store after start, since it may be slow or gone. An outage is logged once, and once when it is
// over; reading and writing may fail apart from each other. Results go to the callbacks, on that thread.
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
#include "protocol/events.hpp"

namespace ckpt::agent {

class StorePoller {
 public:
  struct Handlers {
    std::function<void(const protocol::LeaderRecordRead&)> leader;
    std::function<void(const protocol::IncarnationRecordRead&)> incarnation_record;
    std::function<void(const protocol::AssignmentsRead&)> assignments;
    std::function<void(const std::vector<coord::NodeEntry>&)> nodes;  // all, or those that changed
    std::function<void(const std::string&)> notice = {};              // a sentence for people
  };
  // What the store has to say of this agent's node. Where it is gone, the agent writes it again.
  struct Own {
    coord::NodeEntry node;
    std::string token;  // "": it is not in the store
  };
  struct Intervals {  // between two readings
    std::chrono::milliseconds records, nodes;
  };
  // `store` outlives this object. `lease_ms`: the leader renews its record four times in it.
  StorePoller(coord::Store& store, std::int64_t lease_ms, Handlers handlers, Log log, std::optional<Own> own = {});
  ~StorePoller();
  StorePoller(const StorePoller&) = delete;
  StorePoller& operator=(const StorePoller&) = delete;

  // [any thread] Compare-and-swap, answered by the record as it is then. Of several that wait for one record, the last
  // counts. What takes many calls, as that with rank assignments does, lets the leader renew its record after each of
  // them.
  void swap(const protocol::SwapLeaderRecord& swap);
  void swap(protocol::SwapIncarnationRecord swap);
  // [any thread]
  void read(const protocol::ReadAssignments& read);
  void remove(const protocol::RemoveAssignments& removal);

  // [any thread] What is wrong with the store, in a sentence; "" where nothing is.
  std::string trouble() const;

 private:
  using Clock = std::chrono::steady_clock;
  // Each with its own trouble. Swapping is writing, but of an incarnation with its rank assignments.
  enum Access { reading, writing, assignment_access, listing };
  struct Work {  // what there is to do at once
    std::optional<protocol::SwapLeaderRecord> leader;
    std::optional<protocol::SwapIncarnationRecord> incarnation_record;
    std::optional<protocol::ReadAssignments> assignments;
    std::optional<protocol::RemoveAssignments> removal;
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
  void write_incarnation_record(const std::shared_ptr<const protocol::SwapIncarnationRecord>& swap, std::size_t number);
  void read_assignments(const std::shared_ptr<protocol::AssignmentsRead>& read, std::size_t number);
  void remove_assignments(std::vector<std::string> keys);
  void put_assignments(const protocol::AssignmentsRead& assignments, std::size_t number);
  void attempt(Access access, const std::function<void()>& body);
  void note(Access access, const std::string& trouble);
  void end_trouble(Access access, const char* how);
  std::string exchange_trouble(Access access, const std::string& trouble);
  // Taken apart once: most reads find what was there before.
  template <class Record>
  struct CachedRecord {
    std::string text = "none";  // of no record
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
  std::string rival_;                      // that was told of
  const std::chrono::milliseconds trust_;  // how long a watch is trusted after it told something
  const double pace_;                      // all intervals are so many times as long for this agent
  const Intervals silent_;                 // of a watch that is not trusted
  CachedRecord<protocol::LeaderRecord> leader_record_;
  CachedRecord<protocol::IncarnationRecord> incarnation_record_;
  protocol::AssignmentsRead assignments_;  // that it wrote or read last, in case that the store loses them
  bool incarnation_seen_ = false;
  std::optional<Step> step_;                                      // the next one of what takes several
  std::optional<Clock::time_point> polled_at_, nodes_polled_at_;  // of the thread alone
  std::size_t nodes_listed_ = 0;                                  // likewise, the last time

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
