// The shared library as programs see it: status codes, sentences, processes that fork, agents that do not start.

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <set>
#include <thread>

#include "ckptengine/engine.hpp"
#include "tests/support/temporary_directory.hpp"

namespace {

using ckpt::test::TemporaryDirectory;
using testing::AllOf;
using testing::HasSubstr;

class CApi : public testing::Test {
 protected:
  // Creates an engine with these options beside the needed ones, and expects a refusal.
  ckpt_status create(std::vector<ckpt_option> more) {
    std::vector<ckpt_option> options = {
        {"job", "job"}, {"rank", "0"}, {"world_size", "1"}, {"node", "node"}, {"arena_dir", directory_.path().c_str()}};
    options.insert(options.end(), more.begin(), more.end());
    ckpt_engine* engine = reinterpret_cast<ckpt_engine*>(this);
    const ckpt_status status = ckpt_create(options.data(), options.size(), &engine);
    EXPECT_EQ(engine, nullptr);
    return status;
  }
  std::string script(const std::string& text) {
    std::string path = directory_ / "ckptd";
    std::ofstream(path) << "#!/bin/sh\n" << text;
    ::chmod(path.c_str(), 0700);
    return path;
  }
  TemporaryDirectory directory_{ckpt::test::in_memory};
};

TEST_F(CApi, RefusesNullPointersWithAMessage) {
  EXPECT_EQ(ckpt_create(nullptr, 0, nullptr), CKPT_ERR_INVALID);
  EXPECT_EQ(ckpt_create(nullptr, 1, nullptr), CKPT_ERR_INVALID);
  EXPECT_EQ(ckpt_snapshot(nullptr, 0, CKPT_NO_STREAM), CKPT_ERR_INVALID);
  EXPECT_THAT(ckpt_last_error(), HasSubstr("the engine is a null pointer"));
  EXPECT_EQ(ckpt_before_update(nullptr, nullptr, 0), CKPT_ERR_INVALID);
  EXPECT_EQ(ckpt_register_tensor(nullptr, nullptr), CKPT_ERR_INVALID);
  EXPECT_EQ(ckpt_restore(nullptr, CKPT_NO_STREAM, nullptr), CKPT_ERR_INVALID);
  EXPECT_EQ(ckpt_stats(nullptr, nullptr), CKPT_ERR_INVALID);
  EXPECT_EQ(ckpt_comm_begin(nullptr, 0, CKPT_NO_STREAM), CKPT_ERR_INVALID);
  EXPECT_EQ(ckpt_comm_end(nullptr, 0, CKPT_NO_STREAM), CKPT_ERR_INVALID);
  EXPECT_EQ(ckpt_pause(nullptr, "eval"), CKPT_ERR_INVALID);
  EXPECT_EQ(ckpt_resume(nullptr), CKPT_ERR_INVALID);
  ckpt_halt_t halt = CKPT_HALT_INIT;
  EXPECT_EQ(ckpt_wait_halt(nullptr, 0, &halt), CKPT_ERR_INVALID);
  EXPECT_EQ(ckpt_report_trouble(nullptr, "a connection was closed"), CKPT_ERR_INVALID);
  EXPECT_EQ(ckpt_rejoin(nullptr), CKPT_ERR_INVALID);
  ckpt_close(nullptr);
  EXPECT_EQ(create({{"copies", nullptr}}), CKPT_ERR_INVALID);
}

TEST_F(CApi, LibraryAndHeaderHaveTheSameVersion) {
  const std::string header = std::to_string(CKPT_VERSION_MAJOR) + "." + std::to_string(CKPT_VERSION_MINOR) + "." +
                             std::to_string(CKPT_VERSION_PATCH);
  EXPECT_EQ(ckpt_version(), header);
  EXPECT_EQ(CKPT_VERSION_NUMBER, CKPT_VERSION_MAJOR * 10000 + CKPT_VERSION_MINOR * 100 + CKPT_VERSION_PATCH);
}

TEST_F(CApi, EveryStatusHasItsOwnDescriptionAndSkipsAreNoErrors) {
  std::set<std::string> seen;
  for (const ckpt_status status : {CKPT_OK, CKPT_SKIPPED, CKPT_DISCARDED}) {
    EXPECT_FALSE(ckpt_is_error(status));
    EXPECT_TRUE(seen.insert(ckpt_status_string(status)).second) << status;
  }
  const std::string unknown = ckpt_status_string(static_cast<ckpt_status>(CKPT_DISCARDED + 1));
  for (int status = CKPT_ERR_INVALID; status <= CKPT_ERR_HALTED; ++status) {
    EXPECT_TRUE(ckpt_is_error(static_cast<ckpt_status>(status)));
    EXPECT_TRUE(seen.insert(ckpt_status_string(static_cast<ckpt_status>(status))).second) << status;
  }
  EXPECT_FALSE(seen.contains(unknown));
}

TEST_F(CApi, UnknownAndMalformedOptionsAreRefused) {
  EXPECT_EQ(create({{"colour", "red"}}), CKPT_ERR_INVALID);
  EXPECT_THAT(ckpt_last_error(), HasSubstr("option \"colour\" is not known"));
  EXPECT_EQ(create({{"copies", "many"}}), CKPT_ERR_INVALID);
  ::setenv("CKPTENGINE_COPIES", "many", 1);
  EXPECT_EQ(create({}), CKPT_ERR_INVALID);
  EXPECT_THAT(ckpt_last_error(), HasSubstr("CKPTENGINE_COPIES"));
  ::unsetenv("CKPTENGINE_COPIES");
}

TEST_F(CApi, ReportsThatNoAgentRuns) {
  EXPECT_EQ(create({{"agent", "attach"}}), CKPT_ERR_NO_AGENT);
  EXPECT_THAT(ckpt_last_error(), AllOf(HasSubstr("agent.sock"), HasSubstr("start ckptd")));
}

TEST_F(CApi, ReportsAnAgentThatCannotBeStarted) {
  EXPECT_EQ(create({{"ckptd", "/does/not/exist"}}), CKPT_ERR_NO_AGENT);
  EXPECT_THAT(ckpt_last_error(), AllOf(HasSubstr("/does/not/exist"), HasSubstr("option ckptd")));
}

TEST_F(CApi, PassesOnTheAgentsOwnMessage) {
  const std::string path = script("echo 'the coordination directory is read-only; choose another' >&2\nexit 1\n");
  EXPECT_EQ(create({{"ckptd", path.c_str()}}), CKPT_ERR_NO_AGENT);
  EXPECT_THAT(ckpt_last_error(), HasSubstr("the coordination directory is read-only"));
}

TEST_F(CApi, StartsAnAgentWithItsOptionsAndWithoutTheTrainersFiles) {
  const std::string path = script("echo \"$@\" > " + (directory_ / "arguments") + "; ls /proc/self/fd > " +
                                  (directory_ / "files") + "\necho no >&2; exit 1\n");
  const int leaked = ::fcntl(0, F_DUPFD, 321);
  EXPECT_EQ(create({{"ckptd", path.c_str()}, {"copies", "3"}}), CKPT_ERR_NO_AGENT);
  std::stringstream arguments, files;
  arguments << std::ifstream(directory_ / "arguments").rdbuf();
  files << std::ifstream(directory_ / "files").rdbuf();
  EXPECT_THAT(arguments.str(), AllOf(HasSubstr("--detach"), HasSubstr("job=job"), HasSubstr("node=node"),
                                     HasSubstr("copies=3"), testing::Not(HasSubstr("rank="))));
  EXPECT_THAT(files.str(), testing::Not(HasSubstr(std::to_string(leaked) + "\n")));
  ::close(leaked);
}

TEST_F(CApi, CppLayerThrowsTheMessage) {
  try {
    ckpt::Engine engine(ckpt::Options::from_env().set("job", "job").set("rank", 0).set("agent", "attach"));
    FAIL() << "created without a world size";
  } catch (const ckpt::Error& error) {
    EXPECT_EQ(error.status(), CKPT_ERR_INVALID);
    EXPECT_THAT(error.what(), HasSubstr("world_size"));
  }
}

TEST_F(CApi, ErrorTextsBelongToTheirThread) {
  ckpt_snapshot(nullptr, 0, CKPT_NO_STREAM);
  std::string elsewhere = "x";
  std::thread([&] { elsewhere = ckpt_last_error(); }).join();
  EXPECT_EQ(elsewhere, "");
  EXPECT_STRNE(ckpt_last_error(), "");
}

// As an engine in static storage is, whose destructor runs after those of its thread's own objects.
struct UsedLast {
  static inline ckpt_status status = CKPT_OK;
  static inline std::string sentence = "x";
  ~UsedLast() {
    status = ckpt_snapshot(nullptr, 0, CKPT_NO_STREAM);
    sentence = ckpt_last_error();
  }
};

TEST_F(CApi, CallsWorkWithoutAnErrorTextWhenTheirThreadEnds) {
  std::thread([] {
    thread_local UsedLast used_last;
    (void)&used_last;  // made first, so destroyed last
    ckpt_snapshot(nullptr, 0, CKPT_NO_STREAM);
  }).join();
  EXPECT_EQ(UsedLast::status, CKPT_ERR_INVALID);
  EXPECT_EQ(UsedLast::sentence, "");
}

}  // namespace
