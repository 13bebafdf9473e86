#include "coord/open_store.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>
#include <future>
#include <thread>

#include "coord/base64.hpp"
#include "coord/directory_store.hpp"
#include "coord/etcd_entries.hpp"
#include "support.hpp"
#include "tests/support/temporary_directory.hpp"

namespace ckpt::coord {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

TEST(EtcdAddress, NamesEndpointsAndPrefix) {
  const EtcdAddress one = parse_etcd_address("etcd://host:1234");
  EXPECT_THAT(one.endpoints, ElementsAre("http://host:1234"));
  EXPECT_EQ(one.prefix, "/ckptengine/");
  const EtcdAddress more = parse_etcd_address("etcds://a.b.c:1,10.0.0.7,[fe80::1]:65535,[::1]/some/where/");
  EXPECT_THAT(more.endpoints,
              ElementsAre("https://a.b.c:1", "https://10.0.0.7:2379", "https://[fe80::1]:65535", "https://[::1]:2379"));
  EXPECT_EQ(more.prefix, "/some/where/");
}

TEST(EtcdAddress, RefusesAddressesWithoutAValidServer) {
  for (const char* wrong : {"etcd://", "etcd:///x", "etcd://:1", "etcd://a:", "etcd://a:0", "etcd://a:65536",
                            "etcd://a:b", "etcd://a,", "etcd://,a", "etcd://a,,b", "etcd://a b", "etcd://u@a",
                            "etcd://a/x//y", "etcd://a/../x", "etcd://a/x?y", "http://a", "etcd://[g]"})
    EXPECT_THAT(test::failure_of([&] { parse_etcd_address(wrong); }), HasSubstr("option coordination")) << wrong;
}

TEST(EtcdAddress, AcceptsServerNamesOfFullLength) {
  const std::string name = std::string(63, 'a') + "." + std::string(63, 'b') + ".example";
  EXPECT_THAT(parse_etcd_address("etcd://" + name).endpoints, ElementsAre("http://" + name + ":2379"));
  EXPECT_THROW(parse_etcd_address("etcd://" + std::string(254, 'a')), Failure);
}

TEST(EtcdAddress, ErrorsDoNotRepeatPasswords) {
  const std::string sentence = test::failure_of([] { parse_etcd_address("etcd://user:pass@word@host/x"); });
  EXPECT_THAT(sentence, AllOf(HasSubstr("@host/x"), Not(HasSubstr("pass")), Not(HasSubstr("user"))));
}

TEST(Base64, FollowsTheStandard) {
  const std::vector<std::pair<std::string, std::string>> samples = {{"", ""},
                                                                    {"f", "Zg=="},
                                                                    {"fo", "Zm8="},
                                                                    {"foo", "Zm9v"},
                                                                    {"foob", "Zm9vYg=="},
                                                                    {"fooba", "Zm9vYmE="},
                                                                    {"foobar", "Zm9vYmFy"},
                                                                    {"\xff\xfe\xfd", "//79"}};
  for (const auto& [bytes, text] : samples) {
    EXPECT_EQ(to_base64(bytes), text);
    EXPECT_EQ(from_base64(text), bytes);
  }
  for (const char* wrong : {"Z", "Zg", "Zg=", "Z===", "====", "Zg==Zg==", "Zm9-", "Zm9v\n", "=Zm9"})
    EXPECT_EQ(from_base64(wrong), std::nullopt) << wrong;
}

TEST(EtcdEntries, InvalidAnswersAreFailures) {
  using nlohmann::json;
  const std::string key = to_base64("/p/key");
  EXPECT_EQ(entry_of({{"key", key}, {"value", "Zm9v"}, {"mod_revision", "7"}}, "/p/"), (Entry{"key", "foo", 7}));
  EXPECT_EQ(entry_of({{"key", key}}, "/p/"), (Entry{"key", "", 0}));
  for (const json& wrong :
       {json(), json("x"), json::object(), json{{"key", 7}}, json{{"key", "!"}}, json{{"key", to_base64("/q/key")}},
        json{{"key", key}, {"value", "!"}}, json{{"key", key}, {"mod_revision", "-1"}},
        json{{"key", key}, {"mod_revision", "7x"}}, json{{"key", key}, {"mod_revision", 1.5}}})
    EXPECT_THROW(entry_of(wrong, "/p/"), Failure) << wrong;
  EXPECT_THROW(flag_field({{"more", "true"}}, "more"), Failure);
  EXPECT_EQ(revision_of({{"header", {{"revision", "7"}}}}), 7u);
  for (const json& wrong : {json::object(), json{{"header", 7}}, json{{"header", {{"revision", "0"}}}}})
    EXPECT_THROW(revision_of(wrong), Failure) << wrong << " is no answer of etcd's";
}

TEST(OpenStore, RefusesAPasswordThatIsNotUtf8) {
  const test::TemporaryDirectory directory;
  StoreLocation place("etcd://127.0.0.1:1");
  place.user = "trainer";
  place.password_file = directory.path() + "/password";
  std::ofstream(place.password_file) << "\xff\xfe\n";
  ::chmod(place.password_file.c_str(), 0600);
  EXPECT_THAT(test::failure_of([&] { open_store(place, "job"); }), HasSubstr("is not UTF-8"));
}

TEST(OpenStore, RemovesAJobsRecordsUnlessANodeHasComeSince) {
  const test::TemporaryDirectory directory;
  ASSERT_TRUE(open_store(directory.path(), "job")->put_if("taken/0", "a", 0));
  ASSERT_TRUE(open_store(directory.path(), "other")->put_if("nodes/a", "", 0));
  EXPECT_THAT(jobs_with_records(directory.path()), ElementsAre("job"));
  const JobRecords seen = look_at_records(directory.path(), "job");
  ASSERT_TRUE(open_store(directory.path(), "job")->put_if("nodes/a", "", 0));
  EXPECT_FALSE(remove_records(directory.path(), "job", seen)) << "a node has come since";
  EXPECT_TRUE(remove_records(directory.path(), "job", look_at_records(directory.path(), "job")));
  EXPECT_TRUE(jobs_with_records(directory.path()).empty());
  EXPECT_TRUE(open_store(directory.path(), "other")->get("nodes/a"));
}

using Step = RevisionHooks::Step;

// A directory with one record, which is about to be removed.
class RemovingAllRecords : public ::testing::Test {
 protected:
  RemovingAllRecords() { open_store(directory_.path(), "job")->put_if("taken/0", "old", 0); }
  std::string path() const { return directory_.path() + "/job"; }
  bool remove_all(const std::function<void(Step)>& reached) const {
    return DirectoryStore(path(), {reached, {}}).remove_all(DirectoryStore(path()).undamaged());
  }
  std::string value() const {
    const auto entry = open_store(directory_.path(), "job")->get("taken/0");
    return entry ? entry->value : "gone";
  }

  const test::TemporaryDirectory directory_;
};

TEST_F(RemovingAllRecords, KeepsRecordsIfOneWasWrittenAfterTheComparison) {
  std::optional<std::uint64_t> written;
  EXPECT_FALSE(remove_all([&](Step step) {
    if (step == Step::compared) written = DirectoryStore(path()).put_if("taken/0", "new", 1);
  }));
  EXPECT_TRUE(written);
  EXPECT_EQ(value(), "new");
}

TEST_F(RemovingAllRecords, MakesTheWriteOfARemovedRecordFail) {
  bool removed = false;
  const auto remove_before_writing = [&](Step step) {
    if (step == Step::looked) removed = remove_all({});
  };
  DirectoryStore writer(path(), {remove_before_writing, {}});
  EXPECT_FALSE(writer.put_if("taken/0", "new", 1));
  EXPECT_TRUE(removed);
  EXPECT_EQ(value(), "gone");
}

TEST_F(RemovingAllRecords, MakesAWriteDuringTheRemovalFail) {
  std::promise<void> is_about_to_write, may_write;
  std::string failure;
  DirectoryStore writer(path(), {[&](Step step) {
                                   if (step != Step::looked) return;
                                   is_about_to_write.set_value();
                                   may_write.get_future().wait();
                                 },
                                 {}});
  std::thread thread([&] { failure = test::failure_of([&] { writer.put_if("taken/0", "new", 1); }); });
  is_about_to_write.get_future().wait();
  const bool removed = remove_all([&](Step step) {
    if (step != Step::moved) return;
    may_write.set_value();
    thread.join();
  });
  if (thread.joinable()) {
    may_write.set_value();
    thread.join();
  }
  EXPECT_THAT(failure, HasSubstr("vanished while a record was written"));
  EXPECT_FALSE(removed);
  EXPECT_EQ(value(), "new");
}

}  // namespace
}  // namespace ckpt::coord
