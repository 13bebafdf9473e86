#include "cli/versions.hpp"

#include "arena/arena_format.hpp"
#include "base/frame_socket.hpp"
#include "net/wire.hpp"
#include "persist/storage_format.hpp"

namespace ckpt::cli {

std::string versions_text(std::string_view library) {
  const auto line = [](std::string_view name, std::string_view version) {
    return std::string(name) + " " + std::string(version) + "\n";
  };
  std::string text = line("library", library) + line("wire", std::to_string(net::wire::version)) +
                     line("agent_requests", std::to_string(request_version)) +
                     line("arena_format", std::to_string(arena::format_version)) +
                     line("storage_format", std::to_string(persist::format_version));
  text.pop_back();  // the caller ends the line
  return text;
}

}  // namespace ckpt::cli
