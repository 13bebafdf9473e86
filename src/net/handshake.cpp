#include "net/handshake.hpp"

#include <string_view>

namespace ckpt::net {
namespace {

constexpr std::uint32_t magic = 0x44504b43;  // "CKPD"
constexpr std::size_t place_bytes_max = 64;

// All fields are little-endian, naturally aligned and without holes. Unused bytes are zero.
struct Preamble {
  std::uint32_t magic = net::magic;
  std::uint32_t version = wire::version;
};

struct Introduction {
  std::uint64_t job_hash = 0;
  std::uint32_t from_node = 0;
  std::uint32_t to_node = 0;
  std::uint64_t from_instance = 0;
  std::uint64_t to_instance = 0;
  Nonce nonce = {};
};

struct Greeting {
  std::uint32_t magic = net::magic;
  std::uint32_t version = wire::version;
  Refusal refusal = Refusal::none;
  std::uint32_t zero = 0;
};

struct Verdict {
  Refusal refusal = Refusal::none;
  std::uint32_t zero = 0;
};

struct Welcome {
  std::array<char, place_bytes_max> place = {};
  Mac proof = {};
};

static_assert(sizeof(Preamble) == 8 && sizeof(Introduction) == 64 && sizeof(Greeting) == 16 && sizeof(Verdict) == 8 &&
              sizeof(Welcome) == 96);

using Bytes = std::vector<std::byte>;

void append(Bytes& to, std::span<const std::byte> bytes) {
  const std::size_t before_bytes = to.size();
  to.resize(before_bytes + bytes.size());
  std::memcpy(to.data() + before_bytes, bytes.data(), bytes.size());
}

template <class T>
void append(Bytes& to, const T& value) {
  append(to, wire::bytes_of(value));
}

template <class T>
Bytes bytes_of(const T& value) {
  const auto bytes = wire::bytes_of(value);
  return {bytes.begin(), bytes.end()};
}

std::span<const std::byte> text(std::string_view of) { return std::as_bytes(std::span(of)); }

// Labels of equal length, so that none is the beginning of another.
constexpr std::string_view label_asker = "ckptengine asks.";
constexpr std::string_view label_answerer = "ckptengine opens";
constexpr std::string_view label_session = "ckptengine keeps";
static_assert(label_asker.size() == label_answerer.size() && label_asker.size() == label_session.size());

// The HMAC over `label`, the job's name and `said`. No other list of parts has the same bytes: the length of the job's
// name comes before the name, and all other parts have fixed sizes.
Mac mac_over(std::string_view label, const Identity& self, const Bytes& said) {
  const std::uint64_t job_bytes = self.job.size();
  return mac_of(text(self.token), {text(label), wire::bytes_of(job_bytes), text(self.job), said});
}

Session session_of(const Identity& self, const Bytes& said, PeerId peer, std::uint64_t peer_instance) {
  Session session;
  session.key = mac_over(label_session, self, said);
  const Mac name = mac_of(session.key, {text("id")});
  std::memcpy(&session.id, name.data(), sizeof session.id);
  session.peer = peer;
  session.peer_instance = peer_instance;
  return session;
}

std::optional<Mac> mac_in(std::span<const std::byte> frame) { return wire::decode<Mac>(frame); }

// The place as text. Nothing if the bytes after the text are not all zero.
std::optional<std::string> place_in(const Welcome& welcome) {
  const std::string_view all(welcome.place.data(), welcome.place.size());
  const std::string_view place = all.substr(0, all.find('\0'));
  if (place.empty() || all.find_first_not_of('\0', place.size()) != std::string_view::npos) return std::nullopt;
  return std::string(place);
}

Refusal refusal_in(Refusal received) { return received < Refusal::unknown ? received : Refusal::unknown; }

}  // namespace

const char* to_text(Refusal refusal) {
  switch (refusal) {
    case Refusal::none:
      return "is welcome";
    case Refusal::nonsense:
      return "does not speak the protocol";
    case Refusal::version:
      return "speaks another version of the protocol; run ckptd of one version on all nodes";
    case Refusal::job:
      return "is of another job";
    case Refusal::token:
      return "does not have the job's token";
    case Refusal::node:
      return "expects another node at this address";
    case Refusal::other_instance:
      return "knows only a former arena of this node; it tries again once it has read this node's new record";
    case Refusal::unknown:
      break;
  }
  return "refuses for a reason that this version does not know; run ckptd of one version on all nodes";
}

Asking::Asking(const Identity& self, PeerId peer, std::uint64_t peer_instance, const Nonce& nonce)
    : self_(self), peer_(peer), peer_instance_(peer_instance) {
  append(said_, Preamble{});
  append(said_, Introduction{wire::job_hash(self.job), self.node, peer, self.instance, peer_instance, nonce});
}

std::vector<std::byte> Asking::opening() { return said_; }

std::size_t Asking::due_bytes() const {
  switch (due_) {
    case Due::greeting:
      return sizeof(Greeting);
    case Due::nonce:
      return sizeof(Nonce);
    case Due::verdict:
      return sizeof(Verdict);
    case Due::welcome:
      return sizeof(Welcome);
    case Due::nothing:
      break;
  }
  return 0;
}

std::vector<std::byte> Asking::refuse(Refusal refusal) {
  refusal_ = refusal;
  due_ = Due::nothing;
  return {};
}

std::vector<std::byte> Asking::take(std::span<const std::byte> frame) {
  if (due_ == Due::nothing || frame.size() != due_bytes()) return refuse(Refusal::nonsense);
  switch (due_) {
    case Due::greeting: {
      const auto greeting = *wire::decode<Greeting>(frame);
      if (greeting.magic != magic || greeting.zero != 0) return refuse(Refusal::nonsense);
      peer_version_ = greeting.version;
      if (greeting.version != wire::version) return refuse(Refusal::version);
      if (greeting.refusal != Refusal::none) return refuse(refusal_in(greeting.refusal));
      append(said_, frame);
      due_ = Due::nonce;
      return {};
    }
    case Due::nonce: {
      append(said_, frame);
      const Mac proof = mac_over(label_asker, self_, said_);
      append(said_, proof);
      due_ = Due::verdict;
      return bytes_of(proof);
    }
    case Due::verdict: {
      const auto verdict = *wire::decode<Verdict>(frame);
      if (verdict.zero != 0) return refuse(Refusal::nonsense);
      if (verdict.refusal != Refusal::none) return refuse(refusal_in(verdict.refusal));
      append(said_, frame);
      due_ = Due::welcome;
      return {};
    }
    case Due::welcome:
    case Due::nothing:
      break;
  }
  const auto welcome = *wire::decode<Welcome>(frame);
  const auto place = place_in(welcome);
  if (!place) return refuse(Refusal::nonsense);
  append(said_, welcome.place);
  if (!equal(welcome.proof, mac_over(label_answerer, self_, said_))) return refuse(Refusal::token);
  place_ = *place;
  session_ = session_of(self_, said_, peer_, peer_instance_);
  due_ = Due::nothing;
  return {};
}

Answering::Answering(const Identity& self, const std::string& place, const Nonce& nonce)
    : self_(self), place_(place.substr(0, place_bytes_max)), nonce_(nonce) {}

std::size_t Answering::due_bytes() const {
  switch (due_) {
    case Due::preamble:
      return sizeof(Preamble);
    case Due::introduction:
      return sizeof(Introduction);
    case Due::proof:
      return sizeof(Mac);
    case Due::nothing:
      break;
  }
  return 0;
}

std::vector<std::byte> Answering::take(std::span<const std::byte> frame) {
  if (due_ == Due::nothing || frame.size() != due_bytes()) return refuse(Refusal::nonsense);
  switch (due_) {
    case Due::preamble: {
      const auto preamble = *wire::decode<Preamble>(frame);
      if (preamble.magic != magic) return refuse(Refusal::nonsense);
      if (preamble.version != wire::version) return refuse(Refusal::version);
      append(said_, frame);
      due_ = Due::introduction;
      return {};
    }
    case Due::introduction:
      return greet(frame);
    case Due::proof:
      return judge(frame);
    case Due::nothing:
      break;
  }
  return {};
}

std::vector<std::byte> Answering::greet(std::span<const std::byte> frame) {
  if (wire::decode<Introduction>(frame)->job_hash != wire::job_hash(self_.job)) return refuse(Refusal::job);
  append(said_, frame);
  Bytes answer = bytes_of(Greeting{});
  append(answer, nonce_);
  append(said_, std::span<const std::byte>(answer));
  due_ = Due::proof;
  return answer;
}

std::vector<std::byte> Answering::judge(std::span<const std::byte> frame) {
  const auto proof = *mac_in(frame);
  if (!equal(proof, mac_over(label_asker, self_, said_))) return refuse(Refusal::token);
  Introduction introduction;
  std::memcpy(&introduction, said_.data() + sizeof(Preamble), sizeof introduction);
  if (introduction.to_node != self_.node) return refuse(Refusal::node);
  if (introduction.to_instance != self_.instance) return refuse(Refusal::other_instance);
  append(said_, frame);
  append(said_, Verdict{});
  Welcome welcome;
  place_.copy(welcome.place.data(), welcome.place.size());
  append(said_, welcome.place);
  welcome.proof = mac_over(label_answerer, self_, said_);
  session_ = session_of(self_, said_, introduction.from_node, introduction.from_instance);
  due_ = Due::nothing;
  Bytes answer = bytes_of(Verdict{});
  append(answer, welcome);
  return answer;
}

// A peer that does not speak the protocol gets no answer.
std::vector<std::byte> Answering::refuse(Refusal refusal) {
  const bool is_proof = due_ == Due::proof;
  due_ = Due::nothing;
  refusal_ = refusal;
  if (refusal == Refusal::nonsense) return {};
  return is_proof ? bytes_of(Verdict{refusal}) : bytes_of(Greeting{magic, wire::version, refusal, 0});
}

}  // namespace ckpt::net
