#include "net/links.hpp"

#include <utility>
#include <vector>

namespace ckpt::net {
namespace {

constexpr std::size_t links_max = 16384;
// How long after its endpoint was closed UCX may take to hand back an operation. It takes a few rounds of progress.
constexpr std::int64_t hand_back_ms = 1000;

}  // namespace

Links::Links(Ucx& ucx, const TransportOptions& options, OnDown on_down)
    : ucx_(ucx), options_(options), job_hash_(wire::job_hash(options.job)), on_down_(std::move(on_down)) {}

wire::Hello Links::hello_to(NodeId peer, std::uint64_t instance) const {
  wire::Hello hello;
  hello.job_hash = job_hash_;
  hello.from_node = options_.node;
  hello.to_node = peer;
  hello.from_instance = options_.node_instance;
  hello.to_instance = instance;
  return hello;
}

void Links::set_peer(NodeId node, std::uint64_t instance, const std::string& address) {
  Peer& peer = peers_[node];
  if (peer.instance == instance && peer.address == address) return;
  peer.instance = instance;
  peer.address = address;
  if (const auto old = std::exchange(peer.outgoing, nullptr)) old->retire();
  for (const auto& [endpoint, link] : by_endpoint_) {
    if (!link->outgoing() && link->proven() && link->peer() == node && link->peer_instance() != instance) {
      link->retire();  // the life of the node that this one replaces
    }
  }
}

std::shared_ptr<Link> Links::to(NodeId node) {
  const auto found = peers_.find(node);
  if (found == peers_.end()) return nullptr;
  Peer& peer = found->second;
  if (peer.outgoing != nullptr && !peer.outgoing->failed()) return peer.outgoing;
  auto link = std::make_shared<Link>(ucx_, true, failures_);
  if (!link->open(peer.address)) return nullptr;
  link->expect(node, peer.instance);
  by_endpoint_[link->endpoint()] = link;
  peer.outgoing = link;
  link->send(wire::kind_hello, hello_to(node, peer.instance));
  return link;
}

std::shared_ptr<Link> Links::find(ucp_ep_h endpoint) const {
  const auto found = by_endpoint_.find(endpoint);
  return found == by_endpoint_.end() || found->second->failed() ? nullptr : found->second;
}

void Links::accept(ucp_conn_request_h request) {
  if (by_endpoint_.size() >= links_max) {
    ucx_.reject(request);
    return;
  }
  auto link = std::make_shared<Link>(ucx_, false, failures_);
  if (link->open(request)) by_endpoint_[link->endpoint()] = link;
}

bool Links::trusted(const Link& link, const wire::Hello& hello) const {
  if (!wire::plausible(hello) || hello.job_hash != job_hash_) return false;
  if (hello.to_node != options_.node || hello.to_instance != options_.node_instance) return false;
  if (link.outgoing()) return hello.from_node == link.peer() && hello.from_instance == link.peer_instance();
  const auto known = peers_.find(hello.from_node);
  return known == peers_.end() || known->second.instance == hello.from_instance;
}

void Links::hello(const std::shared_ptr<Link>& link, const Arrival& arrival) {
  const auto hello = wire::decode<wire::Hello>(arrival.header);
  if (link->proven()) return;
  if (!hello || !trusted(*link, *hello)) {
    if (link->outgoing()) {
      link->fail(FetchEnd::peer_failed);
    } else {
      link->retire();
    }
    return;
  }
  if (!link->outgoing()) {
    link->expect(hello->from_node, hello->from_instance);
    link->send(wire::kind_hello, hello_to(hello->from_node, hello->from_instance));
  }
  link->prove();
}

std::vector<std::shared_ptr<Link>> Links::failed() const {
  std::vector<std::shared_ptr<Link>> result;
  if (failures_ == 0) return result;
  for (const auto& [endpoint, link] : by_endpoint_) {
    if (link->failed()) result.push_back(link);
  }
  return result;
}

void Links::sweep() {
  for (const auto& link : failed()) {
    by_endpoint_.erase(link->endpoint());
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
  for (const auto& [endpoint, link] : by_endpoint_) {
    link->check_progress(options_.progress_timeout_ms);
    if (!link->proven() && now_ms() - link->progressed_at_ms() > options_.progress_timeout_ms) {
      link->fail(FetchEnd::timed_out);
    }
  }
}

void Links::retire_all() {
  for (const auto& [endpoint, link] : by_endpoint_) link->retire();
}

void Links::end_operations() {
  for (const auto& closing : closing_) closing.link->end_operations();
}

}  // namespace ckpt::net
