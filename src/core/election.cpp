#include "core/election.hpp"

#include <algorithm>
#include <tuple>

namespace ckpt::core {

std::string damaged_record(const char* record, const char* number, std::uint64_t claimed, std::uint64_t known) {
  return std::string("the coordination record \"") + record + "\" is damaged: its " + number + " is " +
         std::to_string(claimed) + ", and this node knows of none after " + std::to_string(known) +
         ". Stop the job's agents (ckptctl stop), remove the job's records with ckptctl gc --records, and start the "
         "job again: the checkpoints in memory stay";
}

void Election::on_read(const LeaderRecordRead& read, TimeMs now) {
  if (!is_plausible_epoch(highest_epoch_, read.record.epoch)) {
    trouble_ = damaged_record("leader", "epoch", read.record.epoch, highest_epoch_);
    return;
  }
  trouble_.clear();
  // Terms and heartbeats only grow. A record ahead of everything read so far is new, whatever the store did to its
  // revisions.
  const bool is_ahead = std::tie(read.record.epoch, read.record.heartbeat) > std::tie(record_.epoch, record_.heartbeat);
  if (revision_ && read.revision < *revision_ && !is_ahead) {
    // A leader whose record was lost writes it again. If it was not lost and answers overtook each other, this does
    // nothing.
    if (is_leader() && read.record.epoch <= my_epoch_) {
      revision_ = read.revision;
      return;
    }
    // Other nodes believe this record if nothing newer comes.
    if (!older_since_) older_since_ = now;
    if (now - *older_since_ < config_.lease_ms) return;
  }
  older_since_.reset();
  if (!revision_ || read.revision != *revision_) unchanged_since_ = now;
  revision_ = read.revision;
  if (read.record.node != record_.node) leader_heard_at_.reset();
  record_ = read.record;
  highest_epoch_ = std::max(highest_epoch_, record_.epoch);

  const bool mine = record_.node == config_.node && record_.epoch == attempted_epoch_ && attempted_epoch_ != 0 &&
                    attempted_epoch_ == highest_epoch_;
  my_epoch_ = mine ? attempted_epoch_ : 0;
  if (!mine || record_.heartbeat >= proving_heartbeat_) unproven_since_.reset();
}

void Election::on_directive_of(NodeId leader, std::uint64_t epoch, TimeMs now) {
  if (leader == record_.node) leader_heard_at_ = now;
  if (epoch > record_.epoch && epoch >= highest_epoch_ && is_plausible_epoch(highest_epoch_, epoch))
    caller_ = {leader, epoch, now};
}

NodeId Election::leader() const {
  if (is_leader()) return config_.node;
  return caller_.epoch > record_.epoch ? caller_.node : record_.node;
}

bool Election::on_higher_epoch(std::uint64_t epoch) {
  if (!is_plausible_epoch(highest_epoch_, epoch)) return false;
  highest_epoch_ = std::max(highest_epoch_, epoch);
  if (my_epoch_ != 0 && epoch > my_epoch_) my_epoch_ = 0;
  return true;
}

void Election::on_pause(TimeMs now) {
  unchanged_since_ = now;
  if (older_since_) older_since_ = now;
  if (!is_leader()) return;
  unproven_since_ = now;
  proving_heartbeat_ = std::max(last_heartbeat_, record_.heartbeat) + 1;
}

void Election::on_tick(TimeMs now, bool obeyed, Effects& effects) {
  if (now - caller_.received_at > config_.lease_ms) caller_ = {};
  if (!revision_) return;  // the store has not been read yet
  const bool may_try = last_swap_ == 0 || now - last_swap_ >= config_.lease_ms / 2;
  if (is_leader()) {
    if (!obeyed || !renewal_is_due(now)) return;
    swap({my_epoch_, config_.node, std::max(last_heartbeat_, record_.heartbeat) + 1}, now, effects);
  } else if (gives_way() && may_try) {
    swap({record_.epoch, no_node, record_.heartbeat + 1}, now, effects);
  } else if (lease_expired(now) && may_try) {
    attempted_epoch_ = next_epoch(highest_epoch_, config_.node);
    predecessor_ = silent_leader();
    swap({attempted_epoch_, config_.node, 0}, now, effects);
  }
}

// This node is a standby node and led before its agent restarted. While the record names it, nobody leads.
bool Election::gives_way() const {
  return config_.standby && record_.node == config_.node && record_.epoch == highest_epoch_ &&
         record_.epoch != attempted_epoch_;
}

Predecessor Election::silent_leader() const {
  if (record_.node == config_.node || !leader_heard_at_) return {};
  return {record_.node, std::max(unchanged_since_, *leader_heard_at_)};
}

bool Election::lease_expired(TimeMs now) const {
  // The leader's options for placement and storage count for the job, so a node with a rank should lead.
  if (config_.standby && now - unchanged_since_ < 2 * config_.lease_ms) return false;
  if (record_.node == no_node || record_.node == config_.node)
    return true;  // nobody's record, or one of an earlier run of this node's agent
  // Later nodes wait a little longer, so that not all nodes run for leader at once.
  const TimeMs wait_limit = config_.lease_ms + config_.lease_ms * (config_.node % 8) / 16;
  return now - unchanged_since_ >= wait_limit;
}

bool Election::renewal_is_due(TimeMs now) const {
  if (!unproven_since_) return now - last_swap_ >= config_.lease_ms / 4;
  return last_swap_ < *unproven_since_ || now - last_swap_ >= std::min(config_.report_ms, config_.lease_ms / 4);
}

void Election::swap(const LeaderRecord& record, TimeMs now, Effects& effects) {
  last_swap_ = now;
  last_heartbeat_ = record.heartbeat;
  effects.push_back(SwapLeaderRecord{*revision_, record});
}

}  // namespace ckpt::core
