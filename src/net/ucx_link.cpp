#include "net/ucx_link.hpp"

#include <cassert>
#include <utility>

namespace ckpt::net {

// A send or receive. Freed when UCX has called back. `link` is null if the link has ended the operation before.
struct UcxLink::Operation {
  std::shared_ptr<UcxLink> link;
  Done done;
  std::shared_ptr<const void> keep;
  Header header;  // UCX reads it until it has called back
};

UcxLink::~UcxLink() { assert(endpoint_ == nullptr && operations_.empty()); }

ucp_err_handler_t UcxLink::error_handler() {
  return {[](void* link, ucp_ep_h, ucs_status_t) { static_cast<UcxLink*>(link)->fail(FetchEnd::peer_failed); }, this};
}

bool UcxLink::open(const std::string& place, UniqueFd) { return opened(ucx_.connect(place, error_handler())); }

bool UcxLink::open(ucp_conn_request_h request) { return opened(ucx_.accept(request, error_handler())); }

bool UcxLink::opened(ucp_ep_h endpoint) {
  endpoint_ = endpoint;
  if (endpoint != nullptr && by_endpoint_ != nullptr) (*by_endpoint_)[endpoint] = this;
  return endpoint != nullptr;
}

UcxLink::Operation* UcxLink::start(Done done, std::shared_ptr<const void> keep) {
  if (operations_.empty()) note_progress();
  auto self = std::static_pointer_cast<UcxLink>(shared_from_this());
  auto* operation = new Operation{std::move(self), std::move(done), std::move(keep), {}};
  operations_.insert(operation);
  return operation;
}

// `result` is what UCX returned for the operation. If UCX has accepted it, UCX calls back, or has done so already.
// Otherwise the operation ends here.
void UcxLink::submitted(Operation* operation, ucs_status_ptr_t result) {
  if (UCS_PTR_IS_PTR(result)) return;
  finish(operation, UCS_PTR_STATUS(result));
  delete operation;
}

void UcxLink::finish(Operation* operation, ucs_status_t status) {
  const auto link = std::exchange(operation->link, nullptr);
  if (link == nullptr) return;  // the link has ended the operation before
  link->operations_.erase(operation);
  const bool ok = status == UCS_OK;
  if (ok) {
    link->note_progress();
  } else {
    link->fail(FetchEnd::peer_failed);
  }
  const auto done = std::exchange(operation->done, nullptr);
  operation->keep.reset();
  if (done) done(ok);
}

void UcxLink::transmit(wire::Kind kind, const Header& header, std::span<const std::byte> payload,
                       std::shared_ptr<const void> keep, Done done) {
  Operation* operation = start(std::move(done), std::move(keep));
  operation->header = header;
  ucp_request_param_t parameters = {};
  parameters.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS;
  parameters.flags = UCP_AM_SEND_FLAG_REPLY;  // tells the receiver which connection this came over
  parameters.user_data = operation;
  parameters.cb.send = [](void* request, ucs_status_t status, void* operation_pointer) {
    auto* finished = static_cast<Operation*>(operation_pointer);
    finish(finished, status);
    delete finished;
    ucp_request_free(request);
  };
  submitted(operation, ucp_am_send_nbx(endpoint_, kind, operation->header.bytes.data(), operation->header.size_bytes,
                                       payload.data(), payload.size(), &parameters));
}

void UcxLink::receive_rest(Arrival& arrival, std::span<std::byte> memory, Done done) {
  Operation* operation = start(std::move(done), nullptr);
  ucp_request_param_t parameters = {};
  parameters.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  parameters.user_data = operation;
  parameters.cb.recv_am = [](void* request, ucs_status_t status, std::size_t, void* operation_pointer) {
    auto* finished = static_cast<Operation*>(operation_pointer);
    finish(finished, status);
    delete finished;
    ucp_request_free(request);
  };
  submitted(operation, ucp_am_recv_data_nbx(ucx_.worker(), arrival.payload, memory.data(), memory.size(), &parameters));
}

void UcxLink::shut() {
  if (endpoint_ == nullptr) return;
  if (by_endpoint_ != nullptr) by_endpoint_->erase(endpoint_);
  ucx_.close(std::exchange(endpoint_, nullptr));
}

void UcxLink::end_operations() {
  while (!operations_.empty()) finish(*operations_.begin(), UCS_ERR_CANCELED);
}

}  // namespace ckpt::net
