// What etcd adds to the promises of a Store: members that fail, TLS, users, a full disk. Real servers.
#include "coord/etcd_store.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <filesystem>

#include "base/clock.hpp"
#include "base/unique_fd.hpp"
#include "coord/open_store.hpp"
#include "etcd_server.hpp"
#include "support.hpp"

namespace ckpt::coord {
namespace {

using test::EtcdServer;
using test::failure_of;
using testing::AllOf;
using testing::HasSubstr;

// A call that may come to nothing while members change places, until it does not.
template <class Call>
auto sooner_or_later(Call call) {
  for (const Deadline deadline = Deadline::in_ms(30'000);;) {
    try {
      return call();
    } catch (const Failure&) {
      if (deadline.passed()) throw;
    }
  }
}

std::uint64_t put(Store& store, const std::string& key, const std::string& value) {
  return sooner_or_later([&] {
    const auto current = store.get(key);
    return store.put_if(key, value, current ? current->revision : 0).value_or(0);
  });
}

TEST(EtcdStore, NamesAServerThatDoesNotListenImmediately) {
  std::string location;
  {
    EtcdServer server;
    location = server.location();
  }
  EXPECT_THAT(failure_of([&] { open_store(location, "job")->get("key"); }),
              AllOf(HasSubstr(location.substr(7)), HasSubstr("cannot be reached"), HasSubstr("option coordination")));
}

TEST(EtcdStore, SurvivesTheLossOrFreezeOfOneOfThreeMembers) {
  EtcdServer servers("--members 3");
  const auto store = open_store(servers.location(), "job");
  ASSERT_GT(put(*store, "key", "first"), 0u);
  servers.kill(0);
  EXPECT_EQ(sooner_or_later([&] { return store->get("key"); })->value, "first");
  ASSERT_GT(put(*store, "key", "second"), 0u);
  servers.start();
  servers.freeze(1);
  EXPECT_EQ(sooner_or_later([&] { return store->get("key"); })->value, "second");
  ASSERT_GT(put(*store, "key", "third"), 0u);
  servers.thaw(1);
  EXPECT_EQ(store->get("key")->value, "third");
}

TEST(EtcdStore, ReportsAMissingMajorityAndContinuesOnceItReturns) {
  EtcdServer servers("--members 3");
  const auto store = open_store(servers.location(), "job");
  const auto revision = put(*store, "key", "first");
  servers.kill(0);
  servers.kill(2);
  ckpt_status status = CKPT_OK;
  failure_of([&] { store->put_if("key", "second", revision); }, &status);
  EXPECT_NE(status, CKPT_OK);
  EXPECT_NE(failure_of([&] { store->get("key"); }), "no failure");
  servers.start();
  const auto found = sooner_or_later([&] { return store->get("key"); });
  EXPECT_THAT(found->value, testing::AnyOf("first", "second"));
}

TEST(EtcdStore, WatchSurvivesServerRestartsAndCompaction) {
  EtcdServer server;
  const auto store = open_store(server.location(), "job");
  test::Notified notified;
  const auto watch = store->watch(notified.listener());
  for (int i = 0; i < 3; ++i) {
    const std::string round = std::to_string(i);
    put(*store, "key", "before " + round);
    ASSERT_TRUE(notified.becomes("key", "before " + round));
    server.kill();
    server.start();
    for (int j = 0; j < 5; ++j) put(*store, "key", round + "." + std::to_string(j));
    server.compact();
    EXPECT_TRUE(notified.becomes("key", round + ".4"));
  }
}

TEST(EtcdStore, WatchReportsAllRecordsAfterTheServerWasSetBack) {
  EtcdServer server;
  const auto store = open_store(server.location(), "job");
  put(*store, "key", "old");
  server.stop();
  const auto copy = std::filesystem::copy_options::recursive;
  std::filesystem::copy(server.file("0/data"), server.file("backup"), copy);
  server.start();
  test::Notified notified;
  const auto watch = store->watch(notified.listener());
  for (int i = 0; i < 10; ++i) put(*store, "key", "new " + std::to_string(i));
  put(*store, "other", "new");
  ASSERT_TRUE(notified.becomes("key", "new 9") && notified.becomes("other", "new"));
  server.stop();
  std::filesystem::remove_all(server.file("0/data"));
  std::filesystem::rename(server.file("backup"), server.file("0/data"));
  server.start();
  EXPECT_TRUE(notified.becomes("key", "old"));
  EXPECT_TRUE(notified.is_removed("other"));
  put(*store, "key", "newer");
  EXPECT_TRUE(notified.becomes("key", "newer"));
}

TEST(EtcdStore, WatchWithoutAServerRetriesLessAndLessOften) {
  const UniqueFd listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  ASSERT_EQ(::bind(listener.get(), reinterpret_cast<sockaddr*>(&address), length), 0);
  ASSERT_EQ(::listen(listener.get(), 16), 0);
  ASSERT_EQ(::getsockname(listener.get(), reinterpret_cast<sockaddr*>(&address), &length), 0);
  const auto store = open_store({"etcd://127.0.0.1:" + std::to_string(ntohs(address.sin_port))}, "job");
  const auto watch = store->watch([](const Entry&) {});
  std::vector<Clock::time_point> tries;
  while (tries.size() < 5) {
    pollfd waiting{listener.get(), POLLIN, 0};
    ASSERT_EQ(::poll(&waiting, 1, 30'000), 1);
    const UniqueFd connection(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    tries.push_back(Clock::now());
  }
  EXPECT_GE(tries.back() - tries.front(), std::chrono::milliseconds(200 + 400 + 800 + 1600));
}

TEST(EtcdStore, WatchMovesToAnotherServerWithTheCalls) {
  EtcdServer servers("--members 3");
  const auto store = open_store(servers.location(), "job");
  test::Notified notified;
  const auto watch = store->watch(notified.listener());
  put(*store, "key", "first");
  ASSERT_TRUE(notified.becomes("key", "first"));
  servers.freeze(0);  // where both are; nothing comes from there any more, and nothing says why
  put(*store, "key", "second");
  EXPECT_TRUE(notified.becomes("key", "second"));
  servers.thaw(0);
}

TEST(EtcdStore, RemovesAllRecordsOfAJobAndNoOthers) {
  EtcdServer server;
  const StoreLocation place = server.location();
  const auto store = open_store(place, "job"), other = open_store(place, "job2");
  const auto elsewhere = open_store(server.location() + "/else/where", "job");
  test::Notified notified;
  const auto watch = store->watch(notified.listener());
  for (Store* const each : {store.get(), other.get(), elsewhere.get()}) put(*each, "taken/0", "a");
  const auto revision = put(*store, "nodes/a", "x");
  ASSERT_TRUE(notified.becomes("nodes/a", "x"));
  EXPECT_EQ(jobs_with_records(place), (std::vector<std::string>{"job", "job2"}));
  EXPECT_EQ(jobs_with_records(server.location() + "/else/where"), (std::vector<std::string>{"job"}));
  const JobRecords seen = look_at_records(place, "job");
  put(*store, "leader", "x");
  EXPECT_FALSE(remove_records(place, "job", seen)) << "somebody lives there";
  EXPECT_TRUE(remove_records(place, "job", look_at_records(place, "job")));
  EXPECT_TRUE(notified.is_removed("nodes/a"));
  EXPECT_TRUE(store->list("").empty());
  EXPECT_EQ(jobs_with_records(place), (std::vector<std::string>{"job2"}));
  EXPECT_TRUE(elsewhere->get("taken/0"));
  EXPECT_EQ(store->put_if("nodes/a", "y", revision), std::nullopt);
  EXPECT_GT(store->put_if("nodes/a", "y", 0), revision) << "no revision comes twice";
}

TEST(EtcdStore, ReportsAFullServerAndReadsItUntilItRecovers) {
  EtcdServer server("--quota 8000000");
  const auto store = open_store(server.location(), "job");
  std::uint64_t revision = 0;
  std::string sentence;
  ckpt_status status = CKPT_OK;
  for (int i = 0; i < 20 && status == CKPT_OK; ++i)
    sentence = failure_of(
        [&] { revision = *store->put_if("key", std::string(value_bytes_max, static_cast<char>('a' + i)), revision); },
        &status);
  EXPECT_EQ(status, CKPT_ERR_NO_SPACE);
  EXPECT_THAT(sentence, AllOf(HasSubstr("is full"), HasSubstr("defragment"), HasSubstr("alarm")));
  // The first write found no room and was made all the same, which a failure allows.
  revision = store->get("key")->revision;
  server.compact();
  EXPECT_TRUE(store->put_if("key", "small", revision));
}

class SecureEtcd : public testing::Test {
 protected:
  StoreLocation location(const std::string& ca = "ca.pem", bool shows_certificate = true) const {
    StoreLocation place(server_.location());
    place.user = "trainer";
    place.password_file = server_.file("password");
    place.tls.ca = server_.file("tls/" + ca);
    if (shows_certificate) place.tls.certificate = server_.file("tls/client.pem");
    if (shows_certificate) place.tls.key = server_.file("tls/client-key.pem");
    return place;
  }
  static std::string refusal(const StoreLocation& place) {
    return failure_of([&] { open_store(place, "job")->get("key"); });
  }

  EtcdServer server_{"--tls --user trainer"};
};

TEST_F(SecureEtcd, ServesClientsWithCertificateUserAndPassword) {
  const auto store = open_store(location(), "job");
  test::Notified notified;
  const auto watch = store->watch(notified.listener());
  ASSERT_GT(put(*store, "key", "value"), 0u);
  EXPECT_TRUE(notified.becomes("key", "value"));
  server_.kill();
  server_.start();  // and has forgotten who is logged in
  EXPECT_EQ(sooner_or_later([&] { return store->get("key"); })->value, "value");
  put(*store, "key", "other");
  EXPECT_TRUE(notified.becomes("key", "other"));
}

TEST_F(SecureEtcd, ReplacesAnExpiredToken) {
  const auto store = open_store(location(), "job");
  ASSERT_GT(put(*store, "key", "value"), 0u);
  std::string password;
  std::ifstream(server_.file("password")) >> password;
  const auto forget_tokens = [&] {
    server_.control("user delete trainer");
    server_.control("user add trainer:" + password);
    server_.control("user grant-role trainer ckptengine");
  };
  forget_tokens();
  const auto found = store->get("key");
  EXPECT_EQ(found->value, "value");
  forget_tokens();
  EXPECT_TRUE(store->put_if("key", "other", found->revision));
}

TEST_F(SecureEtcd, RefusesAllOtherClientsInOneSentence) {
  const auto names_tls = AllOf(HasSubstr("TLS with etcd at https://"), HasSubstr("etcd_ca_file"));
  EXPECT_THAT(refusal(location("other.pem")), names_tls);
  EXPECT_THAT(refusal(location("none.pem")), names_tls);
  EXPECT_THAT(refusal(location("ca.pem", false)), names_tls);

  StoreLocation wrong = location();
  wrong.password_file = server_.file("wrong");
  std::ofstream(wrong.password_file) << "wrong\n";
  EXPECT_THAT(refusal(wrong), AllOf(HasSubstr("etcd_password_file"), HasSubstr("chmod 600")));
  ::chmod(wrong.password_file.c_str(), 0600);
  EXPECT_THAT(refusal(wrong), AllOf(HasSubstr("refuses the user trainer"), HasSubstr("etcd_password_file")));
  wrong.user = "nobody";
  EXPECT_THAT(refusal(wrong), HasSubstr("refuses the user nobody"));

  StoreLocation nobody = location();
  nobody.user.clear();
  EXPECT_THAT(refusal(nobody), HasSubstr("etcd_password_file is given without etcd_user"));
  nobody.password_file.clear();
  EXPECT_THAT(refusal(nobody), AllOf(HasSubstr("requires a user"), HasSubstr("etcd_user")));

  StoreLocation elsewhere = location();
  elsewhere.at += "/elsewhere";
  EXPECT_THAT(refusal(elsewhere), AllOf(HasSubstr("does not let the user trainer"), HasSubstr("role")));

  StoreLocation plain = location();
  plain.at.replace(0, 5, "etcd");
  EXPECT_THAT(refusal(plain), HasSubstr("write etcds://"));
  plain.tls = {};
  EXPECT_NE(refusal(plain), "no failure");
}

}  // namespace
}  // namespace ckpt::coord
