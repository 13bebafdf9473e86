#include "client/arriving_slots.hpp"

#include <nlohmann/json.hpp>

#include "base/error.hpp"

namespace ckpt::client {

ArrivingSlots take_arriving(Frame answer) {
  try {
    ArrivingSlots arriving;
    arriving.incarnation = answer.body.at("incarnation").get<std::uint64_t>();
    for (const auto& piece : answer.body.at("arriving")) {
      const auto fd = piece.at("fd").get<std::size_t>();
      const auto slot = piece.at("slot").get<std::uint32_t>();
      const auto checkpoint = CheckpointId::from_word(piece.at("checkpoint").get<std::uint64_t>());
      const bool is_private = piece.at("private").get<bool>(), is_whole = piece.at("whole").get<bool>();
      if (fd >= answer.fds.size() || !answer.fds[fd])
        throw Failure(CKPT_ERR_INTERNAL,
                      "the agent's answer to restore lacks the segment of a piece that arrives: this is a bug in "
                      "ckptengine; report it with the agent's log");
      try {
        auto segment = arena::Segment::attach(std::move(answer.fds[fd]), arena::Segment::Access::read,
                                              "a segment that the agent sent");
        if (slot < segment.slots())
          arriving.slots.push_back({std::move(segment), slot, checkpoint, is_private, is_whole});
      } catch (const Failure&) {
        // The piece is loaded once all of it is here.
      }
    }
    return arriving;
  } catch (const nlohmann::json::exception& error) {
    throw Failure(CKPT_ERR_INTERNAL, std::string("the agent's answer to restore is not understood (") + error.what() +
                                         "); run ckptd and libckptengine of one version");
  }
}

}  // namespace ckpt::client
