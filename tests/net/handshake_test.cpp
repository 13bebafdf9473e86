// The handshake without sockets: how each side answers which bytes.
#include "net/handshake.hpp"

#include <gtest/gtest.h>

#include <functional>

#include "listener_support.hpp"
#include "net/pending_connections.hpp"

namespace ckpt::net::testing {
namespace {

constexpr char place[] = "127.0.0.1:4242";
using Bytes = std::vector<std::byte>;
// May change a frame on its way; `to` receives it.
using Way = std::function<void(Side to, std::size_t number, Bytes& frame)>;

struct Meeting {
  Asking asking;
  Answering answering;
};

// Both sides until neither has anything more to say.
void hold(Meeting& meeting, const Way& way = nullptr) {
  Bytes to_answerer = meeting.asking.opening(), to_asker;
  std::size_t number = 0;
  const auto deliver = [&](Handshake& to, Side side, Bytes& from, Bytes& answers) {
    const std::size_t due_bytes = to.due_bytes();
    if (due_bytes == 0 || from.size() < due_bytes) return false;
    Bytes frame(from.begin(), from.begin() + static_cast<std::ptrdiff_t>(due_bytes));
    from.erase(from.begin(), from.begin() + static_cast<std::ptrdiff_t>(due_bytes));
    if (way) way(side, number++, frame);
    const Bytes answer = to.take(frame);
    answers.insert(answers.end(), answer.begin(), answer.end());
    return true;
  };
  while (deliver(meeting.answering, Side::answerer, to_answerer, to_asker) ||
         deliver(meeting.asking, Side::asker, to_asker, to_answerer)) {
  }
}

Meeting meeting(const Identity& asker = member(9, 900), const Identity& answerer = member(1, 100), PeerId peer = 1,
                std::uint64_t peer_instance = 100) {
  return {Asking(asker, peer, peer_instance, nonce_of(1)), Answering(answerer, place, nonce_of(2))};
}

wire::Hello hello_of(const Session& session, Side side) {
  wire::Hello hello;
  hello.from_node = 9;
  prove(session, side, hello);
  return hello;
}

TEST(Handshake, MembersEndWithTheSameSession) {
  Meeting both = meeting();
  hold(both);
  ASSERT_TRUE(both.asking.session() && both.answering.session());
  EXPECT_EQ(both.asking.session()->id, both.answering.session()->id);
  EXPECT_EQ(both.asking.session()->key, both.answering.session()->key);
  EXPECT_EQ(both.asking.session()->peer, 1u);
  EXPECT_EQ(both.asking.session()->peer_instance, 100u);
  EXPECT_EQ(both.answering.session()->peer, 9u);
  EXPECT_EQ(both.answering.session()->peer_instance, 900u);
  EXPECT_EQ(both.asking.place(), place);
}

TEST(Handshake, TellsEachRejectedPeerWhy) {
  const auto refusals = [](Meeting both) {
    hold(both);
    EXPECT_FALSE(both.asking.session() || both.answering.session());
    EXPECT_TRUE(both.asking.place().empty());
    EXPECT_EQ(both.asking.refusal(), both.answering.refusal());
    return both.answering.refusal();
  };
  Identity without_token = member(9, 900);
  without_token.token = "another token";
  EXPECT_EQ(refusals(meeting(without_token)), Refusal::token);
  without_token.token = "";
  EXPECT_EQ(refusals(meeting(without_token)), Refusal::token);
  Identity of_another_job = member(9, 900);
  of_another_job.job = "another job";
  EXPECT_EQ(refusals(meeting(of_another_job)), Refusal::job);
  EXPECT_EQ(refusals(meeting(member(9, 900), member(1, 100), 2, 100)), Refusal::node);
  EXPECT_EQ(refusals(meeting(member(9, 900), member(1, 100), 1, 99)), Refusal::other_instance);
}

TEST(Handshake, ReportsAnotherVersionToBothSides) {
  Meeting both = meeting();
  hold(both, [](Side, std::size_t number, Bytes& frame) {
    if (number == 0) frame[4] ^= std::byte{1};
  });
  EXPECT_EQ(both.answering.refusal(), Refusal::version);
  EXPECT_EQ(both.asking.refusal(), Refusal::version);
  EXPECT_EQ(both.asking.peer_version(), wire::version);
}

TEST(Handshake, RefusesAnyChangedByte) {
  std::vector<std::pair<Side, std::size_t>> frames;
  Meeting whole = meeting();
  hold(whole, [&](Side to, std::size_t, Bytes& frame) { frames.emplace_back(to, frame.size()); });
  ASSERT_EQ(frames.size(), 7u);
  for (std::size_t number = 0; number < frames.size(); ++number) {
    for (std::size_t at = 0; at < frames[number].second; ++at) {
      for (const int bit : {0, 7}) {
        Meeting both = meeting();
        hold(both, [&](Side, std::size_t n, Bytes& frame) {
          if (n == number) frame[at] ^= static_cast<std::byte>(1 << bit);
        });
        EXPECT_FALSE(both.asking.session()) << "frame " << number << " byte " << at;
        const bool comes_to_answerer_or_back = frames[number].first == Side::answerer || number < 4;
        EXPECT_EQ(both.answering.session().has_value(), !comes_to_answerer_or_back)
            << "frame " << number << " byte " << at;
      }
    }
  }
}

TEST(Handshake, RecordedHandshakeCannotBeReplayed) {
  std::vector<Bytes> recorded;
  Meeting whole = meeting();
  hold(whole, [&](Side, std::size_t, Bytes& frame) { recorded.push_back(frame); });
  Answering again(member(1, 100), place, nonce_of(3));
  for (const std::size_t number : {0, 1, 4}) again.take(recorded[number]);
  EXPECT_EQ(again.refusal(), Refusal::token);
  EXPECT_FALSE(again.session());
  Asking asks_again(member(9, 900), 1, 100, nonce_of(4));
  for (const std::size_t number : {2, 3, 5, 6}) asks_again.take(recorded[number]);
  EXPECT_EQ(asks_again.refusal(), Refusal::token);
  EXPECT_FALSE(asks_again.session());
}

TEST(Handshake, RefusesItsOwnBytesSentBack) {
  Asking asking(member(9, 900), 1, 100, nonce_of(1));
  Bytes said = asking.opening();
  while (const std::size_t due_bytes = asking.due_bytes()) {
    said.resize(std::max(said.size(), due_bytes));
    const Bytes frame(said.begin(), said.begin() + static_cast<std::ptrdiff_t>(due_bytes));
    said.erase(said.begin(), said.begin() + static_cast<std::ptrdiff_t>(due_bytes));
    const Bytes more = asking.take(frame);
    said.insert(said.end(), more.begin(), more.end());
  }
  EXPECT_FALSE(asking.session());
  // A node is led to its own listener by who poses as node 2.
  Meeting both = meeting(member(1, 100), member(1, 100), 2, 100);
  hold(both);
  EXPECT_EQ(both.answering.refusal(), Refusal::node);
  EXPECT_FALSE(both.asking.session());
}

TEST(Handshake, EndsOnAFrameOfAnotherSize) {
  Answering answering(member(1, 100), place, nonce_of(2));
  EXPECT_TRUE(answering.take(Bytes(9)).empty());
  EXPECT_EQ(answering.refusal(), Refusal::nonsense);
  EXPECT_EQ(answering.due_bytes(), 0u);
}

TEST(PendingConnections, HelloConsumesItsPendingConnection) {
  Meeting both = meeting();
  hold(both);
  PendingConnections pending_connections;
  const wire::Hello hello = hello_of(*both.asking.session(), Side::asker);
  EXPECT_FALSE(pending_connections.arrived(hello));
  pending_connections.expect(*both.answering.session());
  wire::Hello changed = hello;
  changed.from_node = 8;
  EXPECT_FALSE(pending_connections.arrived(changed));
  EXPECT_FALSE(pending_connections.arrived(hello_of(*both.asking.session(), Side::answerer)));
  EXPECT_TRUE(pending_connections.arrived(hello));
  EXPECT_FALSE(pending_connections.arrived(hello));
}

TEST(PendingConnections, DropsTheOldestWhenFull) {
  PendingConnections pending_connections;
  std::vector<Session> sessions(5000);
  for (std::size_t i = 0; i < sessions.size(); ++i) {
    sessions[i].id = i;
    pending_connections.expect(sessions[i]);
  }
  EXPECT_FALSE(pending_connections.arrived(hello_of(sessions.front(), Side::asker)));
  EXPECT_TRUE(pending_connections.arrived(hello_of(sessions.back(), Side::asker)));
}

}  // namespace
}  // namespace ckpt::net::testing
