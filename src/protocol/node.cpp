#include "protocol/node.hpp"

#include "protocol/election.hpp"
#include "protocol/node_health.hpp"
#include "protocol/relay.hpp"
#include "protocol/root.hpp"
#include "protocol/worker.hpp"

namespace ckpt::protocol {

namespace {

template <class... Functions>
struct Overloaded : Functions... {
  using Functions::operator()...;
};
// Compilers before clang 17 do not deduce it for aggregates.
template <class... Functions>
Overloaded(Functions...) -> Overloaded<Functions...>;

}  // namespace

struct Node::Parts {
  Parts(const Config& node_config, std::uint64_t agent_id, const Recovered& recovered)
      : config(node_config), worker(config, agent_id, recovered), election(config, recovered.epoch), relay(config) {}

  void dispatch(const Event& event, Effects& effects);
  void receive(const LifeRead& read);
  void receive(NodeId from, const Report& report, Effects& effects);
  void receive(NodeId from, const Gathered& gathered, Effects& effects);
  void receive(NodeId from, const Directive& directive, Effects& effects);
  void receive(NodeId from, const Dealt& dealt, Effects& effects);
  bool hear(NodeId from, const Report& report);
  void obey(const Directive& directive);
  void settle(Effects& effects);
  void settle_role();
  NodeId named_relay() const;
  void send_report(Effects& effects);
  void route_own_messages(Effects& effects);

  const Config config;
  Worker worker;
  Election election;
  Relay relay;
  std::optional<Root> root;  // while elected
  std::optional<LifeRead> life;
  HealthView health;
  Observed observed;
  TimeMs now = 0;
};

Node::Node(const Config& config, std::uint64_t agent_id, const Recovered& recovered)
    : parts_(std::make_unique<Parts>(config, agent_id, recovered)) {}

Node::~Node() = default;

Effects Node::handle(const Event& event, TimeMs now) {
  Effects effects;
  parts_->now = now;
  parts_->dispatch(event, effects);
  parts_->settle(effects);
  return effects;
}

void Node::Parts::dispatch(const Event& event, Effects& effects) {
  std::visit(Overloaded{
                 [](const Tick&) {},
                 [&](const RootRead& read) { election.on_read(read, now); },
                 [&](const LifeRead& read) { receive(read); },
                 [&](const SeatsRead& read) {
                   if (root) root->on(read);
                 },
                 [&](const MessageArrived& arrived) {
                   std::visit([&](const auto& message) { receive(arrived.from, message, effects); }, arrived.message);
                 },
                 [&](const FetchEnded& ended) { worker.on(ended, now); },
                 [&](const StorageListed& listed) {
                   if (root) root->on(listed, now);
                 },
                 [&](const StepEnded& ended) {
                   if (root) root->on(ended, now);
                 },
                 [&](const PieceCorrupt& corrupt) { worker.on(corrupt, effects); },
                 [&](const Observed& news) {
                   observed = news;
                   worker.on(news);
                   if (root) root->distrust(observed.distrusted);
                 },
                 [&](const auto& of_trainer_or_slot) { worker.on(of_trainer_or_slot); },
             },
             event);
}

void Node::Parts::receive(const LifeRead& read) {
  election.on_higher_epoch(read.record.epoch);  // the root's own record may have been lost alone
  if (!life || read.revision >= life->revision) life = read;
  if (root) root->on(read);
}

void Node::Parts::receive(NodeId from, const Report& report, Effects& effects) {
  if (!hear(from, report)) relay.on(from, report, now, effects);
}

void Node::Parts::receive(NodeId from, const Gathered& gathered, Effects& effects) {
  for (const Report& report : gathered.reports) hear(from, report);
  if (root && election.is_root()) effects.push_back(Send{from, Dealt{}});
}

void Node::Parts::receive(NodeId, const Directive& directive, Effects&) { obey(directive); }

void Node::Parts::receive(NodeId from, const Dealt& dealt, Effects& effects) {
  relay.on(from, dealt, effects);
  for (const Dealt::Item& item : dealt.items) {
    if (item.to == config.node) obey(item.directive);
  }
}

// As root; false: this node is none.
bool Node::Parts::hear(NodeId from, const Report& report) {
  election.on_higher_epoch(report.epoch);
  if (!root || !election.is_root()) return false;
  root->on(from, report, now);
  return true;
}

void Node::Parts::obey(const Directive& directive) {
  election.on_higher_epoch(directive.epoch);
  worker.on(directive);
}

void Node::Parts::settle(Effects& effects) {
  election.on_tick(now, root && root->is_obeyed(now), effects);
  settle_role();
  worker.settle(now, effects);
  send_report(effects);
  // What this node tells itself may change its mind once more: its own report may complete a version. Each round makes
  // progress on a state that only grows within one event, so it ends.
  route_own_messages(effects);
  health.observe(worker.directive(), worker.highest_commit(), now);
}

// Becoming root and ceasing to be it; from the moment a newer epoch is known nothing older is obeyed.
void Node::Parts::settle_role() {
  worker.on_epoch(election.epoch());
  if (!election.is_root()) {
    root.reset();
  } else if (!root || root->epoch() != election.epoch()) {
    root.emplace(config, election.epoch(), election.predecessor(), now, health.known(worker.directive()));
    root->distrust(observed.distrusted);
    if (life) root->on(*life);
  }
}

// By this root, in this term.
NodeId Node::Parts::named_relay() const {
  const Directive& newest = worker.directive();
  return newest.epoch == worker.epoch() && newest.root == election.root() ? newest.relay : no_node;
}

void Node::Parts::send_report(Effects& effects) {
  relay.follow(election.root(), named_relay());
  if (election.root() != no_node) {
    if (auto report = worker.report_if_due(now)) relay.send_own(std::move(*report), now, effects);
  }
  relay.settle(now, effects);
}

void Node::Parts::route_own_messages(Effects& effects) {
  for (;;) {
    if (root) root->settle(now, effects);
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
    worker.settle(now, effects);
    send_report(effects);
  }
}

std::optional<TimeMs> Node::tick_wanted_at() const {
  auto wanted = parts_->relay.settle_wanted_at();
  const auto of_root = parts_->root ? parts_->root->settle_wanted_at() : std::nullopt;
  if (of_root && (!wanted || *of_root < *wanted)) wanted = of_root;
  return wanted;
}

NodeStatus Node::status() const {
  const Directive& directive = parts_->worker.directive();
  NodeStatus status;
  status.node = parts_->config.node;
  status.is_root = parts_->election.is_root();
  status.root = parts_->election.root();
  status.relay = parts_->named_relay();
  status.epoch = parts_->worker.epoch();
  status.incarnation = directive.incarnation;
  status.decision = directive.decision;
  status.committed = directive.committed;
  status.highest_commit = parts_->worker.highest_commit();
  status.resume_at = directive.resume_at;
  status.copies_now = directive.copies_now;
  status.parity_now = directive.parity_now;
  status.alarm = directive.alarm;
  status.ranks = parts_->worker.rank_reports();
  status.pieces = parts_->worker.slots().whole_pieces();
  if (parts_->root) status.nodes_present = parts_->root->nodes_present(parts_->now);
  status.missing_ranks = directive.missing_ranks;
  status.missing_nodes = directive.missing_nodes;
  status.stand_ins = directive.stand_ins;
  status.stored = directive.stored;
  status.stored_skipped = directive.stored_skipped;
  status.storage_trouble = directive.storage_trouble;
  return status;
}

Health Node::health(TimeMs now) const {
  return parts_->health.judge(
      parts_->worker.directive(), parts_->config,
      {parts_->election.root(), parts_->observed.coordination_fails, parts_->observed.distrusted}, now);
}

const SlotRef* Node::find(const std::string& shard, Version version) const {
  return parts_->worker.slots().find_whole(shard, version);
}

}  // namespace ckpt::protocol
