#include "net/link.hpp"

#include <cassert>
#include <chrono>
#include <cstring>
#include <utility>

namespace ckpt::net {

namespace {

// The most bytes of messages and manifests that one peer may have under way to us.
constexpr std::size_t incoming_bytes_max = 2 * wire::manifest_bytes_max;

}  // namespace

std::int64_t now_ms() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

void Link::expect(PeerId peer, std::uint64_t instance) {
  peer_ = peer;
  peer_instance_ = instance;
}

void Link::prove(const Session& session) {
  const Side side = outgoing_ ? Side::asker : Side::answerer;
  session_ = session;
  seal_out_ = seal_of(session, side);
  seal_in_ = seal_of(session, other(side));
  proven_ = true;
  note_progress();
  for (const auto& work : std::exchange(waiting_, {})) work();
}

void Link::when_proven(std::function<void()> work) {
  if (failed_) return;
  if (proven_) {
    work();
  } else {
    waiting_.push_back(std::move(work));
  }
}

void Link::send_bytes(wire::Kind kind, std::span<const std::byte> header, std::span<const std::byte> payload,
                      std::shared_ptr<const void> keep, Done done) {
  if (failed_ || !is_open()) {
    if (done) done(false);
    return;
  }
  Header sealed;
  const std::size_t seal_bytes = kind == wire::kind_hello ? 0 : sizeof(seal_out_);
  sealed.size_bytes = seal_bytes + header.size();
  assert(sealed.size_bytes <= sealed.bytes.size());
  std::memcpy(sealed.bytes.data(), &seal_out_, seal_bytes);
  if (!header.empty()) std::memcpy(sealed.bytes.data() + seal_bytes, header.data(), header.size());
  transmit(kind, sealed, payload, std::move(keep), std::move(done));
}

bool Link::unseal(Arrival& arrival) const {
  std::uint64_t seal = 0;
  if (!proven_ || arrival.header.size() < sizeof seal) return false;
  std::memcpy(&seal, arrival.header.data(), sizeof seal);
  arrival.header = arrival.header.subspan(sizeof seal);
  return seal == seal_in_;
}

void Link::receive(Arrival& arrival, std::span<std::byte> memory, Done done) {
  assert(memory.size() == arrival.payload_bytes && !arrival.taken);
  if (!arrival.to_receive) {
    if (!memory.empty()) std::memcpy(memory.data(), arrival.payload, memory.size());
    note_progress();
    done(true);
    return;
  }
  arrival.taken = true;
  receive_rest(arrival, memory, std::move(done));
}

void Link::read(Arrival& arrival, std::function<void(std::span<const std::byte>)> then) {
  if (!arrival.to_receive) {
    note_progress();
    then(arrival.bytes());
    return;
  }
  const std::size_t size_bytes = arrival.payload_bytes;
  if (size_bytes > incoming_bytes_max - incoming_bytes_) return;
  incoming_bytes_ += size_bytes;
  auto bytes = std::make_shared<std::vector<std::byte>>(size_bytes);
  receive(arrival, *bytes, [this, bytes, size_bytes, then = std::move(then)](bool ok) {
    incoming_bytes_ -= size_bytes;
    if (ok) then(*bytes);
  });
}

void Link::retire() {
  retired_ = true;
  fail(FetchEnd::peer_failed);
}

void Link::fail(FetchEnd reason) {
  if (std::exchange(failed_, true)) return;
  failure_ = reason;
  if (!closed_) ++failures_;
}

void Link::check_progress(std::int64_t timeout_ms) {
  if (!idle() && now_ms() - progressed_at_ms_ > timeout_ms) fail(FetchEnd::timed_out);
}

void Link::close() {
  waiting_.clear();
  if (std::exchange(closed_, true)) return;
  if (failed_) --failures_;
  shut();
}

}  // namespace ckpt::net
