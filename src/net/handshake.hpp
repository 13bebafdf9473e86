// Handshake lets two nodes prove to each other that they have the job's token. It runs on a TCP connection of our own.
// With TCP, the same connection then carries the data. With UCX, this connection ends, and UCX makes another one.
//
//    asker                                                    answerer (the listener)
//    preamble 8 bytes    magic, version           -->
//    introduction    64 bytes   job, nodes, instances, nonce -->
//                                                 <--  greeting  16 bytes  magic, version, refusal
//                                                 <--  nonce     32 bytes  unless refused
//    proof    32 bytes   HMAC of all before       -->
//                                                 <--  verdict    8 bytes  refusal
//                                                 <--  welcome   96 bytes  unless refused: place, HMAC of all before
//
// An instance is the id of a node's arena: a node that comes back with a new arena is another instance. The place says
// where the two nodes go on: on this connection, or at the address of the answerer's UCX. Preamble and greeting are the
// same in all versions, so nodes of different versions can say that they differ. Each HMAC covers the sender's role,
// the job's name and everything said before. Each side contributes a fresh nonce. So nobody can replay an HMAC later,
// in the other direction or in another job. Only a peer with the token learns the place. An unexpected frame ends the
// handshake.
//
// A Handshake does no I/O: its caller passes in the bytes that arrive, and sends the bytes that it returns. Not
// thread-safe.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "net/session.hpp"

namespace ckpt::net {

using Nonce = std::array<std::byte, 32>;

// A node, as it introduces itself in a handshake.
struct Identity {
  std::string job;
  std::string token;           // the job's secret; never sent
  PeerId node = 0;             // the node's number
  std::uint64_t instance = 0;  // id of the node's arena (TransportOptions::node_instance)
};

// Why a node refuses its peer. It tells `node` and `other_instance` only to a peer that has the token.
enum class Refusal : std::uint32_t {
  none = 0,
  nonsense = 1,        // the peer does not speak this protocol; never sent
  version = 2,         // the peer speaks another version of this protocol
  job = 3,             // the peer is of another job
  token = 4,           // the peer has not proven that it has the token
  node = 5,            // the peer wants to talk to another node
  other_instance = 6,  // the peer wants to talk to this node, but with another arena
  unknown = 7          // stands for a refusal that this version does not know; never sent
};

// Returns the end of a sentence that begins with the refused side: "does not have the job's token".
const char* to_text(Refusal refusal);

// One side of a handshake.
class Handshake {
 public:
  virtual ~Handshake() = default;
  // Returns what this side sends before it has received anything. May be empty.
  virtual std::vector<std::byte> opening() { return {}; }
  // Returns the size of the next frame from the other side, or 0 when the handshake is over.
  virtual std::size_t due_bytes() const = 0;
  // Takes the next frame, of due_bytes() bytes. Returns the answer to send; may be empty.
  virtual std::vector<std::byte> take(std::span<const std::byte> frame) = 0;

  // Why one side has refused the other; Refusal::none if neither has.
  Refusal refusal() const { return refusal_; }
  // Set once the other side has proven that it has the token, and neither side has refused.
  const std::optional<Session>& session() const { return session_; }

 protected:
  Refusal refusal_ = Refusal::none;
  std::optional<Session> session_;
};

// The side that dials, to talk to the node `peer` whose arena has the id `peer_instance`.
class Asking final : public Handshake {
 public:
  Asking(const Identity& self, PeerId peer, std::uint64_t peer_instance, const Nonce& nonce);
  std::vector<std::byte> opening() override;
  std::size_t due_bytes() const override;
  std::vector<std::byte> take(std::span<const std::byte> frame) override;

  // Where to go on: on this connection ("stream"), or at this address of the peer's UCX. Set together with session().
  const std::string& place() const { return place_; }
  // The version that the other side speaks; 0 until it has said so.
  std::uint32_t peer_version() const { return peer_version_; }

 private:
  enum class Due { greeting, nonce, verdict, welcome, nothing };
  std::vector<std::byte> refuse(Refusal refusal);

  const Identity self_;
  const PeerId peer_;
  const std::uint64_t peer_instance_;
  std::vector<std::byte> said_;  // all that both sides have said, in order
  Due due_ = Due::greeting;
  std::string place_;
  std::uint32_t peer_version_ = 0;
};

// The side that listens. `place` is what Asking::place() returns on the other side.
class Answering final : public Handshake {
 public:
  Answering(const Identity& self, const std::string& place, const Nonce& nonce);
  std::size_t due_bytes() const override;
  std::vector<std::byte> take(std::span<const std::byte> frame) override;

 private:
  enum class Due { preamble, introduction, proof, nothing };
  std::vector<std::byte> greet(std::span<const std::byte> frame);
  std::vector<std::byte> judge(std::span<const std::byte> frame);
  std::vector<std::byte> refuse(Refusal refusal);

  const Identity self_;
  const std::string place_;
  const Nonce nonce_;
  std::vector<std::byte> said_;
  Due due_ = Due::preamble;
};

}  // namespace ckpt::net
