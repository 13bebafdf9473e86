#include "net/ucx.hpp"

#include <utility>

#include "base/error.hpp"
#include "net/socket_address.hpp"

namespace ckpt::net {
namespace {

void check(ucs_status_t status, const std::string& what) {
  if (status == UCS_OK) return;
  throw Failure(CKPT_ERR_SYSTEM,
                what + ": " + ucs_status_string(status) + "; check the options transport and interface");
}

// The list of UCX transports. With "shm", a node reads bulk data from the peer's memory, and gets everything else over
// loopback tcp. UCX's shared-memory queues are not used, because a process that is killed while it writes into one
// would stall every other peer of the receiver.
std::string tls_of(const TransportOptions& options) {
  return options.transports == "shm" ? "tcp,cma" : options.transports;
}

bool reads_memory_of_processes(const TransportOptions& options) {
  return options.transports == "shm" || options.transports == "all";
}

// The name of an option of one of UCX's transports. Before UCX 1.14, it did not contain the transport's name.
std::string option_of(const std::string& transport, const std::string& name) {
  unsigned major = 0, minor = 0, release = 0;
  ucp_get_version(&major, &minor, &release);
  return major == 1 && minor < 14 ? name : transport + "_" + name;
}

// The most bytes that UCX sends through a socket at once, with their header, and the size of the buffer that receives
// them. It must be the same on all nodes, because UCX aborts if more bytes come. There is room for a chunk with its
// header, so that a chunk is one message: TransportOptions::chunk_bytes and a little more.
constexpr char socket_segment_size[] = "2052k";

constexpr int ucx_ports = 7;

void configure(ucp_config_t* config, const TransportOptions& options) {
  const auto set = [config](const std::string& name, const std::string& value) {
    check(ucp_config_modify(config, name.c_str(), value.c_str()), "UCX does not take " + name + "=" + value);
  };
  set("TLS", tls_of(options));
  if (!options.interface.empty()) set("NET_DEVICES", options.interface);
  set("KEEPALIVE_INTERVAL", "1s");

  // The receiver copies bulk data out of a socket, or reads it from the sender's memory. A sender that was stopped in
  // the middle can then not write to the receiver when it wakes. Over a socket, UCX must copy what it sends, so that
  // nothing unsent refers to our memory or our requests. If it does not copy (zero-copy, rendezvous, "put"), it aborts
  // the process when a connection breaks during such a send.
  set("RNDV_SCHEME", "get_zcopy");
  set("ZCOPY_THRESH", "inf");
  if (options.transports == "tcp") set("RNDV_THRESH", "inf");
  if (options.port != 0)
    set(option_of("TCP", "PORT_RANGE"),
        std::to_string(options.port + 2) + "-" + std::to_string(options.port + ucx_ports));
  set(option_of("TCP", "PUT_ENABLE"), "n");
  set(option_of("TCP", "TX_SEG_SIZE"), socket_segment_size);
  set(option_of("TCP", "RX_SEG_SIZE"), socket_segment_size);

  // Without this option, UCX in peer-failure mode reads from another process only if it can shut out a reader that
  // comes too late. We do not need this, because a late reader gets bytes that fail their digest check.
  if (reads_memory_of_processes(options)) set(option_of("CMA", "MEMORY_INVALIDATE"), "y");
}

}  // namespace

Ucx::Ucx(const TransportOptions& options, UcxEvents& events) : events_(events) {
  try {
    start(options);
  } catch (...) {
    stop();
    throw;
  }
}

Ucx::~Ucx() { stop(); }

void Ucx::start(const TransportOptions& options) {
  ucp_config_t* config = nullptr;
  check(ucp_config_read(nullptr, nullptr, &config), "UCX cannot read its configuration");
  ucp_params_t parameters = {};
  parameters.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_NAME;
  parameters.features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP;
  parameters.name = "ckptengine";
  ucs_status_t status = UCS_OK;
  try {
    configure(config, options);
    status = ucp_init(&parameters, config, &context_);
  } catch (...) {
    ucp_config_release(config);
    throw;
  }
  ucp_config_release(config);
  check(status,
        "UCX cannot start with transports '" + options.transports + "' on interface '" + options.interface + "'");

  ucp_worker_params_t worker = {};
  worker.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE | UCP_WORKER_PARAM_FIELD_FLAGS;
  worker.thread_mode = UCS_THREAD_MODE_SERIALIZED;  // one thread makes the worker, and another one drives it
  worker.flags = UCP_WORKER_FLAG_IGNORE_REQUEST_LEAK;
  check(ucp_worker_create(context_, &worker, &worker_), "UCX cannot create a worker");
  check(ucp_worker_get_efd(worker_, &event_fd_),
        "UCX gives no descriptor to wait on for transports '" + options.transports + "'");

  for (std::uint16_t kind = wire::kind_hello; kind < wire::kind_end; ++kind) {
    handlers_[kind] = {&events_, static_cast<wire::Kind>(kind)};
    ucp_am_handler_param_t handler = {};
    handler.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG;
    handler.id = kind;
    handler.cb = &Ucx::on_active_message;
    handler.arg = &handlers_[kind];
    check(ucp_worker_set_am_recv_handler(worker_, &handler), "UCX cannot receive active messages");
  }
  listen(options);
}

void Ucx::listen(const TransportOptions& options) {
  const auto port = static_cast<std::uint16_t>(options.port == 0 ? 0 : options.port + 1);
  const SocketAddress local = with_port(local_address(options.interface), port);
  ucp_listener_params_t parameters = {};
  parameters.field_mask = UCP_LISTENER_PARAM_FIELD_SOCK_ADDR | UCP_LISTENER_PARAM_FIELD_CONN_HANDLER;
  parameters.sockaddr.addr = local.get();
  parameters.sockaddr.addrlen = local.size_bytes;
  parameters.conn_handler.arg = &events_;
  parameters.conn_handler.cb = [](ucp_conn_request_h request, void* events) {
    static_cast<UcxEvents*>(events)->connection_requested(request);
  };
  const AsyncGate::Closed quiet(gate_);  // UCX accepts no connection before the guard works
  const ucs_status_t listens = ucp_listener_create(worker_, &parameters, &listener_);
  if (listens == UCS_ERR_BUSY && port != 0)
    throw Failure(CKPT_ERR_SYSTEM, "another program listens on " + to_text(local) + ", one of the eight ports from " +
                                       std::to_string(options.port) + " on; give this agent other ports (option port)");
  check(listens, "UCX cannot listen on " + to_text(local));

  ucp_listener_attr_t attributes = {};
  attributes.field_mask = UCP_LISTENER_ATTR_FIELD_SOCKADDR;
  check(ucp_listener_query(listener_, &attributes), "UCX does not tell its listening address");
  const SocketAddress address{attributes.sockaddr, local.size_bytes};
  address_ = to_text(address);
  guard_.emplace(address);
}

void Ucx::stop() {
  const AsyncGate::Closed quiet(gate_);
  guard_.reset();
  if (listener_ != nullptr) ucp_listener_destroy(std::exchange(listener_, nullptr));
  if (worker_ != nullptr) ucp_worker_destroy(std::exchange(worker_, nullptr));
  if (context_ != nullptr) ucp_cleanup(std::exchange(context_, nullptr));
}

void Ucx::admit(const std::string& from) {
  if (const auto host = parse_socket_address(from)) guard_->admit(*host);
}

ucp_ep_h Ucx::connect(const std::string& address, const ucp_err_handler_t& handler) {
  const auto remote = parse_socket_address(address);
  if (!remote) return nullptr;
  ucp_ep_params_t parameters = {};
  parameters.field_mask = UCP_EP_PARAM_FIELD_FLAGS | UCP_EP_PARAM_FIELD_SOCK_ADDR |
                          UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER;
  parameters.flags = UCP_EP_PARAMS_FLAGS_CLIENT_SERVER;
  parameters.sockaddr.addr = remote->get();
  parameters.sockaddr.addrlen = remote->size_bytes;
  parameters.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  parameters.err_handler = handler;
  ucp_ep_h endpoint = nullptr;
  return ucp_ep_create(worker_, &parameters, &endpoint) == UCS_OK ? endpoint : nullptr;
}

ucp_ep_h Ucx::accept(ucp_conn_request_h request, const ucp_err_handler_t& handler) {
  ucp_ep_params_t parameters = {};
  parameters.field_mask =
      UCP_EP_PARAM_FIELD_CONN_REQUEST | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER;
  parameters.conn_request = request;
  parameters.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  parameters.err_handler = handler;
  const AsyncGate::Closed quiet(gate_);
  ucp_ep_h endpoint = nullptr;
  return ucp_ep_create(worker_, &parameters, &endpoint) == UCS_OK ? endpoint : nullptr;
}

void Ucx::reject(ucp_conn_request_h request) {
  const AsyncGate::Closed quiet(gate_);
  ucp_listener_reject(listener_, request);
}

void Ucx::close(ucp_ep_h endpoint) {
  ucp_request_param_t parameters = {};
  parameters.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  parameters.flags = UCP_EP_CLOSE_FLAG_FORCE;
  parameters.user_data = this;
  parameters.cb.send = [](void* request, ucs_status_t, void* ucx) {
    --static_cast<Ucx*>(ucx)->closes_in_flight_;
    ucp_request_free(request);  // a close request may be freed only when it is complete
  };
  if (UCS_PTR_IS_PTR(ucp_ep_close_nbx(endpoint, &parameters))) ++closes_in_flight_;
}

ucs_status_t Ucx::on_active_message(void* kind_handler, const void* header, std::size_t header_bytes, void* payload,
                                    std::size_t payload_bytes, const ucp_am_recv_param_t* parameters) {
  if (!(parameters->recv_attr & UCP_AM_RECV_ATTR_FIELD_REPLY_EP)) return UCS_OK;
  const auto& handler = *static_cast<const KindHandler*>(kind_handler);
  Arrival arrival;
  arrival.header = {static_cast<const std::byte*>(header), header_bytes};
  arrival.payload = payload;
  arrival.payload_bytes = payload_bytes;
  arrival.to_receive = (parameters->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0;
  handler.events->arrived(handler.kind, parameters->reply_ep, arrival);
  return arrival.taken ? UCS_INPROGRESS : UCS_OK;  // UCS_OK drops a rendezvous payload and frees its sender
}

}  // namespace ckpt::net
