#include "net/link_backend.hpp"

#include <net/if.h>

#include "base/error.hpp"
#include "net/socket_address.hpp"
#include "net/tcp_backend.hpp"
#include "net/ucx_backend.hpp"

namespace ckpt::net {

namespace {

// Throws if `interface` does not name one usable interface. TCP streams have only one listener, at one address.
void check_interface(const std::string& interface) {
  if (interface.find(',') != std::string::npos)
    throw Failure(CKPT_ERR_INVALID,
                  "the option interface has the value '" + interface +
                      "', but with the transports tcp and shm it must name one network interface; name one");
  if (::if_nametoindex(interface.c_str()) == 0)
    throw Failure(CKPT_ERR_SYSTEM, "there is no network interface '" + interface + "'; correct the option interface");
  if (!address_on(interface))
    throw Failure(CKPT_ERR_SYSTEM, "the network interface '" + interface +
                                       "' is down or has no address that others could reach; repair it, or name "
                                       "another one (option interface)");
}

}  // namespace

bool uses_streams(const TransportOptions& options) {
  return options.transports == "tcp" || options.transports == "shm";
}

std::unique_ptr<LinkBackend> make_backend(const TransportOptions& options, BackendEvents& events) {
  if (!uses_streams(options)) return std::make_unique<UcxBackend>(options, events);
  if (!options.interface.empty()) check_interface(options.interface);
  return std::make_unique<TcpBackend>(options, events);
}

}  // namespace ckpt::net
