#include "agent/token.hpp"

#include <algorithm>

#include "base/error.hpp"
#include "base/secret_file.hpp"
#include "coord/node_registry.hpp"

namespace ckpt::agent {

std::string find_token(const Options& options, coord::Store& store, const std::string& remembered) {
  constexpr std::size_t digits = 64;
  constexpr std::string_view hex = "0123456789abcdef";
  if (options.token_file.empty()) return coord::job_token(store, remembered);
  const std::string token = read_secret_file(options.token_file, "token_file");
  if (token.size() != digits || token.find_first_not_of(hex) != std::string::npos)
    throw Failure(CKPT_ERR_INVALID, "the file " + options.token_file +
                                        ", which the option token_file names, does not hold 64 hex digits in lower "
                                        "case; make one with ckptctl token FILE and give all nodes the same");
  return token;
}

}  // namespace ckpt::agent
