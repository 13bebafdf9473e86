// One node on the real core, while a test is all the world around it: the store answers at once, every message and
// transfer is the test's. Where several nodes are wanted see cluster.hpp.
#pragma once

#include <map>
#include <vector>

#include "cluster.hpp"
#include "protocol/node.hpp"
#include "protocol/seating.hpp"

namespace ckpt::protocol {

class LoneNode {
 public:
  explicit LoneNode(const Config& config, const Recovered& recovered = {}) : node_(config, 1, recovered) {}

  void handle(const Event& event) {
    for (Effect& effect : node_.handle(event, ++now)) {
      effects.push_back(std::move(effect));
      answer(Effect(effects.back()));
    }
  }
  void hear(NodeId from, const Message& message) { handle(MessageArrived{from, message}); }

  // Nobody leads yet, and the store has this life: the node leads it.
  void lead(const LifeRecord& life, const std::vector<Seat>& seats) {
    life_ = life;
    seats_ = seats;
    handle(RootRead{});
    handle(LifeRead{++life_revision_, life_});
  }
  // Another one leads that life.
  void follow(NodeId leader, const LifeRecord& life, const std::vector<Seat>& seats) {
    life_ = life;
    seats_ = seats;
    follow(leader, life.epoch);
    handle(LifeRead{++life_revision_, life_});
  }
  // Another one leads.
  void follow(NodeId leader, std::uint64_t epoch) { handle(RootRead{++root_revision_, {epoch, leader, 0}}); }

  NodeStatus status() const { return node_.status(); }
  Health health() const { return node_.health(now); }
  const LifeRecord& life() const { return life_; }
  const SlotRef* find(const std::string& shard, Version version) const { return node_.find(shard, version); }

  // Of all that it ever asked for.
  template <class Content>
  std::vector<Content> all() const {
    std::vector<Content> found;
    for (const Effect& effect : effects) {
      if (const auto* content = std::get_if<Content>(&effect)) found.push_back(*content);
    }
    return found;
  }
  // The newest message of that kind to the node; a fresh one where there was none.
  template <class Content>
  Content newest_to(NodeId to) const {
    Content newest;
    for (const Effect& effect : effects) {
      const auto* send = std::get_if<Send>(&effect);
      if (send == nullptr || send->to != to) continue;
      if (const auto* content = std::get_if<Content>(&send->message)) newest = *content;
    }
    return newest;
  }

  Effects effects;
  TimeMs now = 1000;

 private:
  void answer(const Effect& effect) {
    if (const auto* root = std::get_if<SwapRoot>(&effect)) {
      handle(RootRead{++root_revision_, root->record});
    } else if (const auto* swap = std::get_if<SwapLife>(&effect)) {
      life_ = swap->record;
      if (!swap->seats.empty()) seats_ = swap->seats;
      handle(LifeRead{++life_revision_, life_});
    } else if (std::holds_alternative<ReadSeats>(effect)) {
      handle(SeatsRead{life_.seats, seats_});
    }
  }

  Node node_;
  LifeRecord life_;
  std::vector<Seat> seats_;
  std::uint64_t root_revision_ = 0;
  std::uint64_t life_revision_ = 0;
};

inline constexpr NodeId lone_leader = 9;

// The leader of a life of one rank on each of some nodes; it has none itself. Those nodes say what a test says.
class LoneLeader : public LoneNode {
 public:
  LoneLeader(Rank ranks, const placement::Protection& protection, Config config = {})
      : LoneNode(with_number(std::move(config), protection)), ranks_(ranks) {
    std::vector<Seat> seats;
    for (Rank rank = 0; rank < ranks; ++rank)
      seats.push_back({rank, rank, 100 + rank, "", main_shard(rank), private_shard(rank)});
    LifeRecord life;
    life.incarnation = 1;
    life.world_size = ranks;
    life.decision.verdict = Verdict::fresh;
    life.protection = protection;
    life.seats = name_of(1, seats);
    lead(life, seats);
  }

  // What the node's agent says as a rule: its rank takes part in the life and has tried `attempted` last.
  Report report_of(NodeId node, std::int64_t attempted = -1) {
    Report report;
    report.node = node;
    report.arena_id = 100 + node;
    report.agent_id = 1;
    report.sequence = ++sequences_[node];
    report.epoch = status().epoch;
    const Directive told = newest_to<Directive>(node);
    report.directive = told.sequence;
    report.roll_call = told.roll_call;
    RankReport trainer{node, 50 + node, 1, ranks_, main_shard(node), private_shard(node)};
    trainer.attempted = attempted;
    report.ranks.push_back(trainer);
    return report;
  }
  void say(const Report& report) { hear(report.node, report); }

 private:
  static Config with_number(Config config, const placement::Protection& protection) {
    config.node = lone_leader;
    config.protection = protection;
    return config;
  }

  Rank ranks_;
  std::map<NodeId, std::uint64_t> sequences_;
};

}  // namespace ckpt::protocol
