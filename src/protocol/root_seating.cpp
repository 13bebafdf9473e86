// What the root knows of who sits where: it wrote that itself, or reads it from the store.
#include <algorithm>
#include <utility>

#include "protocol/root.hpp"

namespace ckpt::protocol {

void Root::on(const SeatsRead& read) {
  if (!life_ || read.name != life_->seats) return;
  if (is_named(read.name, read.seats)) return seat({read.name.life, read.seats});
  seats_vanished_ = true;
}

// Asks again after a while: what it asked for may have been removed for a life that it has yet to hear of. Where none
// comes they are lost, or the record is an older one again: then nobody is known to have been a member.
bool Root::settle_seating(TimeMs now, Effects& effects) {
  if (knows_seating()) return true;
  if (drafted_.name() == life_->seats) {
    seat(std::exchange(drafted_, {}));
    effects.push_back(RemoveSeats{life_->seats.life});
    return true;
  }
  if (std::exchange(seats_vanished_, false) && give_up_seats(now, effects)) return true;
  if (!seats_asked_at_ || now - *seats_asked_at_ >= config_.lease_ms) {
    seats_asked_at_ = now;
    effects.push_back(ReadSeats{life_->seats});
  }
  return false;
}

bool Root::give_up_seats(TimeMs now, Effects& effects) {
  if (vanished_seats_ != life_->seats) {
    vanished_seats_ = life_->seats;
    vanished_since_ = now;
  }
  if (now - vanished_since_ < config_.node_wait_ms) return false;
  seat({});
  given_up_seats_ = life_->seats;
  effects.push_back(Notice{"the coordination store lost the records of who sat where in life " +
                           std::to_string(life_->seats.life) +
                           " of the job, or has an older record of it; the job goes on with a new life"});
  return true;
}

void Root::seat(Seating seating) {
  note_released(seating.members());
  seating_ = std::move(seating);
  seats_asked_at_.reset();
  vanished_seats_ = {};
}

// The ranks as they sit now, by rank. `cuts` of the version that they restore, by shard.
std::vector<Seat> Root::seats_now(const std::vector<Cut>& cuts) const {
  std::vector<Seat> seats;
  seats.reserve(bindings_.size());
  for (const auto& [rank, binding] : bindings_) {
    const Report& report = binding.peer->report;
    const Cut* cut = find_cut(cuts, binding.rank.main_shard);
    seats.push_back({rank, binding.node, report.arena_id, report.domain, binding.rank.main_shard,
                     binding.rank.private_shard, cut == nullptr ? 1 : cut->of, binding.rank.wants_path});
  }
  return seats;
}

}  // namespace ckpt::protocol
