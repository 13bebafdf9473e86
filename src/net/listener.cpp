#include "net/listener.hpp"

#include <netinet/in.h>
#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <exception>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "base/thread.hpp"

namespace ckpt::net {
namespace {

constexpr int backlog = 4096;
constexpr int accepts_max = 64;  // most connections to accept before the thread does other work
constexpr std::size_t frame_bytes_max = 128;
constexpr std::chrono::milliseconds pause{100};      // before accepting again when no descriptor or memory was left
constexpr std::chrono::seconds complaint_every{60};  // least time between remarks about peers that do not fit
constexpr std::int64_t idle_ms = 1000;
constexpr std::int64_t telling_ms = 200;

std::uint64_t random_word() {
  std::uint64_t word = 0;
  if (::getrandom(&word, sizeof word, 0) != sizeof word) throw_errno(CKPT_ERR_SYSTEM, "cannot get random bytes");
  return word;
}

UniqueFd listen_on(const SocketAddress& address) {
  UniqueFd fd(::socket(address.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  const int yes = 1;  // SO_REUSEADDR: a fixed port can be used again right after its last user ended
  if (!fd || ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes) != 0 ||
      ::bind(fd.get(), address.get(), address.size_bytes) != 0 || ::listen(fd.get(), backlog) != 0)
    throw_errno(CKPT_ERR_SYSTEM, "cannot listen on " + to_text(address) + " (see the options port and interface)");
  return fd;
}

std::string address_of(const UniqueFd& listener) {
  SocketAddress address;
  address.size_bytes = sizeof address.storage;
  if (::getsockname(listener.get(), reinterpret_cast<sockaddr*>(&address.storage), &address.size_bytes) != 0)
    throw_errno(CKPT_ERR_SYSTEM, "cannot find out at which address a socket listens");
  return to_text(address);
}

// The part of an address that counts as one source: an IPv4 address, or the network part of an IPv6 address.
std::span<const std::byte> source_of(const SocketAddress& address) {
  if (address.storage.ss_family == AF_INET)
    return wire::bytes_of(reinterpret_cast<const sockaddr_in&>(address.storage).sin_addr);
  return wire::bytes_of(reinterpret_cast<const sockaddr_in6&>(address.storage).sin6_addr).first(8);
}

// Resets the connection. So the kernel keeps nothing of it that waits for an acknowledgement of an unauthenticated
// peer.
void hang_up(UniqueFd& fd) {
  const linger no_linger{1, 0};
  ::setsockopt(fd.get(), SOL_SOCKET, SO_LINGER, &no_linger, sizeof no_linger);
  fd.reset();
}

// Sends a frame. Returns false if that fails. Does not wait for room in the socket's buffer: frames are small and the
// buffer is otherwise empty, so a frame that does not fit now will not fit later.
bool say(const UniqueFd& fd, std::span<const std::byte> bytes) {
  return ::send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT) ==
         static_cast<ssize_t>(bytes.size());
}

// The Reach of a peer that has ended the handshake with this refusal.
Reach reach_of(Refusal refusal) {
  if (refusal == Refusal::token) return Reach::wrong_token;
  const bool is_unauthenticated = refusal == Refusal::job || refusal == Refusal::version;
  return is_unauthenticated ? Reach::unauthenticated_peer : Reach::answers;
}

bool says_who(Refusal refusal) { return refusal == Refusal::node || refusal == Refusal::other_instance; }

}  // namespace

// One handshake on one connection.
struct Listener::Talk {
  enum class State { going_on, over, broken };

  UniqueFd fd;
  std::unique_ptr<Handshake> side;
  Deadline until;
  std::string with;
  bool ready = false;
  std::array<std::byte, frame_bytes_max> frame = {};
  std::size_t frame_bytes = 0;

  // Takes what has arrived and answers. Calls `before_word` before it sends each answer.
  template <class BeforeWord>
  State go_on(BeforeWord before_word) {
    while (const std::size_t due_bytes = side->due_bytes()) {
      const ssize_t got = ::recv(fd.get(), frame.data() + frame_bytes, due_bytes - frame_bytes, MSG_DONTWAIT);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return State::going_on;
      if (got <= 0) return State::broken;
      frame_bytes += static_cast<std::size_t>(got);
      if (frame_bytes < due_bytes) continue;
      const auto answer = side->take(std::span(frame).first(std::exchange(frame_bytes, 0)));
      before_word();
      if (!answer.empty() && !say(fd, answer)) return State::broken;
    }
    return State::over;
  }
};

struct Listener::Dial {
  Talk talk;
  OnDialed done;
  bool connected = false;
  bool over = false;
  DialResult result;

  const Asking& asking() const { return static_cast<const Asking&>(*talk.side); }
};

Listener::Listener(const Identity& self, const ListenerOptions& options, std::string place,
                   PendingConnections& pending_connections, OnMember member,
                   std::function<void(const std::string&)> remark)
    : self_(self),
      options_(options),
      place_(std::move(place)),
      pending_connections_(pending_connections),
      member_(std::move(member)),
      remark_(std::move(remark)),
      limit_(options.source_burst, options.source_per_s, random_word()),
      turned_away_(remark_) {
  if (self.token.empty())
    throw Failure(CKPT_ERR_INVALID,
                  "the job's token is empty; give this node the token of the others (option token_file)");
  listener_ = listen_on(options.listen_on);
  address_ = address_of(listener_);
  thread_ = start_thread("ckptd-listener", [this] { run(); });
}

Listener::~Listener() {
  commands_.push([this] { stopping_ = true; });
  thread_.join();
}

void Listener::dial(PeerId peer, std::uint64_t peer_instance, const std::string& address, OnDialed done) {
  commands_.push([this, peer, peer_instance, address, done = std::move(done)] {
    Dial& dial = visits_.emplace_back(
        Dial{Talk{{}, nullptr, Deadline::in_ms(options_.timeout_ms), address}, done, false, false, {}});
    try {
      dial.talk.side = std::make_unique<Asking>(self_, peer, peer_instance, fresh_nonce());
      dial.over = !begin(dial);
    } catch (const std::exception&) {
      dial.over = true;
    }
  });
}

void Listener::run() {
  while (!stopping_) {
    const bool somebody_knocks = wait();
    if (!commands_.empty()) commands_.run_all();
    listen_to_visitors();
    listen_to_hosts();
    if (somebody_knocks) accept_all();
    turned_away_.notify_if_due(Clock::now());
  }
}

// Waits until there is something to do. Returns whether a connection waits to be accepted. Sets `ready` of each
// handshake whose socket is ready.
bool Listener::wait() {
  std::vector<pollfd> entries = {{commands_.fd(), POLLIN, 0}};
  const bool accepts = Clock::now() >= accepts_again_at_;
  entries.push_back({accepts ? listener_.get() : -1, POLLIN, 0});
  std::int64_t wait_ms = turned_away_.has_unreported() ? telling_ms : accepts ? idle_ms : pause.count();
  if (!visitors_.empty()) wait_ms = std::min<std::int64_t>(wait_ms, visitors_.front().until.remaining_ms());
  for (const Talk& visitor : visitors_) entries.push_back({visitor.fd.get(), POLLIN, 0});
  for (const Dial& dial : visits_) {
    wait_ms = std::min<std::int64_t>(wait_ms, dial.over ? 0 : dial.talk.until.remaining_ms());
    entries.push_back({dial.talk.fd.get(), static_cast<short>(dial.connected ? POLLIN : POLLOUT), 0});
  }
  if (::poll(entries.data(), entries.size(), static_cast<int>(wait_ms)) < 0)
    for (pollfd& entry : entries) entry.revents = 0;
  auto entry = entries.begin() + 2;
  for (Talk& visitor : visitors_) visitor.ready = (entry++)->revents != 0;
  for (Dial& dial : visits_) dial.talk.ready = (entry++)->revents != 0;
  return entries[1].revents != 0;
}

void Listener::accept_all() {
  for (int i = 0; i < accepts_max; ++i) {
    SocketAddress from;
    from.size_bytes = sizeof from.storage;
    UniqueFd visitor(::accept4(listener_.get(), reinterpret_cast<sockaddr*>(&from.storage), &from.size_bytes,
                               SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (visitor) {
      let_in(std::move(visitor), from);
    } else if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
      accepts_again_at_ = Clock::now() + pause;
      return;
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      return;
    }
  }
}

// Begins the handshake on a new connection, or rejects the connection.
void Listener::let_in(UniqueFd visitor, const SocketAddress& from) {
  if (!limit_.admit(source_of(from), Clock::now())) {
    turned_away_.note(to_text(from), "connects too often");
    return hang_up(visitor);
  }
  if (visitors_.size() >= options_.half_open_max) {
    turned_away_.note(visitors_.front().with,
                      "was dropped to make room for others before it had proven that it has the token");
    hang_up(visitors_.front().fd);
    visitors_.pop_front();
  }
  try {
    auto side = std::make_unique<Answering>(self_, place_, fresh_nonce());
    visitors_.push_back(
        Talk{std::move(visitor), std::move(side), Deadline::in_ms(options_.timeout_ms), to_text(from), true});
  } catch (const std::exception&) {  // drops the connection; the dialing peer tries again
  }
}

void Listener::listen_to_visitors() {
  std::erase_if(visitors_, [this](Talk& visitor) {
    if (!visitor.ready) {
      if (!visitor.until.passed()) return false;
      turned_away_.note(visitor.with, "did not prove in time that it has the token");
      hang_up(visitor.fd);
      return true;
    }
    Talk::State state = Talk::State::broken;
    try {
      // Record the session before the dialing peer learns of it, because the peer's hello may come at once.
      state = visitor.go_on([&] {
        if (!visitor.side->session()) return;
        pending_connections_.expect(*visitor.side->session());
        if (options_.proven) options_.proven(visitor.with);
      });
    } catch (const std::exception&) {  // this node failed, so it drops the connection; the dialing peer tries again
    }
    if (state == Talk::State::going_on) return false;
    const Refusal refusal = visitor.side->refusal();
    if (refusal != Refusal::none && !says_who(refusal)) turned_away_.note(visitor.with, to_text(refusal));
    if (refusal == Refusal::none && !visitor.side->session())
      turned_away_.note(visitor.with, "hung up before it had proven that it has the token");
    if (state == Talk::State::broken || refusal == Refusal::nonsense) hang_up(visitor.fd);
    if (state == Talk::State::over && visitor.side->session() && member_) member_(std::move(visitor.fd));
    return true;
  });
}

// Begins to connect. Returns false if the dial is over already.
bool Listener::begin(Dial& dial) {
  const auto address = parse_socket_address(dial.talk.with);
  if (!address) return false;
  dial.talk.fd.reset(::socket(address->storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!dial.talk.fd) return false;
  if (::connect(dial.talk.fd.get(), address->get(), address->size_bytes) == 0 || errno == EINPROGRESS) return true;
  if (errno == ECONNREFUSED) dial.result.reach = Reach::ended;
  return false;
}

void Listener::listen_to_hosts() {
  for (Dial& dial : visits_)
    if (!dial.over) go_on(dial);
  std::list<Dial> ended;
  for (auto dial = visits_.begin(); dial != visits_.end();) {
    const auto next = std::next(dial);
    if (dial->over) ended.splice(ended.end(), visits_, dial);
    dial = next;
  }
  for (Dial& dial : ended) {
    dial.talk.fd.reset();
    dial.done(dial.result);
  }
}

void Listener::go_on(Dial& dial) {
  Talk& talk = dial.talk;
  if (!talk.ready) {
    dial.over = talk.until.passed();
    if (dial.over) dial.result.end = FetchEnd::timed_out;
    if (dial.connected) dial.result.reach = Reach::silent;
    return;
  }
  talk.ready = false;
  if (!dial.connected) {
    int error = 0;
    socklen_t size = sizeof error;
    dial.connected = ::getsockopt(talk.fd.get(), SOL_SOCKET, SO_ERROR, &error, &size) == 0 && error == 0 &&
                     say(talk.fd, talk.side->opening());
    if (dial.connected || error == ECONNREFUSED || error == ECONNRESET) dial.result.reach = Reach::ended;
    dial.over = !dial.connected;
    return;
  }
  Talk::State state = Talk::State::broken;
  try {
    state = talk.go_on([] {});
  } catch (const std::exception&) {
  }
  dial.over = state != Talk::State::going_on;
  if (state == Talk::State::over) dial.result.reach = reach_of(dial.asking().refusal());
  dial.result.session = talk.side->session();
  dial.result.place = dial.asking().place();
  if (dial.result.session) *dial.result.connection = std::move(talk.fd);
  complain(dial.asking(), talk.with);
}

// Remarks on a refusal whose cause only people can repair.
void Listener::complain(const Asking& asking, const std::string& host) {
  const Refusal refusal = asking.refusal();
  const auto now = Clock::now();
  if (!remark_ || now < complains_again_at_) return;
  std::string what;
  if (refusal == Refusal::version)
    what = "speak different versions of the protocol (" + std::to_string(wire::version) + " and " +
           std::to_string(asking.peer_version()) + "); run the same release on all nodes";
  else if (refusal == Refusal::token)
    what = "do not have the same token of the job; look at token_file on both";
  else if (refusal == Refusal::job)
    what = "are of different jobs; check whether coordination records were copied from one job to the other";
  else
    return;
  complains_again_at_ = now + complaint_every;
  remark_("this node and the one at " + host + " " + what);
}

Nonce Listener::fresh_nonce() {
  Nonce nonce;
  if (::getrandom(nonce.data(), nonce.size(), 0) != static_cast<ssize_t>(nonce.size()))
    throw_errno(CKPT_ERR_SYSTEM, "cannot get random bytes");
  return nonce;
}

}  // namespace ckpt::net
