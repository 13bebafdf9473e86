// Session is the secret that two nodes share after their handshake. With it, each node proves later that a connection,
// and each frame on it, comes from that node.
//
// A session is for one connection only. Its key is never sent. The hello on the connection proves that its sender has
// the key. Each later header begins with a seal: here, a number derived from the key. A frame without the right seal is
// dropped, because somebody else has injected it.
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
  std::uint64_t id = 0;             // names the session; reveals nothing about the key
  PeerId peer = 0;                  // the other node
  std::uint64_t peer_instance = 0;  // the id of its arena
};

// Adds to `hello` the session's id, and the proof that `side` sends it.
void prove(const Session& session, Side side, wire::Hello& hello);
// True if `hello` has the proof that `side` of this session sent it.
bool proves(const Session& session, Side side, const wire::Hello& hello);

// The seal with which the headers from `side` begin.
std::uint64_t seal_of(const Session& session, Side side);

}  // namespace ckpt::net
