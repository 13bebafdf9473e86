#include "base/frame_socket.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <filesystem>
#include <thread>

#include "base/error.hpp"
#include "tests/support/temporary_directory.hpp"

namespace ckpt {
namespace {

using nlohmann::json;
using testing::HasSubstr;

struct SocketPair {
  FrameSocket left, right;
};
SocketPair socket_pair() {
  int ends[2];
  EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  return {FrameSocket(UniqueFd(ends[0])), FrameSocket(UniqueFd(ends[1]))};
}

UniqueFd file_with(const std::string& text) {
  UniqueFd file(::memfd_create("test", MFD_CLOEXEC));
  EXPECT_EQ(::write(file.get(), text.data(), text.size()), static_cast<ssize_t>(text.size()));
  return file;
}

std::string content(const UniqueFd& file) {
  char buffer[64];
  const ssize_t got = ::pread(file.get(), buffer, sizeof(buffer), 0);
  return std::string(buffer, got < 0 ? 0 : static_cast<std::size_t>(got));
}

ckpt_status status_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Failure& failure) {
    return failure.status();
  }
  return CKPT_OK;
}

const auto soon = [] { return Deadline::in_ms(10'000); };

TEST(FrameSocket, BodiesAndDescriptorsArriveTogetherAndInOrder) {
  auto pair = socket_pair();
  FrameSocket &left = pair.left, &right = pair.right;
  const UniqueFd one = file_with("one"), two = file_with("two");
  left.send({{"n", 1}}, {}, soon());
  left.send({{"n", 2}}, std::array{one.get(), two.get()}, soon());
  left.send({{"n", 3}}, {}, soon());
  EXPECT_EQ(right.receive(soon()).fds.size(), 0u);
  const Frame second = right.receive(soon());
  EXPECT_EQ(second.body.at("n"), 2);
  ASSERT_EQ(second.fds.size(), 2u);
  EXPECT_EQ(content(second.fds[0]), "one");
  EXPECT_EQ(content(second.fds[1]), "two");
  const Frame third = right.receive(soon());
  EXPECT_EQ(third.body.at("n"), 3);
  EXPECT_EQ(third.fds.size(), 0u);
}

TEST(FrameSocket, FramesLargerThanTheSocketsBufferPassThroughAPollLoop) {
  auto pair = socket_pair();
  FrameSocket &left = pair.left, &right = pair.right;
  const std::string text(8 << 20, 'x');
  ASSERT_TRUE(left.queue({{"text", text}}, {}));
  std::optional<Frame> frame;
  while (!frame) {
    left.flush();
    frame = right.try_receive();
    ASSERT_FALSE(right.closed());
  }
  EXPECT_FALSE(left.wants_write());
  EXPECT_EQ(frame->body.at("text"), text);
}

TEST(FrameSocket, DistinguishesAClosedPeerFromASilentOne) {
  auto pair = socket_pair();
  FrameSocket &left = pair.left, &right = pair.right;
  EXPECT_EQ(status_of([&] { right.receive(Deadline::in_ms(1)); }), CKPT_ERR_TIMEOUT);
  EXPECT_FALSE(right.closed());
  left.send({{"last", true}}, {}, soon());
  { FrameSocket gone = std::move(left); }
  EXPECT_EQ(right.receive(soon()).body.at("last"), true);
  EXPECT_EQ(status_of([&] { right.receive(soon()); }), CKPT_ERR_NO_AGENT);
  EXPECT_TRUE(right.closed());
  EXPECT_EQ(status_of([&] { right.send({{"n", 1}}, {}, soon()); }), CKPT_ERR_NO_AGENT);
}

TEST(FrameSocket, SendFailsAtItsDeadlineIfThePeerDoesNotRead) {
  auto pair = socket_pair();
  FrameSocket& left = pair.left;
  const json large = {{"text", std::string(8 << 20, 'x')}};
  EXPECT_EQ(status_of([&] { left.send(large, {}, Deadline::in_ms(1)); }), CKPT_ERR_TIMEOUT);
}

TEST(FrameSocket, TheQueueIsBounded) {
  auto pair = socket_pair();
  FrameSocket& left = pair.left;
  for (std::size_t i = 0; i < frames_queued_max; ++i) ASSERT_TRUE(left.queue({{"i", i}}, {}));
  EXPECT_FALSE(left.queue({{"i", -1}}, {}));
}

TEST(FrameSocket, BadFramesAreRefused) {
  const auto refusal = [](const std::string& bytes) {
    int ends[2];
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    FrameSocket reader{UniqueFd(ends[0])};
    EXPECT_EQ(::write(ends[1], bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
    ::close(ends[1]);
    return status_of([&] { reader.receive(soon()); });
  };
  EXPECT_EQ(refusal(std::string("\xff\xff\xff\xff{}", 6)), CKPT_ERR_INVALID);
  EXPECT_EQ(refusal(std::string("\0\0\0\0", 4)), CKPT_ERR_INVALID);
  EXPECT_EQ(refusal(std::string("\2\0\0\0[]", 6)), CKPT_ERR_INVALID);
  EXPECT_EQ(refusal(std::string("\2\0\0\0{x", 6)), CKPT_ERR_INVALID);
  EXPECT_EQ(refusal(std::string("\7\0\0\0{}", 6)), CKPT_ERR_NO_AGENT);  // cut off: as good as closed
}

class FrameListenerTest : public testing::Test {
 protected:
  FrameListenerTest() { std::filesystem::create_directory(directory_); }
  std::string path() const { return directory_ / "agent.sock"; }
  const test::TemporaryDirectory folder_;
  // Deeper than the 107 characters that an address holds.
  const std::filesystem::path directory_ = std::filesystem::path(folder_.path()) / std::string(120, 'd');
};

TEST_F(FrameListenerTest, ServesProcessesOfThisUserThroughLongPaths) {
  FrameListener listener(path());
  EXPECT_FALSE(listener.accept());
  FrameSocket client = FrameSocket::connect(path());
  auto server = listener.accept();
  ASSERT_TRUE(server);
  EXPECT_EQ(server->peer().pid, ::getpid());
  EXPECT_EQ(server->peer().uid, ::geteuid());
  client.send({{"type", "hello"}}, {}, soon());
  EXPECT_EQ(server->receive(soon()).body.at("type"), "hello");
  struct stat status {};
  ASSERT_EQ(::stat(path().c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600u);
}

TEST_F(FrameListenerTest, TakesOverTheSocketFileOfADeadListener) {
  std::filesystem::rename(
      [&] {
        FrameListener dead(path());
        std::filesystem::rename(path(), path() + ".kept");
        return path() + ".kept";
      }(),
      path());
  EXPECT_EQ(status_of([&] { FrameSocket::connect(path()); }), CKPT_ERR_NO_AGENT);
  FrameListener listener(path());
  EXPECT_EQ(status_of([&] { FrameSocket::connect(path()); }), CKPT_OK);
}

TEST_F(FrameListenerTest, LeavesTheSocketOfItsSuccessor) {
  auto replaced = std::make_unique<FrameListener>(path());
  std::filesystem::remove(path());
  FrameListener successor(path());
  replaced.reset();
  EXPECT_EQ(status_of([&] { FrameSocket::connect(path()); }), CKPT_OK);
}

TEST_F(FrameListenerTest, ReportsNoAgentIfNothingListens) {
  EXPECT_EQ(status_of([&] { FrameSocket::connect(path()); }), CKPT_ERR_NO_AGENT);
  EXPECT_EQ(status_of([&] { FrameSocket::connect("/does/not/exist/agent.sock"); }), CKPT_ERR_NO_AGENT);
}

}  // namespace
}  // namespace ckpt
