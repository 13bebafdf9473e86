#include "net/links.hpp"

#include <utility>
#include <vector>

namespace ckpt::net {
namespace {

constexpr std::size_t links_max = 16384;
// How long UCX may take to end an operation after its connection was closed. Usually it takes a few rounds of progress.
constexpr std::int64_t hand_back_ms = 1000;

}  // namespace

Links::Links(LinkBackend& backend, const TransportOptions& options, PendingConnections& pending_connections, Dial dial,
             OnDown on_down)
    : backend_(backend),
      options_(options),
      job_hash_(wire::job_hash(options.job)),
      pending_connections_(pending_connections),
      visit_(std::move(dial)),
      on_down_(std::move(on_down)) {}

wire::Hello Links::hello_to(PeerId peer, std::uint64_t instance) const {
  wire::Hello hello;
  hello.job_hash = job_hash_;
  hello.from_node = options_.node;
  hello.to_node = peer;
  hello.from_instance = options_.node_instance;
  hello.to_instance = instance;
  return hello;
}

void Links::set_peer(PeerId node, std::uint64_t instance, const std::string& address) {
  Peer& peer = peers_[node];
  if (peer.instance == instance && peer.address == address) return;
  peer.instance = instance;
  peer.address = address;
  if (const auto old = std::exchange(peer.outgoing, nullptr)) old->retire();
  for (const auto& link : open_) {
    if (!link->outgoing() && link->proven() && link->peer() == node && link->peer_instance() != instance) {
      link->retire();  // it leads to an earlier instance of the node
    }
  }
}

std::shared_ptr<Link> Links::to(PeerId node) {
  const auto found = peers_.find(node);
  if (found == peers_.end()) return nullptr;
  Peer& peer = found->second;
  if (peer.outgoing != nullptr && !peer.outgoing->failed()) return peer.outgoing;
  auto link = backend_.outgoing();
  link->expect(node, peer.instance);
  visiting_.insert(link);
  peer.outgoing = link;
  visit_(link, peer.address);
  return link;
}

void Links::on_dialed(const std::shared_ptr<Link>& link, const Listener::DialResult& result) {
  if (link->failed()) return;  // the link was dropped during the dial
  if (!result.session) return link->fail(result.end);
  if (!link->open(result.place, std::move(*result.connection))) return link->fail(FetchEnd::peer_failed);
  visiting_.erase(link);
  open_.insert(link);
  link->expect(*result.session);
  link->note_progress();
  wire::Hello hello = hello_to(link->peer(), link->peer_instance());
  prove(*result.session, Side::asker, hello);
  link->send(wire::kind_hello, hello);
}

bool Links::has_room() const { return open_.size() < links_max; }

// Returns the session that `hello` proves, if the nodes and instances in it are right, too.
std::optional<Session> Links::trusted(const Link& link, const wire::Hello& hello) {
  if (!wire::plausible(hello) || hello.job_hash != job_hash_) return std::nullopt;
  if (hello.to_node != options_.node || hello.to_instance != options_.node_instance) return std::nullopt;
  if (link.outgoing()) {
    const Session& session = link.session();
    const bool is_peer = hello.from_node == session.peer && hello.from_instance == session.peer_instance;
    return is_peer && proves(session, Side::answerer, hello) ? std::optional(session) : std::nullopt;
  }
  const auto known = peers_.find(hello.from_node);
  if (known != peers_.end() && known->second.instance != hello.from_instance) return std::nullopt;
  const auto session = pending_connections_.arrived(hello);
  if (!session || session->peer != hello.from_node || session->peer_instance != hello.from_instance)
    return std::nullopt;
  return session;
}

void Links::hello(const std::shared_ptr<Link>& link, const Arrival& arrival) {
  const auto hello = wire::decode<wire::Hello>(arrival.header);
  if (link->proven()) return;
  const auto session = hello ? trusted(*link, *hello) : std::nullopt;
  if (!session) {
    if (link->outgoing()) {
      link->fail(FetchEnd::peer_failed);
    } else {
      link->retire();
    }
    return;
  }
  if (!link->outgoing()) {
    link->expect(hello->from_node, hello->from_instance);
    wire::Hello answer = hello_to(hello->from_node, hello->from_instance);
    prove(*session, Side::answerer, answer);
    link->send(wire::kind_hello, answer);
  }
  link->prove(*session);
}

std::vector<std::shared_ptr<Link>> Links::failed() const {
  std::vector<std::shared_ptr<Link>> result;
  if (backend_.failures() == 0) return result;
  for (const auto& link : visiting_) {
    if (link->failed()) result.push_back(link);
  }
  for (const auto& link : open_) {
    if (link->failed()) result.push_back(link);
  }
  return result;
}

void Links::sweep() {
  for (const auto& link : failed()) {
    visiting_.erase(link);
    open_.erase(link);
    const auto peer = peers_.find(link->peer());
    if (peer != peers_.end() && peer->second.outgoing == link) peer->second.outgoing = nullptr;
    on_down_(link);
    link->close();
    closing_.push_back({link, now_ms()});
  }
  closing_.remove_if([](const Closing& closing) {
    if (!closing.link->idle() && now_ms() - closing.closed_at_ms > hand_back_ms) closing.link->end_operations();
    return closing.link->idle();
  });
}

void Links::tick() {
  for (const auto& link : visiting_) check_in_time(*link);
  for (const auto& link : open_) {
    link->check_progress(options_.progress_timeout_ms);
    check_in_time(*link);
  }
}

// Fails a link whose peer has not proven who it is within the time limit.
void Links::check_in_time(Link& link) const {
  if (!link.proven() && now_ms() - link.progressed_at_ms() > options_.progress_timeout_ms)
    link.fail(FetchEnd::timed_out);
}

void Links::retire_all() {
  for (const auto& link : visiting_) link->retire();
  for (const auto& link : open_) link->retire();
}

void Links::end_operations() {
  for (const auto& closing : closing_) closing.link->end_operations();
}

}  // namespace ckpt::net
