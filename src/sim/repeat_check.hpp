// RepeatCheck checks invariant I13 in a simulated run (docs/simulator.md): nodes repeat updates only where that is
// right, and a repeated piece counts only if it is what its owner captured. Not thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "core/repeated_updates.hpp"
#include "sim/memory.hpp"

namespace ckpt::sim {

struct Machine;
struct Transfer;
class World;

class RepeatCheck {
 public:
  explicit RepeatCheck(World& world) : world_(world) {}

  // The agent has decided how it gets this piece: by repeating an update on `base`, or in full if that is null.
  // `restores`: ranks wait for the piece.
  void chosen(const Machine& machine, std::uint64_t agent, const core::StartFetch& order, bool restores,
              const core::RepeatedUpdates::Held* base);
  // The agent has repeated the update on the piece in the slot `base`. The result has the digest `bytes`.
  void repeated(const Transfer& transfer, const UpdateRecord& record, const Slot& base, std::uint64_t bytes,
                core::RepeatEnd end);
  void missing() { ++missing_; }  // it could not repeat the update

  std::uint64_t equal() const { return equal_; }
  std::uint64_t in_vain() const { return in_vain_; }
  std::uint64_t missed() const { return missing_; }

 private:
  World& world_;
  // By agent and shard: how many repeated updates in a row have given other bytes.
  std::map<std::pair<std::uint64_t, std::string>, std::uint32_t> vain_;
  std::uint64_t equal_ = 0, in_vain_ = 0, missing_ = 0;
};

}  // namespace ckpt::sim
