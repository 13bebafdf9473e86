// Makes the answers to a trainer that waits for its state: what it restores, and what is arriving. They carry the
// descriptors of the segments. All functions throw Failure.
#pragma once

#include <string>
#include <vector>

#include "agent/pieces/piece_index.hpp"
#include "agent/pieces/segments.hpp"
#include "agent/trainers/arrivals.hpp"
#include "agent/trainers/trainer_requests.hpp"
#include "core/events.hpp"

namespace ckpt::agent {

// Returns a copy of a descriptor, to send to a trainer.
UniqueFd duplicate(int fd);

// The pieces that the core names are in `index`.
Reply restore_reply(const core::RestoreReady& ready, const PieceIndex& index);
// `main_shard`: the rank's. `incarnation`: the one that restores the pieces. Leaves out slots whose segment is gone.
Reply arrivals_reply(core::Rank rank, const std::string& main_shard, std::uint64_t incarnation,
                     const std::vector<Arrivals::News>& arrivals, const Segments& segments);

}  // namespace ckpt::agent
