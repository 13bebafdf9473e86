// What two nodes have in common after their handshake, and what they make of it.
//
// A session opens one connection, once. Its key is never sent: the hello on that connection proves it, and each
// header after that begins with a seal made of it, so that frames of others that get into the connection are dropped.
//
// Pure; thread-safe as plain values are.
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
  std::uint64_t id = 0;  // names the session; says nothing of the key
  PeerId peer = 0;
  std::uint64_t peer_instance = 0;
};

// Completes `hello`, as `side` says it.
void prove(const Session& session, Side side, wire::Hello& hello);
// Whether `hello` was completed by `side` of this session.
bool proves(const Session& session, Side side, const wire::Hello& hello);

// What the headers that `side` sends begin with.
std::uint64_t seal_of(const Session& session, Side side);

}  // namespace ckpt::net
