// What comes over an agent's unix socket from trainers and tools, before anybody looks what it says. What is taken is a
// JSON object, and the same when it is sent on; anything else ends the connection with a Failure.
#include <sys/socket.h>
#include <unistd.h>

#include "base/error.hpp"
#include "base/frame_socket.hpp"
#include "fuzz/fuzz.hpp"

namespace ckpt::fuzz {
namespace {

struct Pair {
  Pair() {
    int both[2];
    require(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, both) == 0);
    ours.reset(both[0]);
    theirs.reset(both[1]);
  }
  UniqueFd ours, theirs;
};

// In one piece or byte by byte, which must come to the same.
std::vector<nlohmann::json> taken(Input input, std::size_t step_bytes) {
  Pair pair;
  FrameSocket socket(std::move(pair.ours));
  std::vector<nlohmann::json> bodies;
  try {
    for (std::size_t at = 0; at < input.size();) {
      const std::size_t size = std::min(step_bytes, input.size() - at);
      const ssize_t sent = ::send(pair.theirs.get(), input.data() + at, size, MSG_NOSIGNAL);
      require(sent > 0);
      at += static_cast<std::size_t>(sent);
      while (auto frame = socket.try_receive()) {
        require(frame->body.is_object() && frame->fds.empty());
        bodies.push_back(std::move(frame->body));
      }
    }
  } catch (const Failure& failure) {
    require(failure.status() == CKPT_ERR_INVALID);
  }
  return bodies;
}

void require_same_when_sent_on(const nlohmann::json& body) {
  Pair pair;
  FrameSocket from(std::move(pair.ours)), to(std::move(pair.theirs));
  require(from.queue(body, {}));
  from.flush();
  const auto frame = to.try_receive();
  require(frame && frame->body == body);
}

std::string framed(const std::string& text) {
  const auto size = static_cast<std::uint32_t>(text.size());
  std::string bytes(sizeof size, '\0');
  std::memcpy(bytes.data(), &size, sizeof size);
  return bytes + text;
}

}  // namespace

void try_input(Input input) {
  const auto bodies = taken(input, input.size());
  require(taken(input, 1) == bodies);
  for (const auto& body : bodies) require_same_when_sent_on(body);
}

std::vector<std::string> seeds() {
  return {framed(R"({"type":"status"})") + framed(R"({"type":"restore","timeout_ms":1000})"),
          framed(R"({"type":"hello","protocol":2,"rank":3,"options":{"copies":"2"},"x":[1,-2,3.5e8,null,true]})"),
          framed("[]"), framed("{")};
}

}  // namespace ckpt::fuzz
