// UcxBackend makes links over UCX, for networks that only UCX can use (RDMA).
//
// Not thread-safe: only the transport's thread uses it.
#pragma once

#include <unordered_map>

#include "net/link_backend.hpp"
#include "net/ucx_link.hpp"

namespace ckpt::net {

class UcxBackend final : public LinkBackend, private UcxEvents {
 public:
  // Starts UCX and listens. Throws Failure (CKPT_ERR_SYSTEM) if that fails. `events` must outlive the backend.
  UcxBackend(const TransportOptions& options, BackendEvents& events) : events_(events), ucx_(options, *this) {}

  std::shared_ptr<Link> outgoing() override;
  const std::string& place() const override { return ucx_.address(); }
  bool is_open_to_unauthenticated_peers() const override { return !ucx_.is_guarded(); }
  void admit(const std::string& from) override { ucx_.admit(from); }
  bool wants_connections() const override { return false; }
  void take_in(UniqueFd) override {}
  unsigned progress() override { return ucx_.progress(); }
  int event_fd() const override { return ucx_.event_fd(); }
  bool arm() override { return ucx_.arm(); }
  bool quiet() const override { return ucx_.closes_in_flight() == 0; }

 private:
  void arrived(wire::Kind kind, ucp_ep_h from, Arrival& arrival) override;
  void connection_requested(ucp_conn_request_h request) override;

  BackendEvents& events_;
  Ucx ucx_;
  UcxLink::ByEndpoint by_endpoint_;
};

}  // namespace ckpt::net
