// Transfers moves pieces between simulated nodes and from storage, and encodes and decodes parity. A transfer pins the
// slots that it reads, takes some time, and verifies the piece on arrival. It fails if the sender or the receiver dies,
// freezes, or is cut off for longer than the real transport waits. Not thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "core/events.hpp"
#include "sim/event_queue.hpp"
#include "sim/memory.hpp"

namespace ckpt::sim {

class Agent;
struct Machine;
class World;

// A piece that a transfer reads.
struct Reading {
  NodeId node = 0;
  std::uint64_t agent = 0;
  SlotRef slot;
};

struct Transfer {
  NodeId to = 0;
  std::uint64_t to_agent = 0;
  core::StartFetch order;
  std::vector<Reading> readings;     // what it reads now; empty if no node serves it
  bool flip = false;                 // a bit flips on the wire
  bool has_begun = false;            // its source has the piece, or has begun to receive it
  bool is_slow = false;              // it takes longer than any node waits for another one
  std::optional<SlotRef> base = {};  // the piece on which it repeats an update
  bool is_wrong = false;             // the node computes something else than the owner did

  bool reads_from(NodeId node) const;
};

class Transfers {
 public:
  explicit Transfers(World& world) : world_(world) {}

  void start(Machine& to, Agent& agent, const core::StartFetch& order);
  void cancel(NodeId to, std::uint64_t agent, std::uint64_t fetch);
  void agent_died(NodeId node, std::uint64_t agent);
  void forget_everything();

  const std::map<std::uint64_t, Transfer>& active() const { return active_; }
  void flip_bit(std::uint64_t transfer) { active_.at(transfer).flip = true; }
  void compute_wrong(std::uint64_t transfer) { active_.at(transfer).is_wrong = true; }

 private:
  void serve(std::uint64_t id, TimeMs waited_ms);
  void arrive(std::uint64_t id, TimeMs waited_ms);
  void read_stored(std::uint64_t id);
  void choose_base(Machine& to, Agent& agent, Transfer& transfer);
  void release_base(Transfer& transfer);
  void repeat(std::uint64_t id);
  bool flows(NodeId from, const Transfer& transfer) const;
  bool flows(const Transfer& transfer) const;
  bool is_broken(const Transfer& transfer) const;
  enum class Availability { all, not_yet, arriving, coming, not_there };
  Availability find_arriving(const Transfer& transfer) const;
  bool is_coming(const Transfer& arriving) const;
  bool restores(const Transfer& transfer) const;
  void note_end(const Transfer& transfer, core::FetchResult result);
  void look_again(std::uint64_t id, TimeMs waited_ms);
  Availability find_sources(const Transfer& transfer, std::vector<Reading>& readings) const;
  bool has_input(const Transfer& transfer, const core::CodingInputs::Source& input) const;
  bool find_source(const Transfer& transfer, const std::string& shard, const std::vector<NodeId>& nodes,
                   std::vector<Reading>& readings) const;
  std::uint64_t bytes_read(const Transfer& transfer, const PieceInfo& piece) const;
  void finish(std::uint64_t id, const PieceInfo& piece, std::uint64_t bytes);
  void stop_serving(Transfer& transfer);
  void end_after(TimeMs delay_ms, std::uint64_t id, core::FetchResult result, const PieceInfo& made = {});
  void end(std::uint64_t id, core::FetchResult result, const PieceInfo& made);

  // A piece on one agent: the agent's id, the shard, the checkpoint.
  using PieceOfAgent = std::tuple<std::uint64_t, std::string, CheckpointId>;
  static PieceOfAgent piece_of(const Transfer& transfer);

  World& world_;
  std::map<std::uint64_t, Transfer> active_;
  std::set<PieceOfAgent> failed_;               // pieces of which a transfer has failed, until one is complete
  std::map<std::uint64_t, TimeMs> arrived_at_;  // by agent: when a piece to restore arrived or was ordered
  std::uint64_t next_ = 1;
};

}  // namespace ckpt::sim
