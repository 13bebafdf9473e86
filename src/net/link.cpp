#include "net/link.hpp"

#include <cassert>
#include <chrono>
#include <cstring>
#include <utility>

namespace ckpt::net {

namespace {

// Payloads of unasked arrivals (messages, manifests) that one peer may have under way to us.
constexpr std::size_t incoming_bytes_max = 2 * wire::manifest_bytes_max;

}  // namespace

std::int64_t now_ms() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// Freed when UCX has called back. `link` is null once the operation is over for us.
struct Link::Operation {
  std::shared_ptr<Link> link;
  Done done;
  std::shared_ptr<const void> keep;
  std::array<std::byte, sizeof(wire::Hello)> header;  // the largest; UCX reads it until the operation is over
};

Link::~Link() { assert(endpoint_ == nullptr && operations_.empty()); }

ucp_err_handler_t Link::error_handler() {
  return {[](void* link, ucp_ep_h, ucs_status_t) { static_cast<Link*>(link)->fail(FetchEnd::peer_failed); }, this};
}

bool Link::open(const std::string& address) {
  endpoint_ = ucx_.connect(address, error_handler());
  return endpoint_ != nullptr;
}

bool Link::open(ucp_conn_request_h request) {
  endpoint_ = ucx_.accept(request, error_handler());
  return endpoint_ != nullptr;
}

void Link::expect(NodeId peer, std::uint64_t instance) {
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

Link::Operation* Link::start(Done done, std::shared_ptr<const void> keep) {
  if (operations_.empty()) note_progress();
  auto* operation = new Operation{shared_from_this(), std::move(done), std::move(keep), {}};
  operations_.insert(operation);
  return operation;
}

// A request that UCX took calls back, possibly already did; otherwise the operation ends here.
void Link::submitted(Operation* operation, ucs_status_ptr_t result) {
  if (UCS_PTR_IS_PTR(result)) return;
  finish(operation, UCS_PTR_STATUS(result));
  delete operation;
}

void Link::finish(Operation* operation, ucs_status_t status) {
  const auto link = std::exchange(operation->link, nullptr);
  if (link == nullptr) return;  // given up before
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

void Link::send_bytes(wire::Kind kind, std::span<const std::byte> header, std::span<const std::byte> payload,
                      std::shared_ptr<const void> keep, Done done) {
  if (endpoint_ == nullptr || failed_) {
    if (done) done(false);
    return;
  }
  Operation* operation = start(std::move(done), std::move(keep));
  const std::size_t seal_bytes = kind == wire::kind_hello ? 0 : sizeof(seal_out_);
  const std::size_t header_bytes = seal_bytes + header.size();
  assert(header_bytes <= operation->header.size());
  std::memcpy(operation->header.data(), &seal_out_, seal_bytes);
  if (!header.empty()) std::memcpy(operation->header.data() + seal_bytes, header.data(), header.size());

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
  submitted(operation, ucp_am_send_nbx(endpoint_, kind, operation->header.data(), header_bytes, payload.data(),
                                       payload.size(), &parameters));
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
  if (!arrival.rendezvous) {
    if (!memory.empty()) std::memcpy(memory.data(), arrival.payload, memory.size());
    note_progress();
    done(true);
    return;
  }
  arrival.taken = true;
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

void Link::read(Arrival& arrival, std::function<void(std::span<const std::byte>)> then) {
  if (!arrival.rendezvous) {
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
  if (!operations_.empty() && now_ms() - progressed_at_ms_ > timeout_ms) fail(FetchEnd::timed_out);
}

void Link::close() {
  waiting_.clear();
  if (std::exchange(closed_, true)) return;
  if (failed_) --failures_;
  if (endpoint_ != nullptr) ucx_.close(std::exchange(endpoint_, nullptr));
}

void Link::end_operations() {
  while (!operations_.empty()) finish(*operations_.begin(), UCS_ERR_CANCELED);
}

}  // namespace ckpt::net
