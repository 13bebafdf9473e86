// UcxLink is a link to a peer over UCX. A send or receive ends when UCX has called back, or some time after the
// endpoint was closed. After that, UCX cannot reach the memory of the send or receive any more.
//
// Not thread-safe: only the transport's thread uses it.
#pragma once

#include <unordered_map>
#include <unordered_set>

#include "net/link.hpp"
#include "net/ucx.hpp"

namespace ckpt::net {

class UcxLink final : public Link {
 public:
  using ByEndpoint = std::unordered_map<ucp_ep_h, UcxLink*>;

  // While the link is open, it is an entry of `by_endpoint`, unless that is null. `by_endpoint` must outlive the link.
  UcxLink(Ucx& ucx, bool outgoing, std::size_t& failures, ByEndpoint* by_endpoint = nullptr)
      : Link(outgoing, failures), ucx_(ucx), by_endpoint_(by_endpoint) {}
  ~UcxLink() override;

  bool open(const std::string& place, UniqueFd connection) override;
  bool open(ucp_conn_request_h request);
  ucp_ep_h endpoint() const { return endpoint_; }
  bool idle() const override { return operations_.empty(); }
  void end_operations() override;

 private:
  struct Operation;
  bool is_open() const override { return endpoint_ != nullptr; }
  void transmit(wire::Kind kind, const Header& header, std::span<const std::byte> payload,
                std::shared_ptr<const void> keep, Done done) override;
  void receive_rest(Arrival& arrival, std::span<std::byte> memory, Done done) override;
  void shut() override;
  Operation* start(Done done, std::shared_ptr<const void> keep);
  void submitted(Operation* operation, ucs_status_ptr_t result);
  static void finish(Operation* operation, ucs_status_t status);
  ucp_err_handler_t error_handler();
  bool opened(ucp_ep_h endpoint);

  Ucx& ucx_;
  ByEndpoint* const by_endpoint_;
  ucp_ep_h endpoint_ = nullptr;
  std::unordered_set<Operation*> operations_;
};

}  // namespace ckpt::net
