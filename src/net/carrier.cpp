#include "net/carrier.hpp"

#include <net/if.h>

#include "base/error.hpp"
#include "net/streams.hpp"
#include "net/ucx_carrier.hpp"

namespace ckpt::net {

bool uses_streams(const TransportOptions& options) {
  return options.transports == "tcp" || options.transports == "shm";
}

std::unique_ptr<Carrier> make_carrier(const TransportOptions& options, CarrierEvents& events) {
  if (!uses_streams(options)) return std::make_unique<UcxCarrier>(options, events);
  if (!options.interface.empty() && ::if_nametoindex(options.interface.c_str()) == 0)
    throw Failure(CKPT_ERR_SYSTEM,
                  "there is no network interface '" + options.interface + "'; see the option interface");
  return std::make_unique<Streams>(options, events);
}

}  // namespace ckpt::net
