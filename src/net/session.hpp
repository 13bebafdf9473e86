// Session is the secret that two nodes share after their handshake. With it they prove later that a connection and its
// frames are theirs.
//
// A session serves for one connection only. Its key is never sent. The hello on the connection proves that its sender
// has the key. Each later header begins with a seal, a number derived from the key. So frames that others inject are
// dropped.
//
// Plain values and pure functions; thread-safe.
#pragma once

#include <cstdint>
#include <optional>

#include "net/mac.hpp"
#include "net/transport.hpp"
#include "net/wire.hpp"

namespace ckpt::net {

enum class Side : std::uint8_t { asker, answerer };
inline Side other(Side side) { return side == Side::asker ? Side::answerer : Side::asker; }

struct Session {
  Mac key = {};
  std::uint64_t id = 0;  // names the session; reveals nothing about the key
  PeerId peer = 0;
  std::uint64_t peer_instance = 0;
};

// Completes `hello` with the proof of `side`.
void prove(const Session& session, Side side, wire::Hello& hello);
// True if `hello` was completed by `side` of this session.
bool proves(const Session& session, Side side, const wire::Hello& hello);

// The seal with which the headers from `side` begin.
std::uint64_t seal_of(const Session& session, Side side);

}  // namespace ckpt::net
