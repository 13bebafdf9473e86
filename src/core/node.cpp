#include "core/node.hpp"

#include <algorithm>
#include <tuple>
#include <utility>

#include "core/election.hpp"
#include "core/leader/leader.hpp"
#include "core/node_health.hpp"
#include "core/relay.hpp"
#include "core/worker/worker.hpp"

namespace ckpt::core {

namespace {

template <class... Functions>
struct Overloaded : Functions... {
  using Functions::operator()...;
};
// Compilers before clang 17 do not deduce this for aggregates.
template <class... Functions>
Overloaded(Functions...) -> Overloaded<Functions...>;

// An epoch that no leader can have is damage. If nodes obeyed it, they would never obey a real leader again.
Recovered believable(Recovered recovered) {
  if (recovered.epoch > epoch_max) recovered.epoch = 0;
  return recovered;
}

// The order of a job's records: incarnations, decisions and terms follow one another. A decided incarnation never
// becomes undecided again. A leader that has such a record has one that was set back.
bool is_older(const IncarnationRecord& record, const IncarnationRecord& than) {
  const auto place = [](const IncarnationRecord& each) {
    return std::tuple(each.incarnation, each.decision.verdict != Verdict::undecided, each.epoch);
  };
  return place(record) < place(than);
}

}  // namespace

struct Node::Parts {
  Parts(const Config& node_config, std::uint64_t agent_id, const Recovered& recovered)
      : config(node_config), worker(config, agent_id, recovered), election(config, recovered.epoch), relay(config) {}

  void look_at_clock(TimeMs next);

  void dispatch(const Event& event, Effects& effects);
  void receive(const IncarnationRecordRead& read);
  void learn(const IncarnationRecordRead& read);
  bool believes(const IncarnationRecord& record);
  void report_trouble(Effects& effects);
  std::string record_trouble() const {
    return election.trouble().empty() ? incarnation_record_trouble : election.trouble();
  }
  void receive(NodeId from, const Report& report, Effects& effects);
  void receive(NodeId from, const ReportBatch& report_batch, Effects& effects);
  void receive(NodeId from, const Directive& directive, Effects& effects);
  void receive(NodeId from, const DirectiveBatch& directive_batch, Effects& effects);
  bool accept_report(NodeId from, const Report& report);
  void obey(const Directive& directive);
  void reconcile(Effects& effects);
  void reconcile_role();
  NodeId named_relay() const;
  void send_report(Effects& effects);
  void route_own_messages(Effects& effects);

  const Config config;
  Worker worker;
  Election election;
  Relay relay;
  std::optional<Leader> leader;  // while elected
  std::optional<IncarnationRecordRead> newest_read;
  bool store_is_older = false;        // the store had an older record when it was last read
  std::optional<TimeMs> lower_since;  // since then, reads have had a lower revision
  std::string incarnation_record_trouble;
  std::string reported_trouble;
  bool has_begun = false;
  HealthView health;
  TimeMs suspected_at = 0;  // when the suspicion of the newest directive came
  Observed observed;
  TimeMs now = 0;
};

Node::Node(const Config& config, std::uint64_t agent_id, const Recovered& recovered)
    : parts_(std::make_unique<Parts>(config, agent_id, believable(recovered))) {}

Node::~Node() = default;

Effects Node::handle(const Event& event, TimeMs now) {
  Effects effects;
  parts_->look_at_clock(now);
  parts_->dispatch(event, effects);
  parts_->reconcile(effects);
  parts_->report_trouble(effects);
  return effects;
}

// Events come often; ticks do in any case. A long time without events means that this node was stopped itself, or that
// the leader has worked for so long. The silence of others in that time proves nothing.
void Node::Parts::look_at_clock(TimeMs next) {
  const TimeMs before = std::exchange(now, next);
  const bool is_first = !std::exchange(has_begun, true);
  const TimeMs long_ms = std::min(config.node_timeout_ms, config.lease_ms) / 2;
  if (is_first || now - before <= long_ms) return;
  if (leader && now - before <= long_ms + leader->reconcile_gap_ms()) return leader->on_long_work(now - before);
  election.on_pause(now);
  worker.on_pause();
  if (leader) leader->on_pause(before, now);
}

void Node::Parts::dispatch(const Event& event, Effects& effects) {
  std::visit(Overloaded{
                 [](const Tick&) {},
                 [&](const LeaderRecordRead& read) { election.on_read(read, now); },
                 [&](const IncarnationRecordRead& read) { receive(read); },
                 [&](const AssignmentsRead& read) {
                   if (leader) leader->on(read);
                 },
                 [&](const MessageArrived& arrived) {
                   std::visit([&](const auto& message) { receive(arrived.from, message, effects); }, arrived.message);
                 },
                 [&](const FetchEnded& ended) { worker.on(ended, now); },
                 [&](const StorageListed& listed) {
                   if (leader) leader->on(listed, now);
                 },
                 [&](const FinalizeEnded& ended) {
                   if (leader) leader->on(ended, now);
                 },
                 [&](const PieceCorrupt& corrupt) { worker.on(corrupt, effects); },
                 [&](const RanksWatched& watched) { worker.on(watched, now); },
                 [&](const Observed& news) {
                   observed = news;
                   worker.on(news);
                   if (leader) leader->distrust(observed.distrusted);
                 },
                 [&](const auto& of_trainer_or_slot) { worker.on(of_trainer_or_slot); },
             },
             event);
}

void Node::Parts::receive(const IncarnationRecordRead& read) {
  if (!believes(read.record)) return;
  learn(read);
  const bool is_undecided = newest_read->record.decision.verdict == Verdict::undecided;
  worker.on_decided_incarnation(newest_read->record.incarnation -
                                (is_undecided && newest_read->record.incarnation != 0 ? 1 : 0));
  worker.on_first_commit(newest_read->record.first_commit);
  if (leader) leader->in_charge() ? leader->on(read, true) : leader->on(*newest_read, !store_is_older);
}

// The store may lose a record or be set back. The newest record that this node has seen counts; from the store it takes
// only the revision, so that a leader writes that record again. Answers may overtake each other, too: a record that may
// be newer counts once no newer revision was seen for lease_ms.
void Node::Parts::learn(const IncarnationRecordRead& read) {
  if (!newest_read) return void(newest_read = read);
  const bool is_lower = read.revision < newest_read->revision;
  if (!is_lower) lower_since.reset();
  store_is_older = is_older(read.record, newest_read->record);
  if (store_is_older) {
    newest_read->revision = read.revision;
  } else if (!is_lower || read.record == newest_read->record || is_older(newest_read->record, read.record)) {
    newest_read = read;
  } else {
    if (!lower_since) lower_since = now;
    if (now - *lower_since < config.lease_ms) return;
    lower_since.reset();
    newest_read = read;
  }
}

bool Node::Parts::believes(const IncarnationRecord& record) {
  const std::uint64_t known_epoch = election.highest_epoch();
  const std::uint64_t known =
      std::max(newest_read ? newest_read->record.incarnation : 0, worker.newest_seen().incarnation());
  incarnation_record_trouble.clear();
  if (!election.on_higher_epoch(record.epoch)) {  // only the leader's own record may be lost
    incarnation_record_trouble = damaged_record("incarnation", "epoch", record.epoch, known_epoch);
  } else if (!is_plausible_incarnation(known, record.incarnation)) {
    incarnation_record_trouble = damaged_record("incarnation", "incarnation", record.incarnation, known);
  }
  return incarnation_record_trouble.empty();
}

void Node::Parts::report_trouble(Effects& effects) {
  const std::string trouble = record_trouble();
  if (trouble == reported_trouble) return;
  reported_trouble = trouble;
  if (!trouble.empty()) effects.push_back(Notice{trouble});
}

void Node::Parts::receive(NodeId from, const Report& report, Effects& effects) {
  if (!accept_report(from, report)) relay.on(from, report, now, effects);
}

void Node::Parts::receive(NodeId from, const ReportBatch& report_batch, Effects& effects) {
  for (const Report& report : report_batch.reports) accept_report(from, report);
  if (leader && election.is_leader()) effects.push_back(Send{from, DirectiveBatch{}});
}

void Node::Parts::receive(NodeId, const Directive& directive, Effects&) { obey(directive); }

void Node::Parts::receive(NodeId from, const DirectiveBatch& directive_batch, Effects& effects) {
  relay.on(from, directive_batch, effects);
  for (const DirectiveBatch::Item& item : directive_batch.items) {
    if (item.to == config.node) obey(item.directive);
  }
}

// Does it as leader. Returns false if this node is not the leader.
bool Node::Parts::accept_report(NodeId from, const Report& report) {
  if (!election.on_higher_epoch(report.epoch)) return true;
  if (!leader || !election.is_leader()) return false;
  leader->on(from, report, now);
  return true;
}

void Node::Parts::obey(const Directive& directive) {
  election.on_directive_of(directive.leader, directive.epoch, now);
  if (leader) leader->on_directive_of(directive.leader, now);
  const Suspicion before = worker.directive().suspicion;
  if (election.on_higher_epoch(directive.epoch)) worker.on(directive);
  if (worker.directive().suspicion != before) suspected_at = now;
}

void Node::Parts::reconcile(Effects& effects) {
  // Its epoch must also be newer than that of the incarnation's record, because the leader's record may be lost alone.
  if (newest_read) election.on_tick(now, leader && leader->is_obeyed(now), effects);
  reconcile_role();
  worker.reconcile(now, effects);
  send_report(effects);
  // The node's own messages may change its state again: its own report may complete a checkpoint. Each round makes
  // progress on a state that only grows within one event, so this ends.
  route_own_messages(effects);
  health.observe(worker.directive(), worker.highest_commit(), worker.hears_of_now(), now);
}

// Becomes leader or stops being it. Once a newer epoch is known, the node obeys nothing older.
void Node::Parts::reconcile_role() {
  worker.on_epoch(election.epoch());
  if (!election.is_leader()) {
    leader.reset();
  } else if (!leader || leader->epoch() != election.epoch()) {
    leader.emplace(config, election.epoch(), election.predecessor(), now, health.known(worker.directive()));
    leader->distrust(observed.distrusted);
    if (newest_read) leader->on(*newest_read, !store_is_older);
  }
}

// Whether this leader announced it in this term.
NodeId Node::Parts::named_relay() const {
  const Directive& newest = worker.directive();
  return newest.epoch == worker.epoch() && newest.leader == election.leader() ? newest.relay : no_node;
}

void Node::Parts::send_report(Effects& effects) {
  relay.follow(election.leader(), named_relay());
  if (election.leader() != no_node) {
    if (auto report = worker.report_if_due(now)) relay.send_own(std::move(*report), now, effects);
  }
  relay.reconcile(now, effects);
}

void Node::Parts::route_own_messages(Effects& effects) {
  for (;;) {
    if (leader && election.knows_its_term(now)) leader->reconcile(now, effects);
    std::vector<Message> own;
    std::erase_if(effects, [&](Effect& effect) {
      Send* send = std::get_if<Send>(&effect);
      if (send == nullptr || send->to != config.node) return false;
      own.push_back(std::move(send->message));
      return true;
    });
    if (own.empty()) return;
    for (const Message& message : own)
      std::visit([&](const auto& content) { receive(config.node, content, effects); }, message);
    worker.reconcile(now, effects);
    send_report(effects);
  }
}

std::optional<TimeMs> Node::tick_wanted_at() const {
  auto wanted = parts_->relay.reconcile_wanted_at();
  const bool may_reconcile = parts_->leader && parts_->election.knows_its_term(parts_->now);
  const auto of_leader = may_reconcile ? parts_->leader->reconcile_wanted_at() : std::nullopt;
  if (of_leader && (!wanted || *of_leader < *wanted)) wanted = of_leader;
  return wanted;
}

NodeStatus Node::status() const {
  const Directive& directive = parts_->worker.directive();
  NodeStatus status;
  status.node = parts_->config.node;
  status.is_leader = parts_->election.is_leader();
  status.leader = parts_->election.leader();
  status.relay = parts_->named_relay();
  status.epoch = parts_->worker.epoch();
  status.incarnation = directive.incarnation;
  status.decision = directive.decision;
  status.highest_commit = parts_->worker.highest_commit();
  // A leader that has not heard all members yet does not announce commits that present nodes know of.
  const bool knows_newer = status.highest_commit.incarnation() >= directive.incarnation;
  status.committed = knows_newer ? std::max(directive.committed, status.highest_commit) : directive.committed;
  status.resume_at = directive.resume_at;
  status.copies_now = directive.copies_now;
  status.parity_now = directive.parity_now;
  status.alarm = directive.alarm;
  status.ranks = parts_->worker.rank_reports();
  status.pieces = parts_->worker.slots().whole_pieces();
  if (parts_->leader) status.nodes_present = parts_->leader->nodes_present(parts_->now);
  status.missing_ranks = directive.missing_ranks;
  status.missing_nodes = directive.missing_nodes;
  status.replacements = directive.replacements;
  status.stored = directive.stored;
  status.stored_skipped = directive.stored_skipped;
  status.storage_trouble = directive.storage_trouble;
  status.suspicion = directive.suspicion;
  for (Culprit& each : status.suspicion.culprits) each.standing.still_ms += parts_->now - parts_->suspected_at;
  status.halt = directive.halt;
  status.record_trouble = parts_->record_trouble();
  return status;
}

Health Node::health(TimeMs now) const {
  return parts_->health.judge(
      parts_->worker.directive(), parts_->config,
      {parts_->election.leader(), parts_->observed.coordination_fails, parts_->observed.distrusted}, now);
}

const SlotRef* Node::find(const std::string& shard, CheckpointId checkpoint) const {
  return parts_->worker.slots().find_whole(shard, checkpoint);
}

AwaitedPieces Node::awaited(Rank rank) const { return parts_->worker.awaited(rank); }

}  // namespace ckpt::core
