#include "net/session.hpp"

#include <string_view>

namespace ckpt::net {
namespace {

std::span<const std::byte> label(std::string_view text) { return std::as_bytes(std::span(text)); }

Mac proof_of(const Session& session, Side side, const wire::Hello& hello) {
  wire::Hello bare = hello;
  bare.proof = {};
  return mac_of(session.key, {label(side == Side::asker ? "hello, asker" : "hello, answerer"), wire::bytes_of(bare)});
}

}  // namespace

void prove(const Session& session, Side side, wire::Hello& hello) {
  hello.session = session.id;
  hello.proof = proof_of(session, side, hello);
}

bool proves(const Session& session, Side side, const wire::Hello& hello) {
  return hello.session == session.id && equal(hello.proof, proof_of(session, side, hello));
}

std::uint64_t seal_of(const Session& session, Side side) {
  const Mac mac = mac_of(session.key, {label(side == Side::asker ? "seal, asker" : "seal, answerer")});
  std::uint64_t seal = 0;
  std::memcpy(&seal, mac.data(), sizeof seal);
  return seal;
}

}  // namespace ckpt::net
