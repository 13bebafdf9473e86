#include "net/ucx_backend.hpp"

namespace ckpt::net {

std::shared_ptr<Link> UcxBackend::outgoing() { return std::make_shared<UcxLink>(ucx_, true, failures_, &by_endpoint_); }

// Ignores arrivals from an endpoint that no link uses any more.
void UcxBackend::arrived(wire::Kind kind, ucp_ep_h from, Arrival& arrival) {
  const auto found = by_endpoint_.find(from);
  if (found == by_endpoint_.end() || found->second->failed()) return;
  const auto link = found->second->shared_from_this();
  events_.arrived(kind, link, arrival);
}

void UcxBackend::connection_requested(ucp_conn_request_h request) {
  if (!events_.has_room()) {
    ucx_.reject(request);
    return;
  }
  const auto link = std::make_shared<UcxLink>(ucx_, false, failures_, &by_endpoint_);
  if (link->open(request)) events_.joined(link);
}

}  // namespace ckpt::net
