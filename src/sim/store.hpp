// The coordination store: two records, each with a revision that grows by one with every write, changed by
// compare-and-swap, and the seats of lives, in records of which few are enough here to make several. What is asked
// during an outage is answered after it, whether it was carried out before or after. Answers to one node keep their
// order. Not thread-safe.
#pragma once

#include <functional>
#include <map>
#include <vector>

#include "protocol/events.hpp"
#include "protocol/seating.hpp"
#include "sim/random.hpp"
#include "sim/timeline.hpp"

namespace ckpt::sim {

using protocol::NodeId;

class Store {
 public:
  using Answer = std::function<void(const protocol::Event& read)>;
  using RootWritten = std::function<void(NodeId by, const protocol::RootRead& now)>;
  using LifeWritten = std::function<void(const protocol::LifeRead& before, const protocol::LifeRead& now)>;

  Store(Timeline& timeline, Random random, RootWritten root_written);

  // Each ends in one call of `answer` with the record as it then is.
  void read_root(NodeId by, Answer answer);
  void read_life(NodeId by, Answer answer);
  void swap(NodeId by, const protocol::SwapRoot& swap, Answer answer);
  // Of a life whose seats are written. Writing them comes before, a record at a time, and ends in a call of `done`.
  void swap(NodeId by, const protocol::SwapLife& swap, LifeWritten written, Answer answer);
  static constexpr std::size_t seats_per_record = 3;
  void write_seats(NodeId by, const protocol::SeatsName& name, std::size_t number, std::vector<protocol::Seat> seats,
                   std::function<void()> done);
  void read_seats(NodeId by, const protocol::SeatsName& name, Answer answer);
  void remove_seats(NodeId by, const protocol::RemoveSeats& removal);

  const protocol::RootRead& root() const { return root_; }
  const protocol::LifeRead& life() const { return life_; }
  protocol::Seating seating(const protocol::SeatsName& name) const;

  void outage(TimeMs duration_ms);
  bool is_out() const { return timeline_.now() < out_until_; }
  TimeMs answers_since(NodeId node) const;        // in the future while it does not
  void cut_off(NodeId node, TimeMs duration_ms);  // an outage for one node
  void lose_answers(int swaps);                   // the next so many swaps succeed or fail unheard for a while
  // One record is gone, or again what it was some writes ago. Tells which.
  enum class Spoiled { nothing, root, life };
  Spoiled lose_record();
  Spoiled take_back_record();
  void clear();  // all records are removed, and all requests forgotten

 private:
  void ask(NodeId by, bool is_swap, std::function<void()> apply, std::function<void()> answer);
  std::vector<protocol::Seat> seats_of(const protocol::SeatsName& name) const;
  TimeMs outage_left(NodeId by) const;

  Timeline& timeline_;
  Random random_;
  RootWritten root_written_;
  protocol::RootRead root_;
  protocol::LifeRead life_;
  std::vector<protocol::RootRead> former_roots_;
  std::vector<protocol::LifeRead> former_lives_;
  std::map<protocol::SeatsName, std::map<std::size_t, std::vector<protocol::Seat>>> seats_;  // by number
  // A node's requests go through one connection: carried out and answered in order.
  struct Connection {
    TimeMs applied_at = 0;
    TimeMs answered_at = 0;
    TimeMs late_until = 0;  // an answer that took long held up all that came after it
  };
  std::map<NodeId, Connection> connections_;
  std::map<NodeId, TimeMs> cut_off_until_;
  TimeMs out_until_ = 0;
  int lost_answers_ = 0;
  int era_ = 0;
};

}  // namespace ckpt::sim
