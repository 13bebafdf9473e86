#include "sim/scale.hpp"

#include <malloc.h>

#include <algorithm>
#include <ctime>
#include <map>
#include <memory>
#include <sstream>
#include <utility>
#include <variant>

#include "coord/store.hpp"
#include "core/leader/rank_assignments.hpp"
#include "core/node.hpp"
#include "sim/message_contents.hpp"
#include "sim/message_size.hpp"
#include "sim/record_size.hpp"
#include "sim/run_trace.hpp"

namespace ckpt::sim {

using namespace core;

namespace {

constexpr TimeMs hop_ms = 1;
constexpr std::uint32_t copies = 2;
constexpr TimeMs waited_ms_max = 120'000;  // virtual: how long the run waits for a condition
constexpr int ticks_per_poll = 8;          // how many ticks from one read of the leader's record to the next
constexpr NodeId leader_node = 0;

double cpu_ms() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e3 + static_cast<double>(now.tv_nsec) * 1e-6;
}

double heap_mb() {
  const auto info = mallinfo2();
  return static_cast<double>(info.uordblks + info.hblkhd) / (1 << 20);
}

// The shards of the job: a private shard for each rank, and main shards that `sharers` ranks share. If the number of
// ranks does not divide evenly, more ranks share the last main shard. A main shard has as many parts as ranks name it.
class Shards {
 public:
  Shards(NodeId nodes, std::uint32_t sharers) : nodes_(nodes), sharers_(sharers) {}

  std::string main_of(Rank rank) const { return "rank" + std::to_string(first_of(rank)) + ".main"; }
  static std::string private_of(Rank rank) { return "rank" + std::to_string(rank) + ".private"; }
  std::uint32_t parts(Rank rank) const {
    const bool is_last = first_of(rank) == (nodes_ / sharers_ - 1) * sharers_;
    const std::uint32_t naming = is_last ? nodes_ - first_of(rank) : sharers_;
    return copies < naming ? naming : 1;
  }

  // The names of all pieces that a checkpoint stores, by number.
  std::uint64_t count() const { return 2 * std::uint64_t{nodes_}; }
  static std::uint64_t index_of(const std::string& name) {
    const ShardPart part = parse_part(name);
    return 2 * (std::stoul(part.shard.substr(4)) + part.index) + (name.ends_with(".private") ? 1 : 0);
  }

 private:
  Rank first_of(Rank rank) const { return std::min(rank / sharers_, nodes_ / sharers_ - 1) * sharers_; }

  NodeId nodes_;
  std::uint32_t sharers_;
};

class ScaleWorld {
 public:
  ScaleWorld(NodeId nodes, std::uint32_t sharers, const std::function<void(const std::string&)>& progress)
      : progress_(progress), shards_(nodes, sharers), machines_(nodes) {
    result_.nodes = nodes;
    result_.sharers = sharers;
    result_.lost = std::max<NodeId>(1, nodes / 1000);
  }

  ScaleResult run() {
    start_machines();
    const bool done = restart() && commit(1) && measure(2) && lose_some() && restart() && commit(1) && measure(2);
    if (!done) violation(text("at ", now_, " ms: ", doing_, " has not come to its end"));
    const double before = heap_mb();
    machines_[leader_node].core.reset();
    result_.memory_mb = before - heap_mb();
    return std::move(result_);
  }

 private:
  struct Held {
    SlotRef slot;
    CheckpointId checkpoint;
  };
  struct Machine {
    std::unique_ptr<Node> core;
    std::uint64_t arena_id = 0;
    std::uint64_t instance = 0;
    std::vector<Held> held;  // the truth about its slots
    std::vector<SlotRef> granted;
    CheckpointId notified_commit;  // the newest commit that its rank knows
    bool is_restored = false;
    int chain = 0;        // how many messages led from the captures to its last action
    int batch_chain = 0;  // how many messages led from the captures to the batch that it passes on next
    TimeMs wanted_tick_at = 0;
    // Fingerprints of the last messages: from the node, to it, and about it between its relay and the leader.
    std::uint64_t said = 0, received = 0;
    std::uint64_t said_on = 0, received_on = 0;
    bool is_relay = false;  // it has passed on a message since counting began
    std::uint64_t messages = 0;
    std::uint64_t bytes = 0;
  };
  struct Arrival {
    NodeId to = 0;
    int round = 0;  // the round of captures that caused it
    int chain = 0;
    std::variant<Event, StartFetch> what;
  };

  // ---- Time ----

  void step() {
    ++now_;
    if (auto due = arrivals_.extract(now_); !due.empty()) {
      for (Arrival& arrival : due.mapped()) arrive(arrival);
    }
    const TimeMs period = Config{}.report_ms / 2;
    for (std::size_t node = static_cast<std::size_t>(now_ % period); node < machines_.size();
         node += static_cast<std::size_t>(period)) {
      const auto id = static_cast<NodeId>(node);
      handle(id, Tick{});
      if ((now_ / period + id) % ticks_per_poll == 0) handle(id, leader_read_);
    }
    if (now_ % 16 == 0) progress_(text(doing_, ", at ", now_, " ms of virtual time"));
  }

  template <class Predicate>
  bool run_until(const Predicate& is_reached) {
    for (const TimeMs end = now_ + waited_ms_max; !is_reached(); step()) {
      if (now_ >= end || !result_.violations.empty()) return false;
    }
    return true;
  }

  void later(TimeMs after_ms, NodeId to, std::variant<Event, StartFetch> what, int chain = 0) {
    arrivals_[now_ + after_ms].push_back({to, round_, chain, std::move(what)});
  }

  void arrive(Arrival& arrival) {
    const int chain = arrival.round == round_ ? arrival.chain : 0;
    if (const auto* fetch = std::get_if<StartFetch>(&arrival.what)) return finish(arrival.to, *fetch, chain);
    arriving_chain_ = chain;
    if (is_report(std::get<Event>(arrival.what))) {
      int& batch_chain = machines_[arrival.to].batch_chain;
      batch_chain = std::max(batch_chain, chain);
    }
    if (arrival.to == leader_node) leader_chain_ = std::max(leader_chain_, chain);
    handle(arrival.to, std::get<Event>(arrival.what));
    arriving_chain_ = 0;
  }

  static bool is_report(const Event& event) {
    const auto* arrived = std::get_if<MessageArrived>(&event);
    return arrived != nullptr && std::holds_alternative<Report>(arrived->message);
  }

  void handle(NodeId node, const Event& event) {
    Machine& machine = machines_[node];
    if (!machine.core) return;
    if (node == leader_node) {
      handle_as_leader(machine, event);
    } else {
      carry_out(node, machine.core->handle(event, now_));
    }
    const auto wanted = machine.core->tick_wanted_at();
    if (!wanted || *wanted == machine.wanted_tick_at) return;
    machine.wanted_tick_at = *wanted;
    later(std::max(*wanted - now_, hop_ms), node, Event(Tick{}));
  }

  void handle_as_leader(Machine& machine, const Event& event) {
    const double begin = cpu_ms();
    const Effects effects = machine.core->handle(event, now_);
    const double took = cpu_ms() - begin;
    leader_cpu_ms_ += took;
    if (is_deciding(effects)) result_.decide_ms = took;
    if (is_placing(event)) placing_ms_ = 0;
    placing_ms_ = std::max(placing_ms_, took);
    carry_out(leader_node, effects);
  }

  // Begins an incarnation that was decided just now.
  bool is_placing(const Event& event) const {
    const auto* read = std::get_if<IncarnationRecordRead>(&event);
    return read != nullptr && read->revision == decided_revision_;
  }
  bool is_deciding(const Effects& effects) const {
    return std::any_of(effects.begin(), effects.end(), [&](const Effect& effect) {
      const auto* swap = std::get_if<SwapIncarnationRecord>(&effect);
      return swap != nullptr && decides(swap->record);
    });
  }
  bool decides(const IncarnationRecord& record) const {
    return record.decision.verdict != Verdict::undecided &&
           incarnation_read_.record.decision.verdict == Verdict::undecided;
  }

  // ---- Incarnations of the job ----

  void start_machines() {
    doing_ = "starting";
    for (NodeId node = 0; node < result_.nodes; ++node) {
      boot(node);
      if (node == leader_node) step();
    }
  }

  void boot(NodeId node) {
    Machine& machine = machines_[node];
    machine = {};
    machine.arena_id = ++ids_;
    Config config;
    config.node = node;
    config.arena_id = machine.arena_id;
    config.protection = placement::Protection::of_copies(copies);
    machine.core = std::make_unique<Node>(config, ++ids_, Recovered{});
    handle(node, leader_read_);
    handle(node, IncarnationRecordRead{});
  }

  // All ranks begin a new incarnation. Rank r runs on node r.
  bool restart() {
    doing_ = "restoring";
    for (Machine& machine : machines_) {
      machine.is_restored = false;
      machine.notified_commit = {};
    }
    restored_ = granted_ = 0;
    begin_counting();
    const TimeMs begin = now_;
    for (NodeId node = 0; node < result_.nodes; ++node) {
      Machine& machine = machines_[node];
      if (machine.instance != 0) handle(node, TrainerExited{node, machine.instance});
      machine.granted.clear();
      machine.instance = ++ids_;
      handle(node,
             TrainerHello{node, machine.instance, 0, result_.nodes, shards_.main_of(node), Shards::private_of(node)});
      later(5, node, Event(RestoreAsked{node}));
    }
    if (!run_until([&] { return restored_ == result_.nodes && granted_ == result_.nodes; })) return false;
    result_.restart_ms = now_ - begin;
    result_.restart_bytes_leader = static_cast<double>(machines_[leader_node].bytes);
    result_.restart_cpu_ms = leader_cpu_ms_;
    result_.fetched = fetched_;
    return true;
  }

  // All ranks capture at once. Returns true once all nodes know that the checkpoint is committed, and have dropped the
  // checkpoint before it.
  bool commit(int times) {
    for (int i = 0; i < times; ++i) {
      if (!run_until([&] { return granted_ == result_.nodes; })) return false;
      doing_ = "committing iteration " + std::to_string(++iteration_);
      const CheckpointId checkpoint(incarnation_read_.record.incarnation, iteration_);
      ++round_;
      leader_chain_ = 0;
      hops_ = 0;
      notified_ = 0;
      const TimeMs begin = now_;
      for (NodeId node = 0; node < result_.nodes; ++node) capture(node, checkpoint);
      if (!run_until([&] { return notified_ == result_.nodes; })) return false;
      result_.hops = std::max(result_.hops, hops_);
      result_.commit_ms = std::max(result_.commit_ms, now_ - begin);
      if (!run_until([&] { return held_ == copies * shards_.count(); })) return false;
    }
    return true;
  }

  void capture(NodeId node, CheckpointId checkpoint) {
    Machine& machine = machines_[node];
    machine.chain = machine.batch_chain = 0;
    Captured captured{node, {}};
    for (const SlotRef& slot : std::exchange(machine.granted, {})) {
      captured.pieces.push_back(piece_of(slot.shard, checkpoint));
      hold(machine, slot, checkpoint);
    }
    --granted_;
    handle(node, captured);
    handle(node, Progress{node, checkpoint.iteration(), -1});
  }

  PieceInfo piece_of(const std::string& shard, CheckpointId checkpoint) const {
    return {shard, checkpoint, 1u << 30, 4096, mix(hash_of(shard), checkpoint.word()), result_.nodes};
  }

  void begin_counting() {
    for (Machine& machine : machines_) {
      machine.messages = machine.bytes = 0;
      machine.is_relay = false;
    }
    repeats_ = 0;
    leader_cpu_ms_ = 0;
    fetched_ = 0;
  }

  bool measure(int times) {
    begin_counting();
    if (!commit(times)) return false;
    const auto busiest = [&](auto field, bool relay) {
      std::uint64_t most = 0;
      for (NodeId node = 0; node < result_.nodes; ++node) {
        const Machine& machine = machines_[node];
        if (node != leader_node && machine.is_relay == relay) most = std::max(most, machine.*field);
      }
      return static_cast<double>(most) / times;
    };
    result_.commits += times;
    result_.messages_leader = static_cast<double>(machines_[leader_node].messages) / times;
    result_.bytes_leader = static_cast<double>(machines_[leader_node].bytes) / times;
    result_.messages_worker = busiest(&Machine::messages, false);
    result_.bytes_worker = busiest(&Machine::bytes, false);
    result_.messages_relay = busiest(&Machine::messages, true);
    result_.bytes_relay = busiest(&Machine::bytes, true);
    result_.repeats_leader = static_cast<double>(repeats_) / times;
    result_.commit_cpu_ms = leader_cpu_ms_ / times;
    return true;
  }

  // Some machines are lost. No two of them hold the same pieces. Machines with the same names and empty memory replace
  // them.
  bool lose_some() {
    for (NodeId i = 0; i < result_.lost; ++i) {
      const NodeId node = (i + 1) * (result_.nodes / (result_.lost + 1));
      Machine& machine = machines_[node];
      while (!machine.held.empty()) release(machine, SlotRef(machine.held.front().slot));
      boot(node);
    }
    return true;
  }

  // ---- The truth ----

  void hold(Machine& machine, const SlotRef& slot, CheckpointId checkpoint) {
    const auto found = find(machine, slot);
    if (found != machine.held.end()) violation("slot of " + slot.shard + " is used for two checkpoints");
    machine.held.push_back({slot, checkpoint});
    ++held_;
    auto& counts = copies_[checkpoint];
    counts.resize(shards_.count());
    if (++counts[Shards::index_of(slot.shard)] == copies) ++whole_[checkpoint];
  }

  void release(Machine& machine, const SlotRef& slot) {
    const auto found = find(machine, slot);
    if (found == machine.held.end()) return;
    const CheckpointId checkpoint = found->checkpoint;
    machine.held.erase(found);
    --held_;
    if (--copies_[checkpoint][Shards::index_of(slot.shard)] == copies - 1) --whole_[checkpoint];
  }

  static std::vector<Held>::iterator find(Machine& machine, const SlotRef& slot) {
    return std::find_if(machine.held.begin(), machine.held.end(), [&](const Held& held) { return held.slot == slot; });
  }

  void violation(const std::string& what) { result_.violations.push_back(what); }

  // ---- Effects ----

  void carry_out(NodeId from, const Effects& effects) {
    for (const Effect& effect : effects) {
      std::visit([&](const auto& content) { on(from, content); }, effect);
    }
  }

  template <class Other>
  void on(NodeId, const Other&) {}  // ignored here

  void on(NodeId from, const Send& send) {
    if (says_something_new(send)) {
      const std::uint64_t bytes = MessageSize(send.message).bytes();
      for (Machine* machine : {&machines_[from], &machines_[send.to]}) {
        ++machine->messages;
        machine->bytes += bytes;
      }
    } else if (from == leader_node || send.to == leader_node) {
      ++repeats_;
    }
    later(hop_ms, send.to, Event(MessageArrived{from, send.message}), 1 + chain_of(from, send.message));
  }

  bool says_something_new(const Send& send) {
    bool is_new = false;
    const auto note = [&](std::uint64_t& last, const auto& what) {
      const std::uint64_t now = MessageSize(what).fingerprint();
      is_new |= std::exchange(last, now) != now;
    };
    const bool is_gathered = std::holds_alternative<ReportBatch>(send.message);
    for (const Report* report : reports_in(send.message)) {
      Machine& machine = machines_[report->node];
      note(is_gathered ? machine.said_on : machine.said, *report);
    }
    if (const auto* directive = std::get_if<Directive>(&send.message)) note(machines_[send.to].received, *directive);
    if (const auto* directive_batch = std::get_if<DirectiveBatch>(&send.message)) {
      for (const DirectiveBatch::Item& item : directive_batch->items) {
        Machine& machine = machines_[item.to];
        note(item.to == send.to ? machine.received : machine.received_on, item.directive);
      }
    }
    return is_new;
  }

  // How many messages led from the captures to this one.
  int chain_of(NodeId from, const Message& message) {
    if (from == leader_node) return leader_chain_;
    Machine& machine = machines_[from];
    if (std::holds_alternative<Report>(message)) return machine.chain;
    if (std::holds_alternative<DirectiveBatch>(message)) return arriving_chain_;
    machine.is_relay = true;
    return std::max(machine.chain, std::exchange(machine.batch_chain, 0));
  }
  void on(NodeId from, const SwapLeaderRecord& swap) {
    if (swap.expected_revision == leader_read_.revision) {
      if (from != leader_node) violation("node " + std::to_string(from) + " takes the lease of a leader that lives");
      leader_read_ = {leader_read_.revision + 1, swap.record};
    }
    later(hop_ms, from, Event(leader_read_));
  }
  void on(NodeId from, const SwapIncarnationRecord& swap) {
    store_assignments(swap);
    if (is_storable(swap.record) && swap.expected_revision == incarnation_read_.revision) {
      if (swap.record.incarnation < incarnation_read_.record.incarnation)
        violation("the job's incarnation goes backwards");
      if (decides(swap.record)) {
        decided_revision_ = incarnation_read_.revision + 1;
        if (swap.record.decision.checkpoint < newest_commit_) violation("a commit is passed over by the decision");
      }
      incarnation_read_ = {incarnation_read_.revision + 1, swap.record};
    }
    later(hop_ms, from, Event(incarnation_read_));
  }
  void store_assignments(const SwapIncarnationRecord& swap) {
    for (std::size_t begin = 0; begin < swap.assignments.size(); begin += assignments_per_record) {
      const auto first = swap.assignments.begin() + static_cast<std::ptrdiff_t>(begin);
      const auto count = std::min(assignments_per_record, swap.assignments.size() - begin);
      if (!is_storable(AssignmentsRecord{{first, first + static_cast<std::ptrdiff_t>(count)}})) return;
    }
    if (!swap.assignments.empty()) assignments_[swap.record.assignments] = swap.assignments;
  }
  // The real stores do the same.
  template <class Record>
  bool is_storable(const Record& record) {
    const std::uint64_t bytes = RecordSize::of(record);
    result_.record_bytes = std::max(result_.record_bytes, bytes);
    if (bytes <= coord::value_bytes_max) return true;
    violation(text("a record of ", bytes, " bytes is more than the store takes"));
    return false;
  }
  void on(NodeId from, const ReadAssignments& read) {
    later(hop_ms, from, Event(AssignmentsRead{read.name, assignments_[read.name]}));
  }
  void on(NodeId, const RemoveAssignments& removal) {
    std::erase_if(assignments_,
                  [&](const auto& entry) { return entry.first.incarnation < removal.before_incarnation; });
  }
  void on(NodeId, const AddSlots&) {}
  void on(NodeId node, const GrantSlots& grant) {
    machines_[node].granted = grant.slots;
    ++granted_;
  }
  void on(NodeId node, const NotifyCommit& notify) {
    Machine& machine = machines_[node];
    if (notify.committed <= machine.notified_commit)
      violation("node " + std::to_string(node) + " is told of an older commit");
    if (notify.committed > newest_commit_) {
      newest_commit_ = notify.committed;
      if (whole_[notify.committed] != shards_.count()) violation("a commit is announced without all its copies");
    }
    if (whole_[notify.committed] == 0) violation("a commit is announced that nobody has");
    machine.notified_commit = notify.committed;
    hops_ = std::max(hops_, arriving_chain_);
    ++notified_;
  }
  void on(NodeId node, const RestoreReady& ready) {
    Machine& machine = machines_[node];
    const bool is_right = newest_commit_ ? ready.decision.verdict == Verdict::restore &&
                                               ready.decision.checkpoint >= newest_commit_ &&
                                               ready.main.size() == shards_.parts(node)
                                         : ready.decision.verdict == Verdict::fresh;
    if (!is_right) violation("node " + std::to_string(node) + " restores something other than the newest commit");
    if (ready.decision.verdict == Verdict::restore) {
      std::vector<RestoreSource> sources = ready.main;
      sources.push_back(ready.private_);
      for (const RestoreSource& source : sources) {
        const auto held = find(machine, source.slot);
        if (held == machine.held.end() || held->checkpoint != ready.decision.checkpoint)
          violation("node " + std::to_string(node) + " restores from a slot that has not got it");
      }
    }
    if (restored_ == 0) result_.place_ms = placing_ms_;
    if (!std::exchange(machine.is_restored, true)) ++restored_;
    later(hop_ms, node, Event(RestoreDone{node}));
    SegmentsReady segments{node, parts_of(shards_.main_of(node), ready.share)};
    segments.shards.push_back(Shards::private_of(node));
    later(hop_ms, node, Event(std::move(segments)));
  }
  void on(NodeId node, const RestoreFailed& failed) {
    violation("node " + std::to_string(node) + " cannot restore: " + failed.text);
  }
  void on(NodeId node, const Fence& fence) {
    if (fence.instance == machines_[node].instance) violation("node " + std::to_string(node) + ": " + fence.text);
  }
  // The request takes 1 ms to the source, and the bytes take 1 ms back.
  void on(NodeId node, const StartFetch& fetch) {
    ++fetched_;
    Machine& machine = machines_[node];
    machine.chain = std::max(machine.chain, node == leader_node ? leader_chain_ : arriving_chain_);
    later(2 * hop_ms, node, fetch, machine.chain + 2);
  }
  void finish(NodeId node, const StartFetch& fetch, int chain) {
    Machine& machine = machines_[node];
    if (!machine.core) return;
    const auto& holder = machines_.at(fetch.source).held;
    const bool is_there = std::any_of(holder.begin(), holder.end(), [&](const Held& held) {
      return held.slot.shard == fetch.piece.shard && held.checkpoint == fetch.piece.checkpoint;
    });
    if (is_there) hold(machine, fetch.slot, fetch.piece.checkpoint);
    machine.chain = std::max(machine.chain, chain);
    if (node == leader_node) leader_chain_ = std::max(leader_chain_, chain);
    handle(node, FetchEnded{fetch.fetch, is_there ? FetchResult::complete : FetchResult::failed, {}, {}});
  }
  void on(NodeId node, const DropSlot& drop) {
    release(machines_[node], drop.slot);
    later(hop_ms, node, Event(SlotReleased{drop.slot}));
  }

  const std::function<void(const std::string&)>& progress_;
  const Shards shards_;
  ScaleResult result_;
  std::vector<Machine> machines_;
  std::map<TimeMs, std::vector<Arrival>> arrivals_;
  TimeMs now_ = 1000;
  std::uint64_t ids_ = 0;
  std::string doing_;
  LeaderRecordRead leader_read_;
  IncarnationRecordRead incarnation_read_;
  std::map<AssignmentsName, std::vector<RankAssignment>> assignments_;
  std::uint64_t decided_revision_ = 0;
  std::map<CheckpointId, std::vector<std::uint8_t>> copies_;  // how many copies each piece has
  std::map<CheckpointId, std::uint64_t> whole_;               // how many pieces have all their copies
  std::uint64_t held_ = 0;                                    // how many slots hold a piece
  CheckpointId newest_commit_;
  std::int64_t iteration_ = 0;
  NodeId restored_ = 0;
  NodeId granted_ = 0;
  NodeId notified_ = 0;
  int round_ = 0;
  int leader_chain_ = 0;
  int arriving_chain_ = 0;
  int hops_ = 0;
  std::uint64_t repeats_ = 0;
  std::uint64_t fetched_ = 0;
  double leader_cpu_ms_ = 0;
  double placing_ms_ = 0;
};

}  // namespace

ScaleResult run_scale(NodeId nodes, std::uint32_t sharers, const std::function<void(const std::string&)>& progress) {
  return ScaleWorld(nodes, sharers, progress).run();
}

std::string scale_text(const ScaleResult& result) {
  std::ostringstream out;
  out.setf(std::ios::fixed);
  out.precision(1);
  for (const std::string& what : result.violations) out << "violation: " << what << '\n';
  out << "commit: sharers=" << result.sharers << " bytes_leader=" << result.bytes_leader
      << " repeats_leader=" << result.repeats_leader << " bytes_worker=" << result.bytes_worker
      << " messages_relay=" << result.messages_relay << " bytes_relay=" << result.bytes_relay << " hops=" << result.hops
      << " commit_ms=" << result.commit_ms << " cpu_leader_ms=" << result.commit_cpu_ms << '\n';
  out << "restart: nodes_lost=" << result.lost << " restart_ms=" << result.restart_ms << " place_ms=" << result.place_ms
      << " fetched=" << result.fetched << " restart_bytes_leader=" << result.restart_bytes_leader
      << " restart_cpu_leader_ms=" << result.restart_cpu_ms << " record_bytes=" << result.record_bytes << '\n';
  out << "sim: nodes=" << result.nodes << " messages_leader=" << result.messages_leader
      << " messages_worker=" << result.messages_worker << " decide_ms=" << result.decide_ms
      << " memory_mb=" << result.memory_mb << " violations=" << result.violations.size() << '\n';
  return out.str();
}

}  // namespace ckpt::sim
