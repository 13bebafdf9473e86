// The handshake at the listener: what unauthenticated peers send to it, what unauthenticated peers answer to it, and
// what becomes of a handshake of two members when somebody between them changes bytes.
//
// An input is a byte that says which, then bytes of the frames as they come, or what to change in them (exclusive or).
#include <algorithm>

#include "fuzz/fuzz.hpp"
#include "net/handshake.hpp"

namespace ckpt::fuzz {
namespace {

using namespace net;
using Bytes = std::vector<std::byte>;

constexpr std::size_t frame_bytes_max = 128;

Nonce nonce_of(int value) {
  Nonce nonce;
  nonce.fill(static_cast<std::byte>(value));
  return nonce;
}

Identity member(PeerId node) { return {"job", "token", node, node * 100ull}; }
Asking asking() { return Asking(member(2), 1, 100, nonce_of(1)); }
Answering answering() { return Answering(member(1), "127.0.0.1:4242", nonce_of(2)); }

Input take(Input& from, std::size_t size_bytes) {
  const Input taken = from.first(std::min(size_bytes, from.size()));
  from = from.subspan(taken.size());
  return taken;
}

// Nobody can guess a code.
void try_unauthenticated_peer(Handshake& handshake, Input input) {
  while (const std::size_t due_bytes = handshake.due_bytes()) {
    require(due_bytes <= frame_bytes_max);
    if (input.size() < due_bytes) break;
    require(handshake.take(take(input, due_bytes)).size() <= frame_bytes_max);
  }
  require(!handshake.session());
}

// One frame from `said` to `to`, changed by `mask`; whether there was one.
bool deliver(Bytes& said, Handshake& to, Bytes& answers, Input& mask, bool& changed) {
  const std::size_t due_bytes = to.due_bytes();
  if (due_bytes == 0 || said.size() < due_bytes) return false;
  Bytes frame(said.begin(), said.begin() + static_cast<std::ptrdiff_t>(due_bytes));
  said.erase(said.begin(), said.begin() + static_cast<std::ptrdiff_t>(due_bytes));
  const Input changes = take(mask, due_bytes);
  for (std::size_t i = 0; i < changes.size(); ++i) {
    changed |= changes[i] != std::byte{0};
    frame[i] ^= changes[i];
  }
  const Bytes answer = to.take(frame);
  answers.insert(answers.end(), answer.begin(), answer.end());
  return true;
}

void try_between(Input mask) {
  Asking asker = asking();
  Answering answerer = answering();
  Bytes to_answerer = asker.opening(), to_asker;
  bool changed = false;
  bool answerer_was_deceived = false;
  for (bool any = true; any;) {
    any = deliver(to_answerer, answerer, to_asker, mask, changed);
    answerer_was_deceived |= changed && !answerer.session();
    any |= deliver(to_asker, asker, to_answerer, mask, changed);
  }
  require(asker.session().has_value() == !changed);
  if (answerer_was_deceived) require(!answerer.session());
  if (!changed) require(answerer.session() && answerer.session()->key == asker.session()->key);
}

}  // namespace

void try_input(Input input) {
  if (input.empty()) return;
  const auto which = static_cast<unsigned>(input[0]) % 3;
  input = input.subspan(1);
  if (which == 0) {
    Answering listener = answering();
    try_unauthenticated_peer(listener, input);
  } else if (which == 1) {
    Asking asker = asking();
    try_unauthenticated_peer(asker, input);
  } else {
    try_between(input);
  }
}

std::vector<std::string> seeds() {
  Asking asker = asking();
  Answering listener = answering();
  const Bytes opening = asker.opening();
  listener.take(Input(opening).first(8));
  const Bytes greeting = listener.take(Input(opening).subspan(8));
  return {std::string(1, '\0') + text_of(opening) + std::string(32, 'x'),
          std::string(1, '\1') + text_of(greeting) + std::string(104, '\0'), std::string(1, '\2'),
          std::string(1, '\2') + std::string(200, '\0') + "x",
          std::string(1, '\2') + std::string(8 + 64 + 16 + 32 + 32 + 8, '\0') + std::string(64, '\1')};
}

}  // namespace ckpt::fuzz
